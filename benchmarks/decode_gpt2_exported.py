"""Greedy decoding of an exported GPT-2 with random weights: llama.cpp and CTranslate2.

The model is that of `decode_gpt2.py` with biases, which both programs need; they add 0.1 % of the weights.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gpt_peers
from decode_gpt2 import bytes_read
from glassformer.config.run import CausalConfig, GenerationConfig, Run, TextData
from glassformer.interop.export import export
from glassformer.interop.tokenizer_files import row_names
from glassformer.store.model_directory import save_model
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from task import Task

GGUF_TYPES = {"F32": "float32", "F16": "float16", "Q8_0": "float32"}
"""Type of the matrices in GGUF, and the dtype of the export that is converted to it."""
SIZES = {"F32": (4, 2), "F16": (2, 2), "Q8_0": (34 / 32, 2), "float32": (4, 4), "int8": (1, 4)}
"""Bytes of a weight, and of a cached number; a block of 32 weights of Q8_0 has a scale of two bytes."""


def exported(folder: str, sizes: dict[str, int], n_prompt: int, n_new: int) -> Task:
    """Write the model for llama.cpp (F16 and Q8_0) and for CTranslate2, with a prompt."""
    torch.manual_seed(0)
    shape, place = gpt_peers.Decoder(**sizes), Path(folder)
    model = gpt_peers.ours(shape, bias=True)
    tokenizer = Tokenizer.train(["ab" * 9], vocab_size=258, special_tokens=("<eos>",))
    run = Run(name="b", model=model.config, data=TextData(), objective=CausalConfig(), generation=GenerationConfig())
    save_model(place / "model", model, 0, Tokenizers(tokenizer), run, ())
    export(place / "model", place / "ct2", "ct2")
    for kind, dtype in GGUF_TYPES.items():
        export(place / "model", place / kind, "gguf", dtype=dtype)  # type: ignore[arg-type]
    _quantize(place / "Q8_0" / "model.gguf")
    draw = torch.Generator().manual_seed(0)
    prompt = torch.randint(1, shape.vocab_size, (n_prompt,), generator=draw).tolist()
    names = row_names(tokenizer, shape.vocab_size)
    read = {kind: bytes_read(shape, cached, 1, n_prompt, n_new, size) for kind, (size, cached) in SIZES.items()}
    work = {"prompt": prompt, "tokens": [names[i] for i in prompt], "n_new": n_new, "bytes_read": read}
    (place / "work.json").write_text(json.dumps(work), "utf-8")
    return Task(lambda: None)


def llama_cpp(folder: str, kind: str, threads: int = 0) -> Task:
    """Decode one row with llama.cpp; the cache is in float16, its default."""
    import xllamacpp

    work = json.loads((Path(folder) / "work.json").read_text("utf-8"))
    settings = xllamacpp.CommonParams()
    settings.model.path = str(Path(folder) / kind / "model.gguf")
    settings.n_ctx, settings.n_parallel, settings.n_gpu_layers, settings.verbosity = 256, 1, 0, -1
    settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = threads or os.cpu_count() or 1
    server = xllamacpp.Server(settings)
    asked = {"prompt": work["prompt"], "max_tokens": work["n_new"], "temperature": 0, "ignore_eos": True}
    asked |= {"cache_prompt": False, "return_tokens": True, "verbose": True}

    def decode() -> None:
        found: Any = server.handle_completions(asked)
        _require(len(found["__verbose"]["tokens"]), work["n_new"])

    return Task(decode, amount=work["n_new"], bytes_read=work["bytes_read"][kind])


def ctranslate2_generator(folder: str, kind: str) -> Task:
    """Decode with CTranslate2's generator; `kind` is the compute type."""
    import ctranslate2

    work = json.loads((Path(folder) / "work.json").read_text("utf-8"))
    generator = ctranslate2.Generator(str(Path(folder) / "ct2"), device="cpu", compute_type=kind)
    n_new, rows = work["n_new"], [work["tokens"]]

    def decode() -> None:
        found = generator.generate_batch(
            rows, min_length=n_new, max_length=n_new, sampling_topk=1, include_prompt_in_result=False
        )
        _require(min(len(one.sequences_ids[0]) for one in found), n_new)

    return Task(decode, amount=n_new, bytes_read=work["bytes_read"][kind])


def _require(found: int, n_new: int) -> None:
    if found != n_new:
        raise RuntimeError(f"expected {n_new} new tokens, got {found}")


def _quantize(path: Path) -> None:
    """Rewrite a GGUF file with its matrices in Q8_0, as `llama-quantize` does."""
    import gguf

    reader = gguf.GGUFReader(path)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(path.with_suffix(".new"), architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=kind)
    for tensor in reader.tensors:
        x = np.array(tensor.data)
        if x.ndim == 2 and "position" not in tensor.name:
            q8 = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(tensor.name, gguf.quants.quantize(x.astype(np.float32), q8), raw_dtype=q8)
        else:
            writer.add_tensor(tensor.name, x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path.with_suffix(".new").replace(path)
