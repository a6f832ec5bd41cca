"""The header of a GGUF file: metadata, and the place of each tensor; nothing here imports torch.

A file is the magic `GGUF`, a version, the numbers of tensors and of metadata, the metadata (name, type, value), the
table of tensors (name, shape, type, offset), and the bytes of the tensors, each at a multiple of the alignment. All
sizes are checked before memory is allocated.
"""

import math
import mmap
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.errors import UserError, shown

MAGIC, SUFFIX = b"GGUF", ".gguf"
ARCHITECTURE = "general.architecture"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 128 * 1024 * 1024  # five times that of a vocabulary with 260,000 tokens
MAX_ITEMS = 1 << 22  # of a list, or of a table
MAX_NAME_BYTES, MAX_DIMS = 65_535, 4
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a value → its format in `struct`. The two others are texts and lists."""
STRING, LIST = 8, 9
SPLIT = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
}
"""Number of a tensor type → its name, and the values and the bytes of a block."""


@dataclass(frozen=True)
class Architecture:
    """One `general.architecture` of GGUF, and the settings that are fixed in llama.cpp's code for it."""

    name: str
    activation: str
    """Activation of the feed-forward, by its name in glassformer."""
    turns_neighbours: bool = False
    """True if rotary positions rotate entries 2i and 2i + 1 of a head together, not i and i + K/2."""
    has_factors: bool = False
    """True if a tensor may divide each rotary frequency by its own factor."""
    has_out_bias: bool = True
    """True if the output projection of attention may have a bias."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "gpt2": Architecture("gpt2", "gelu_tanh"),
    "llama": Architecture("llama", "silu", turns_neighbours=True, has_factors=True),
    "mistral": Architecture("llama", "silu", turns_neighbours=True, has_factors=True),
    "qwen2": Architecture("qwen2", "silu", has_out_bias=False),
    "qwen3": Architecture("qwen3", "silu", has_out_bias=False),
}
"""`model_type` of transformers → architecture of GGUF."""


@dataclass(frozen=True)
class TensorPlace:
    """A tensor of a file: its type, its shape (last dimension last), and its bytes."""

    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """The metadata of a file by name, and its tensors."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorPlace]


def is_gguf(path: Path) -> bool:
    """Return True for a file that begins as GGUF or has its suffix."""
    if not path.is_file():
        return False
    with files.reading(path), open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC or path.suffix == SUFFIX


