"""Replay: repeated steps give equal results."""

import platform
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from glassformer import __version__, api
from glassformer.common.errors import UserError
from glassformer.nn.kernels import processor
from glassformer.store import checkpoint
from glassformer.store.manifest import Manifest
from glassformer.training import host
from runs import MODEL, Recording, label_run, pair_run, tiny_run, write_text

RUNS = {
    "text": lambda folder: tiny_run(
        write_text(folder), model=replace(MODEL, residual_dropout=0.2), ema_decay=0.9, grad_accumulation=2
    ),
    "pairs": pair_run,
    "labels": label_run,
}


@pytest.mark.parametrize("name", RUNS)
def test_a_replay_gives_the_same_bits_and_writes_nothing(name: str, tmp_path: Path) -> None:
    run = RUNS[name](tmp_path)
    api.train(replace(run, train=replace(run.train, checkpoint_every=8)), tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    replay = api.replay(tmp_path / "run")
    assert (replay.differing, replay.is_same_machine) == ([], True)
    assert replay.end == 20
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_replay_finds_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api.train(tiny_run(write_text(tmp_path)), tmp_path / "run")
    from glassformer.training import loop

    monkeypatch.setattr(loop, "schedule_factor", lambda *a: 0.5 if a[1] == 15 else 1.0)
    replay = api.replay(tmp_path / "run", Recording())
    assert any(name.endswith("exp_avg") for name in replay.differing) and "seconds" not in replay.differing


def test_a_replay_compares_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that an older checkpoint does not have is not compared; a CPU without bfloat16 is a different machine."""
    from glassformer.training import loop

    real = loop.made_with
    old = {"torch", "device", "threads", "processes"}
    monkeypatch.setattr(loop, "made_with", lambda *a: {k: v for k, v in real(*a).items() if k in old})
    api.train(tiny_run(write_text(tmp_path), checkpoint_every=7), tmp_path / "run")
    monkeypatch.setattr(loop, "made_with", real)
    api.resume(tmp_path / "run", reporter := Recording())
    assert api.replay(tmp_path / "run").is_same_machine
    assert not [line for line in reporter.messages if "was made with" in line]

    api.train(tiny_run(write_text(tmp_path), checkpoint_every=7), tmp_path / "new")
    monkeypatch.setattr(
        processor, "this", replace(processor.this, name="x86_64 Another AVX2", known=processor.FIXED["onednn"])
    )
    monkeypatch.setattr(host.np, "__version__", "1.0")
    now = real(torch.device("cpu"), 1)
    assert not api.replay(tmp_path / "new").is_same_machine
    api.resume(tmp_path / "new", reporter := Recording())
    [message] = [line for line in reporter.messages if "was made with" in line]
    assert "; cpu " in message and message.count(", now ") == 2
    assert ", now x86_64 Another AVX2" in message  # plain PyTorch has words more
    assert message.endswith(": the result is equal up to rounding, not bit for bit")
    assert now["glassformer"] == __version__ and now["python"] == platform.python_version()


def test_a_replay_needs_two_checkpoints(tmp_path: Path) -> None:
    api.train(tiny_run(write_text(tmp_path), keep_checkpoints=1, select="last", eval_every=20), tmp_path / "run")
    with pytest.raises(UserError, match=r"a replay needs 2 intact checkpoints, and .* has 1: train"):
        api.replay(tmp_path / "run")


def test_a_replay_compares_the_weights_under_an_average(tmp_path: Path) -> None:
    folder = api.train(tiny_run(write_text(tmp_path), ema_decay=0.9), tmp_path / "run").folder
    path = checkpoint.path_of(folder, 20)
    weights = load_file(path / checkpoint.UNAVERAGED)
    name = next(iter(weights))
    save_file(weights | {name: weights[name] + 1}, path / checkpoint.UNAVERAGED)
    names = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file() and p.name != "manifest.json")
    Manifest.of(path, "checkpoint", 20, names).write(path)
    assert api.replay(folder).differing == [name]
