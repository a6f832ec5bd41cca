"""Shared fixtures of this folder: a tokenizer that needs no training, and files from text."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from glassformer.data.tokens import TokenFile


class Utf8Tokenizer:
    """A tokenizer with the id byte + 1 per byte; id 0 ends a document. It has only the methods that `data` needs."""

    vocab_size = 257
    eos_id: int | None = 0
    start_id: int | None = None
    unknown_id: int | None = None
    encodes_in_pieces = True
    fingerprint = "utf-8"

    def __init__(self) -> None:
        self.n_calls = 0

    def encode_batch(self, texts: Sequence[str], *, dropout: float = 0.0, seed: int | None = None) -> list[list[int]]:
        self.n_calls += 1
        return [[byte + 1 for byte in text.encode()] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(int(i) - 1 for i in ids if i != self.eos_id).decode()


@pytest.fixture
def utf8() -> Utf8Tokenizer:
    return Utf8Tokenizer()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Write exactly these bytes to a file below the test's folder."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


@pytest.fixture
def documents() -> Callable[..., TokenFile]:
    """A token file in memory with documents of these lengths; each id is its own position."""

    def build(*lengths: int) -> TokenFile:
        n_tokens = sum(lengths)
        return TokenFile(
            name="the training text",
            ids=np.arange(n_tokens, dtype=np.uint32),
            document_starts=np.cumsum([0, *lengths[:-1]], dtype=np.int64),
            n_bytes=n_tokens,
            n_characters=n_tokens,
        )

    return build