def read_header(path: Path) -> Header:
    """Read the header; raise `UserError` for a damaged file, or for a model that cannot be imported."""
    try:
        with files.reading(path), open(path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ValueError("it is not a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = _Reader(data).header()
        _require_supported(header.metadata, path)
    except (ValueError, struct.error) as error:
        files.refuse_objects(path)
        reason = "it is cut: download it again" if isinstance(error, struct.error) else error
        raise UserError(f"{path} cannot be imported: {reason}") from error
    return header


def _require_supported(metadata: Mapping[str, Any], path: Path) -> None:
    """Raise `ValueError` for a file whose model has no counterpart, or which is not a whole model."""
    kind, name = metadata.get("general.type", "model"), metadata.get(ARCHITECTURE)
    if kind != "model":
        raise ValueError(f"general.type: expected model, got {shown(str(kind))}")
    if metadata.get("split.count", 1) not in (0, 1) or SPLIT.search(path.name):
        raise ValueError("it is one part of a split file: join the parts with llama.cpp's llama-gguf-split --merge")
    known = list(dict.fromkeys(architecture.name for architecture in ARCHITECTURES.values()))
    if name not in known:
        raise ValueError(f"{ARCHITECTURE} {shown(str(name))} is not supported (known: {', '.join(known)})")
    if metadata.get(f"{name}.expert_count"):
        raise ValueError(f"it is a mixture of {metadata[f'{name}.expert_count']} experts, which is not supported")


class _Reader:
    """Reads a header from the bytes of a file; raises `ValueError` or `struct.error` for damage."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, len(MAGIC)

    def header(self) -> Header:
        version = self._number("I")
        if version not in VERSIONS:
            raise ValueError(f"its version is {version}, and the supported ones are 2 and 3 (little-endian)")
        n_tensors, n_metadata = self._count("tensors"), self._count("metadata")
        metadata: dict[str, Any] = {}
        for _ in range(n_metadata):
            name = self._text(MAX_NAME_BYTES)
            if name in metadata:
                raise ValueError(f"its metadata has {shown(name)} twice")
            metadata[name] = self._value(name)
        return Header(metadata, self._tensors(n_tensors, metadata))

    def _tensors(self, n_tensors: int, metadata: Mapping[str, Any]) -> dict[str, TensorPlace]:
        listed = [self._tensor() for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment: expected a power of two, got {alignment!s:.20}")
        start = end = _aligned(self._at, alignment)
        places: dict[str, TensorPlace] = {}
        for name, kind, shape, n_bytes, offset in listed:
            begin = _aligned(end, alignment)
            if name in places or offset != begin - start:
                raise ValueError(f"its table lists {shown(name)} twice, or at a wrong place")
            end = begin + n_bytes
            places[name] = TensorPlace(kind, shape, begin, end)
        if places and end > len(self._data):
            raise ValueError(f"it is cut: its tensors end at byte {end:,} of {len(self._data):,}: download it again")
        return places

    def _tensor(self) -> tuple[str, str, tuple[int, ...], int, int]:
        """Return the name, type, shape, number of bytes and offset of the next tensor of the table."""
        name, n_dims = self._text(MAX_NAME_BYTES), self._number("I")
        if not 1 <= n_dims <= MAX_DIMS:
            raise ValueError(f"{shown(name)} has {n_dims} dimensions")
        shape = tuple(self._number("Q") for _ in range(n_dims))[::-1]
        number, offset = self._number("I"), self._number("Q")
        if number not in TYPES:
            known = ", ".join(kind for kind, _, _ in TYPES.values())
            raise ValueError(f"{shown(name)} has the tensor type {number}, which is not supported (known: {known})")
        kind, n_values, n_bytes = TYPES[number]
        if 0 in shape:
            raise ValueError(f"{shown(name)} has no values")
        if shape[-1] % n_values:
            raise ValueError(f"{shown(name)} has rows of {shape[-1]:,} values, not whole blocks of {n_values} ({kind})")
        return name, kind, shape, math.prod(shape) // n_values * n_bytes, offset

    def _value(self, name: str) -> Any:
        """Return the next value; a float of 32 bits becomes the shortest decimal number that rounds to it."""
        kind = self._number("I")
        if kind == STRING:
            return self._text(MAX_HEADER_BYTES)
        if SCALARS.get(kind) == "f":
            return _shortest(self._number("f"))
        if kind in SCALARS:
            return self._number(SCALARS[kind])
        n_items = 0
        if kind == LIST:
            kind, n_items = self._number("I"), self._count(name)
        if kind == STRING:
            return [self._text(MAX_HEADER_BYTES) for _ in range(n_items)]
        if kind not in SCALARS:
            raise ValueError(f"the value of {shown(name)} has the unknown type {kind}")
        return list(self._numbers(f"{n_items}{SCALARS[kind]}"))

    def _count(self, what: str) -> int:
        n_items: int = self._number("Q")
        if n_items > MAX_ITEMS:
            raise ValueError(f"{shown(what)} has {n_items:,} items, more than {MAX_ITEMS:,}")
        return n_items

    def _text(self, max_bytes: int) -> str:
        n_bytes = self._number("Q")
        if n_bytes > max_bytes:
            raise ValueError(f"a text in its header has {n_bytes:,} bytes, more than {max_bytes:,}")
        try:
            (value,) = self._numbers(f"{n_bytes}s")
            return str(value, "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"a text in its header is not UTF-8: {error.object[:40]!r}") from error

    def _number(self, code: str) -> Any:
        return self._numbers(code)[0]

    def _numbers(self, code: str) -> tuple[Any, ...]:
        code = f"<{code}"
        if self._at > MAX_HEADER_BYTES:
            raise ValueError(f"its header has more than {MAX_HEADER_BYTES:,} bytes")
        values = struct.unpack_from(code, self._data, self._at)
        self._at += struct.calcsize(code)
        return values


def _aligned(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment


def _shortest(value: float) -> float:
    """Return the decimal number with the fewest digits that rounds to the same float of 32 bits.

    >>> _shortest(9.999999747378752e-06)
    1e-05
    """
    if not abs(value) < 1e38:
        return value
    decimals = (float(f"{value:.{n}g}") for n in range(1, 9))
    return next((x for x in decimals if struct.pack("<f", x) == struct.pack("<f", value)), value)
