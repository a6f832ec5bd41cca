"""A model directory of a hostile author: its manifest agrees with all of its files."""

import functools
import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.common.errors import UserError
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import read_model
from glassformer.tokenization.tokenizer import Tokenizer

TEXT = "to be or not to be"
TOKENIZER = Tokenizer.train([TEXT], vocab_size=0, scheme="char")
WITHIN_S = 20.0
"""CPU seconds in which every file is read or refused, even on a slow machine; a successful attack takes minutes."""


def refused(attack: Callable[[], object], *words: str) -> str:
    """Require that an attack is refused in time by one sentence with all of the words; return the sentence."""
    begin = time.process_time()
    with pytest.raises(UserError) as caught:
        attack()
    took = time.process_time() - begin
    message = str(caught.value)
    assert took < WITHIN_S, f"{took:.1f} s until: {message}"
    assert "\n" not in message and len(message) < 2000, "expected one sentence"
    assert all(word in message for word in words), message
    return message


def sign(folder: Path) -> None:
    """Write a manifest that agrees with the current files of a folder."""
    old = Manifest.read(folder)
    names = sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json" and "checkpoints" not in path.relative_to(folder).parts
    )
    Manifest.of(folder, old.kind, old.step, names).write(folder)


def plant(folder: Path, name: str, content: bytes | str) -> None:
    """Replace a file, and write a manifest that agrees with it."""
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    sign(folder)


def edit_json(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Change a JSON file of a folder and its manifest; `change` works in place or returns another value."""
    value = json.loads((folder / name).read_text("utf-8"))
    changed = change(value)
    plant(folder, name, json.dumps(value if changed is None else changed))


def safetensors(header: bytes | dict[str, Any], data: bytes = b"\0" * 16) -> bytes:
    """Return a file of tensors with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> dict[str, Any]:
    """Return the entry of a header for one tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def read_spoiled(directory: Path) -> Callable[[], object]:
    return functools.partial(read_model, directory)
