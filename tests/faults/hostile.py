"""A model directory whose author is hostile: its manifest agrees with whatever stands in it."""

import functools
import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassformer.errors import UserError
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import read_model
from glassformer.tokenization.tokenizer import Tokenizer

TEXT = "to be or not to be"
TOKENIZER = Tokenizer.train([TEXT], vocab_size=0, scheme="char")
WITHIN_S = 20.0
"""CPU seconds in which any file is read or refused, on a slow machine too; an attack that works takes minutes."""


def refused(attack: Callable[[], object], *words: str) -> str:
    """The one sentence that refuses an attack, with all of the words in it, in time."""
    begin = time.process_time()
    with pytest.raises(UserError) as caught:
        attack()
    took = time.process_time() - begin
    message = str(caught.value)
    assert took < WITHIN_S, f"{took:.1f} s until: {message}"
    assert "\n" not in message and len(message) < 2000, "a sentence"
    assert all(word in message for word in words), message
    return message


def sign(folder: Path) -> None:
    """Writes the manifest that belongs to a folder's files as they are now."""
    old = Manifest.read(folder)
    names = sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != "manifest.json" and "checkpoints" not in path.relative_to(folder).parts
    )
    Manifest.of(folder, old.kind, old.step, names).write(folder)


def plant(folder: Path, name: str, content: bytes | str) -> None:
    """Puts a file in place of another, and signs."""
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    sign(folder)


def edit_json(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Changes what a JSON file of a folder says, and signs; the change is in place, or returns another value."""
    value = json.loads((folder / name).read_text("utf-8"))
    changed = change(value)
    plant(folder, name, json.dumps(value if changed is None else changed))


def safetensors(header: bytes | dict[str, Any], data: bytes = b"\0" * 16) -> bytes:
    """A file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> dict[str, Any]:
    """What a header says of one tensor."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def read_spoiled(directory: Path) -> Callable[[], object]:
    return functools.partial(read_model, directory)
