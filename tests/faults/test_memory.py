"""Too little memory: one sentence with the requested size and the setting to lower; checkpoints are kept."""

import errno
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from faults.children import done
from glassformer import api
from glassformer.common import files
from glassformer.common.errors import Note, UserError, enough_memory
from glassformer.config.run import Run
from glassformer.config.transformer import Stack
from glassformer.data.tokens import TokenCache, content_hash, open_streams, prepare
from glassformer.models.devices import InParts
from glassformer.store import checkpoint
from glassformer.store.tensors import read_tensors, save_tensors
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.training import loop
from runs import MODEL, text_corpus, tiny_run, write_text

ROOM = 1 << 29
"""Bytes that the process may allocate in addition."""


def limited(work: Callable[[], object], room: int = ROOM) -> None:
    """Do the work in a child whose address space cannot grow by more than `room` bytes."""

    def child() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
        work()

    assert done(child) == 0


def refused(run: Run, folder: Path, *words: str) -> None:
    with pytest.raises(UserError) as error:
        api.train(run, folder)
    text = str(error.value)
    assert text.startswith("not enough memory") and "\n" not in text
    for word in ("lower train.batch_size", "model.d_model", f"earlier checkpoints stay in {folder}", *words):
        assert word in text, text


def test_a_batch_that_is_too_large_is_computed_in_parts() -> None:
    """The real allocator refuses 2 GiB, and gives a part of it after the failed attempt."""

    def work(rows: range) -> float:
        return float(torch.ones(len(rows), 1 << 23).sum())  # 32 MiB per row

    def in_parts() -> None:
        with pytest.warns(Note, match="batches are now computed in"):
            assert sum(InParts()(range(64), work)) == 64 << 23

    limited(in_parts)


def test_a_row_that_is_too_large_is_one_sentence(tmp_path: Path) -> None:
    model = replace(MODEL, max_len=4096, decoder=Stack(1, 2, d_ff=1 << 16))  # 1 GiB for the values of a row
    run = tiny_run(write_text(tmp_path, 1000), model=model, batch_size=2)
    limited(lambda: refused(run, tmp_path / "run", "for another ", "iB at step 1: ", "(now 2)"))
    assert checkpoint.steps(tmp_path / "run") == []


@pytest.mark.parametrize("shape", [{"d_model": 4096}, {"d_model": 1024, "n_layers": 60}])
def test_a_model_that_is_too_large_is_one_sentence(tmp_path: Path, shape: dict[str, int]) -> None:
    d_model, n_layers = shape["d_model"], shape.get("n_layers", 1)
    model = replace(MODEL, d_model=d_model, decoder=Stack(n_layers, 2, d_ff=4 * d_model))
    run = tiny_run(write_text(tmp_path), model=model)
    limited(lambda: refused(run, tmp_path / "run", "for another "))


def test_out_of_memory_during_a_run_keeps_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real allocator fails at step 7, after the checkpoints of steps 2, 4 and 6."""
    run, folder = tiny_run(write_text(tmp_path), max_steps=8, eval_every=2), tmp_path / "run"
    one_step = loop.Trainer._one_step

    def hungry(self: Any) -> Any:
        if self.progress.step == 6:
            torch.empty(1 << 42, dtype=torch.uint8)
        return one_step(self)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "_one_step", hungry)
        refused(run, folder, "not enough memory for another 4,096.0 GiB at step 7: ")
    assert checkpoint.steps(folder)[-1] == 6
    assert checkpoint.newest(folder, lambda text: None) == checkpoint.path_of(folder, 6)
    api.resume(folder)
    assert checkpoint.steps(folder)[-1] == 8


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), "not enough memory: do"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"),
            "for another 2.0 GiB: do",
        ),
        (RuntimeError("MPS backend out of memory (x). Tried to allocate 256.00 MB on"), "for another 256.0 MiB: do"),
        (
            RuntimeError("unable to mmap 3145728 bytes from file <m.safetensors>: Cannot allocate memory (12)"),
            "not enough memory for another 3.0 MiB: do",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "not enough memory: do"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 512 bytes."), "512 bytes: do"),
    ],
)
def test_memory_errors_of_torch_and_numpy_are_one_sentence(error: Exception, expected: str) -> None:
    with pytest.raises(UserError) as found, enough_memory("do"):
        raise error
    assert str(found.value).endswith(expected)


def test_tokens_that_cannot_be_mapped_are_not_replaced(tmp_path: Path) -> None:
    """The folder is intact, so it is not encoded again, and the disk is not blamed."""
    corpus = text_corpus(write_text(tmp_path))
    folder = prepare(corpus, Tokenizer.train(["ab"], vocab_size=0), TokenCache(tmp_path / "cache")).folder
    os.truncate(folder / "train.bin", 4 * ROOM)  # takes no room on the disk
    sidecar = files.read_json(folder / "tokens.json")
    del sidecar["sha256"]
    sidecar["train"]["files"]["train.bin"]["n_bytes"] = 4 * ROOM
    files.write_json(folder / "tokens.json", {"sha256": content_hash(sidecar), **sidecar})

    def opened() -> None:
        with pytest.raises(UserError, match=r"^not enough memory: do$"), enough_memory("do"):
            open_streams(folder, {"train": "the training text"}, checks_hashes=False)

    assert open_streams(folder, {"train": "the training text"}, checks_hashes=False) is not None
    limited(opened)


def test_weights_that_cannot_be_mapped_are_one_sentence(tmp_path: Path) -> None:
    """safetensors maps the file, and then torch maps it once more."""
    save_tensors({"x": torch.zeros(1 << 25)}, tmp_path / "x.safetensors")

    def read() -> None:
        with pytest.raises(UserError, match=r"^not enough memory.*: do$"), enough_memory("do"):
            read_tensors(tmp_path / "x.safetensors")

    for room in (1 << 26, 5 << 25):
        limited(read, room)


def test_other_errors_are_unchanged(tmp_path: Path) -> None:
    for error in (RuntimeError("shapes differ"), UserError("x"), ValueError("out of memory")):
        with pytest.raises(type(error), match=str(error)), enough_memory("do"):
            raise error
