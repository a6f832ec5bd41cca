"""Safetensors files: writing, and reading after the header has been validated.

A file is eight bytes with the length of the header, the header (JSON: name → dtype, shape, begin and end of its
bytes), and the bytes of all tensors one after another. So all sizes are checked before memory is allocated.
"""

import math
import os
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from glassformer.common import files
from glassformer.common.errors import UserError, listed, shown

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Dtypes of weights and training states, by their names in the header."""
PartOf = Callable[[Tensor, Tensor], Tensor]
"""Function that gets a whole tensor and this process's tensor (perhaps sharded), and returns this process's part.
"""


@dataclass(frozen=True)
class StoredShape:
    """Dtype and shape of a tensor, from the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def save_tensors(tensors: dict[str, Tensor] | Path, path: Path) -> None:
    """Write safetensors, or move a file that several processes wrote (`distributed.parts`) into place.

    A tensor may have any memory format, and may share its memory with others. Raises `UserError` if the disk is full.
    """
    try:
        if isinstance(tensors, Path):
            os.replace(tensors, path)
            return
        save_file(_apart(tensors), path, metadata={"format": "pt"})
    except (SafetensorError, OSError) as error:
        raise UserError(f"cannot write {path}: {error}; no partial file is kept") from error


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as safetensors needs them: contiguous, without lazy conjugation, and in separate memory."""
    separate: dict[str, Tensor] = {}
    used: set[int] = set()
    for name, x in tensors.items():
        x = x.detach().resolve_conj().resolve_neg().contiguous()
        memory = x.untyped_storage().data_ptr()
        separate[name] = x.clone() if memory in used else x
        used.add(memory)
    return separate


def read_shapes(path: Path) -> dict[str, StoredShape]:
    """Read the tensors' dtypes and shapes by name, from the header only; raise `UserError` for an invalid header."""
    files.refuse_objects(path)
    try:
        if path.stat().st_size == 0:
            raise ValueError("it is empty: download or write it again")
        with open(path, "rb") as file:
            (n_header,) = struct.unpack("<Q", file.read(8))
            if n_header > files.MAX_JSON_BYTES:
                raise ValueError(f"its header has {n_header:,} bytes, more than {files.MAX_JSON_BYTES:,}")
            header = files.parse_json(file.read(n_header).decode("utf-8"))
        if not isinstance(header, dict):
            raise ValueError("its header is not a table of tensors")
        header.pop("__metadata__", None)
        end_of = {name: _extent(name, entry) for name, entry in header.items()}
        _require_no_gap(end_of, path.stat().st_size - 8 - n_header)
    except (ValueError, struct.error, OSError) as error:
        reason = files.reason(error) if isinstance(error, OSError) else error
        raise UserError(f"{path} cannot be read: {reason}") from error
    return {name: StoredShape(DTYPES[entry["dtype"]], tuple(entry["shape"])) for name, entry in header.items()}


def _extent(name: str, entry: Any) -> tuple[int, int]:
    """Return the begin and end of a tensor's bytes; raise `ValueError` if its dtype and shape do not match them."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{shown(name)} must have dtype, shape and data_offsets")
    if not isinstance(entry["dtype"], str) or entry["dtype"] not in DTYPES:
        raise ValueError(f"{shown(name)} has dtype {str(entry['dtype'])!r:.20}; known dtypes are {', '.join(DTYPES)}")
    for what in ("shape", "data_offsets"):
        if not isinstance(entry[what], list) or not all(type(n) is int and n >= 0 for n in entry[what]):
            raise ValueError(f"{shown(name)} has {what} {str(entry[what])!r:.60}, expected integers of at least 0")
    if len(entry["shape"]) > 8 or len(entry["data_offsets"]) != 2:
        raise ValueError(f"{shown(name)} has {len(entry['shape'])} dimensions and {len(entry['data_offsets'])} offsets")
    begin, end = entry["data_offsets"]
    n_bytes = math.prod(entry["shape"]) * DTYPES[entry["dtype"]].itemsize
    if end - begin != n_bytes:
        raise ValueError(
            f"{shown(name)} has offsets {begin} to {end}, but its shape {entry['shape']} takes {n_bytes:,} bytes"
        )
    return begin, end


def _require_no_gap(extents: Mapping[str, tuple[int, int]], n_bytes: int) -> None:
    at = 0
    for name, (begin, end) in sorted(extents.items(), key=lambda item: item[1]):
        if begin < at:
            raise ValueError(f"{shown(name)} overlaps the tensor before it")
        if begin > at:
            raise ValueError(f"{shown(name)} follows a gap")
        at = end
    if at != n_bytes:
        raise ValueError(f"its tensors take {at:,} bytes, but it contains {n_bytes:,}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file."""
    read_shapes(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def require_fit(wanted: Mapping[str, Tensor], path: Path) -> None:
    """Raise `UserError` listing tensors of a file that are missing, extra, or differ from a model's in shape or dtype.

    The model may be on the meta device. A narrower float fits, because its conversion is exact.
    """
    stored = read_shapes(path)
    problems = [f"{name} is missing" for name in wanted if name not in stored]
    problems += [f"{shown(name)} is not part of this model" for name in stored if name not in wanted]
    for name, own in wanted.items():
        other = stored.get(name)
        if other is None:
            continue
        if other.shape != tuple(own.shape):
            problems.append(f"{name} has shape {other.shape}, expected {tuple(own.shape)}")
        elif not _is_exact(other.dtype, own.dtype):
            problems.append(f"{name} has dtype {other.dtype}, expected {own.dtype}".replace("torch.", ""))
    if problems:
        what = f"{path} does not fit the model: "
        raise UserError(what + listed(problems, beside=what))


def _is_exact(stored: torch.dtype, own: torch.dtype) -> bool:
    """Return True if a float of dtype `stored` is the same number in dtype `own`; other dtypes must be equal."""
    if stored == own or not stored.is_floating_point:
        return stored == own
    is_fp8 = 1 in (stored.itemsize, own.itemsize)  # PyTorch does not promote these dtypes
    return not is_fp8 and torch.promote_types(stored, own) == own


def repeated_dims(x: Tensor) -> list[int]:
    """Return the dimensions along which all entries of an expanded tensor share one memory; they cannot differ.

    >>> repeated_dims(torch.zeros(2, 1).expand(2, 3))
    [1]
    """
    return [dim for dim in range(x.dim()) if x.stride(dim) == 0 and x.shape[dim] > 1]


def fill(wanted: Mapping[str, Tensor], path: Path, part_of: PartOf | None = None) -> None:
    """Copy the tensors of a file, one at a time, into those of a model that the file fits (`require_fit`).

    If this process holds only parts of the model's tensors, `part_of` cuts its part out of the whole tensor.
    """
    try:
        with torch.no_grad(), safe_open(path, framework="pt") as stored:
            for name, x in wanted.items():
                part = stored.get_tensor(name)
                if part_of is not None:
                    part = part_of(part, x)
                for dim in repeated_dims(x):
                    x, part = x.narrow(dim, 0, 1), part.narrow(dim, 0, 1)
                x.copy_(part)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
