"""Reading files of tensors."""

from pathlib import Path

import pytest
import torch

from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.store.tensors import read_shapes, save_tensors


def test_a_header_whose_length_looks_like_a_pickle_is_read(tmp_path: Path) -> None:
    """Eight bytes of length come first: 0x280 of them are `\\x80\\x02`, with which a pickle of protocol 2 begins."""
    found = set()
    for n in range(480, 1600, 8):  # headers are filled up to a multiple of 8
        path = tmp_path / f"{n}.safetensors"
        save_tensors({"x" * n: torch.zeros(2)}, path)
        assert list(read_shapes(path)) == ["x" * n]
        found.add(path.read_bytes()[:2])
    assert {b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"} <= found


def test_a_pickle_is_refused_as_a_pickle(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    torch.save({"x": torch.zeros(2)}, path, _use_new_zipfile_serialization=False)
    assert files.holds_objects(path.read_bytes()[:256])
    with pytest.raises(UserError, match="is a pickle"):
        read_shapes(path)
