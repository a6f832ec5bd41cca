"""GGUF files for tests: written anew with other metadata and tensor types by llama.cpp's package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import late

gguf = late.module("gguf")

METADATA_TYPES = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING", list: "ARRAY"}


def rewritten(path: Path, out: Path, changes: Mapping[str, Any], kind: str = "F32", skip: str = "none") -> Path:
    """Write a file again with changed metadata (None deletes), its matrices in a tensor type, without one tensor.

    Types that the package cannot write (K-quants, IQ4) get random blocks with finite scales.
    """
    reader = gguf.GGUFReader(path)
    metadata = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    metadata |= changes
    writer = gguf.GGUFWriter(out, metadata.pop("general.architecture"))
    for name, value in metadata.items():
        if value is not None:
            writer.add_key_value(name, value, gguf.GGUFValueType[METADATA_TYPES[type(value)]])
    draw = np.random.default_rng(0)
    for stored in reader.tensors:
        shape = stored.shape.tolist()[::-1]
        x = gguf.quants.dequantize(stored.data, stored.tensor_type).reshape(shape)
        stored_as = gguf.GGMLQuantizationType[kind if len(shape) > 1 and "position" not in stored.name else "F32"]
        try:
            data = gguf.quants.quantize(x, stored_as)
        except NotImplementedError:
            n_values, n_bytes = gguf.GGML_QUANT_SIZES[stored_as]
            block = draw.integers(0, 60, (shape[0], shape[1] // n_values * n_bytes))  # float16 below 1
            data = block.astype(np.uint8)
        if stored.name != skip:
            writer.add_tensor(stored.name, data, raw_dtype=stored_as)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
