"""Snapshots: copied at once, written in the background."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from glassformer import api
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config.train import PlateauSchedule
from glassformer.store import checkpoint
from glassformer.store.checkpoint import TrainingState
from glassformer.store.model_directory import WEIGHTS, read_model, weights_of
from glassformer.training import checkpointer
from glassformer.training.checkpointer import Checkpointer, Snapshot, publish_step
from glassformer.training.distributed.ranks import Ranks
from runs import TIMES, Recording, remains, tiny_run, write_text


def snapshot(step: int, **changes: Any) -> Snapshot:
    state = TrainingState({"step": step}, {"w/step": torch.tensor(float(step))})
    return replace(Snapshot(step, {"w": torch.full((3,), float(step))}, state, step, frozenset()), **changes)


def nothing(folder: Path, weights: Any) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def test_training_during_a_save_does_not_change_the_checkpoint(tmp_path: Path) -> None:
    may_write, seen = threading.Event(), []

    def slow(folder: Path, weights: Any) -> None:
        assert may_write.wait(60)
        seen.append(weights["w"].clone())
        nothing(folder, weights)

    saver = Checkpointer(tmp_path, slow, in_background=True, log=print)
    taken = snapshot(1)
    saver.save(taken)
    assert checkpoint.steps(tmp_path) == []
    assert isinstance(taken.weights, dict) and isinstance(taken.state.optimizer, dict)
    taken.weights["w"].fill_(7.0)
    taken.state.optimizer["w/step"].fill_(7.0)
    may_write.set()
    saver.wait()
    assert checkpoint.steps(tmp_path) == [1]
    assert seen[0].tolist() == [1.0, 1.0, 1.0]
    assert checkpoint.load_state(checkpoint.path_of(tmp_path, 1)).optimizer["w/step"] == 1.0  # type: ignore[index,call-overload]


@pytest.mark.parametrize("then", ["wait", "save"])
def test_a_background_error_is_raised_once_by_the_next_call(then: str, tmp_path: Path) -> None:
    def fails(folder: Path, weights: Any) -> None:
        raise UserError("the disk is full")

    saver = Checkpointer(tmp_path, fails, in_background=True, log=print)
    saver.save(snapshot(1))
    with pytest.raises(UserError, match="the disk is full"):
        saver.wait() if then == "wait" else saver.save(snapshot(2))
    saver.wait()
    assert checkpoint.steps(tmp_path) == [] and not list(tmp_path.rglob("*.tmp*"))


def test_a_full_disk_in_the_background_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(write_text(tmp_path), checkpoint_every=5)
    real = checkpoint.save

    def full(folder: Path, step: int, *args: Any) -> Path:
        if step == 15:
            raise OSError(28, "No space left on device")
        return real(folder, step, *args)

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(UserError, match=r"cannot write .*run: No space left on device"):
        api.train(run, tmp_path / "run")
    assert checkpoint.steps(tmp_path / "run") == [5, 10]
    monkeypatch.undo()
    api.resume(tmp_path / "run")
    api.train(run, tmp_path / "whole")
    assert remains(tmp_path / "run") == remains(tmp_path / "whole")


def test_background_saving_gives_equal_checkpoints(tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path), ema_decay=0.9, checkpoint_every=3)
    api.train(run, tmp_path / "a")
    at_once = replace(run, train=replace(run.train, background_saving=False))
    api.train(at_once, tmp_path / "b")
    a, b = remains(tmp_path / "a"), remains(tmp_path / "b")
    assert {name for name in a if a[name] != b[name]} == {"manifest"}  # run.toml has the setting


def test_the_log_has_the_time_that_saving_took(tmp_path: Path) -> None:
    api.train(tiny_run(write_text(tmp_path), checkpoint_every=7, log_every=5), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    with_save = [line["step"] for line in lines if line.get("save_ms", 0) > 0]
    assert (
        with_save == [10, 15] and "save_ms" in TIMES
    )  # of steps 7 and 10, then of 14; the last line is before step 20


def test_a_failed_save_ends_the_run_at_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.training.loop import Trainer

    taken: list[int] = []
    real = Trainer._one_step

    def after_saves(self: Trainer) -> Any:
        self.checkpointer.drain()
        taken.append(self.progress.step)
        return real(self)

    def full(*args: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Trainer, "_one_step", after_saves)
    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(UserError, match="No space left on device"):
        api.train(tiny_run(write_text(tmp_path), max_steps=1000, checkpoint_every=5, eval_every=1000), tmp_path / "run")
    assert max(taken) == 5, "the run continued until the next save"


def test_an_old_checkpoint_that_cannot_be_deleted_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = checkpoint.shutil.rmtree  # type: ignore[attr-defined]

    def busy(path: Path, *args: Any, **options: Any) -> None:
        if Path(path).name == "step-4" and not options.get("ignore_errors"):
            raise OSError(39, "Directory not empty")
        real(path, *args, **options)

    monkeypatch.setattr(checkpoint.shutil, "rmtree", busy)  # type: ignore[attr-defined]
    reporter = Recording()
    api.train(tiny_run(write_text(tmp_path), checkpoint_every=4, eval_every=20), tmp_path / "run", reporter)
    assert any("cannot be deleted yet: Directory not empty" in line for line in reporter.messages)
    assert checkpoint.steps(tmp_path / "run") == [4, 16, 20]


def test_a_model_read_during_publication_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is published again between the reader's manifest and its weights, three times in a row."""
    folder = api.train(tiny_run(write_text(tmp_path), select="last"), tmp_path / "run").folder
    (folder / ".owner.json").touch()  # as during training
    publications, digest = iter((10, 20, 10)), files.sha256

    def published_meanwhile(path: Path) -> str:
        if path == folder / WEIGHTS and (step := next(publications, None)) is not None:
            monkeypatch.setattr(files, "sha256", digest)  # publication computes digests too
            publish_step(folder, step)
            monkeypatch.setattr(files, "sha256", published_meanwhile)
        return digest(path)

    monkeypatch.setattr(files, "sha256", published_meanwhile)
    found = read_model(folder)
    assert next(publications, None) is None and found.manifest.step == 10
    of_step = load_file(checkpoint.path_of(folder, 10) / WEIGHTS)
    assert all(torch.equal(x, of_step[name]) for name, x in weights_of(found.network).items())


def test_a_checkpoint_from_before_any_evaluation_keeps_the_plateau(tmp_path: Path) -> None:
    """Otherwise a run that is rolled back to it would continue with a rate that dropped later."""
    run = tiny_run(write_text(tmp_path), schedule=PlateauSchedule(), on_nonfinite="rollback", keep_checkpoints=9)
    api.train(run, tmp_path / "run")
    assert checkpoint.load_numbers(checkpoint.path_of(tmp_path / "run", 0))["plateau"]["factor"] == 1.0


@pytest.mark.parametrize("failing", ["write_parts", "join_parts"])
def test_parts_that_cannot_be_written_leave_nothing(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk, the folder of the parts is removed at once, not by the next run."""

    def full(tensors: Any, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "half").write_bytes(b"x")
        raise UserError("cannot write: No space left on device")

    def written(tensors: Any, folder: Path) -> None:
        folder.mkdir(parents=True)

    monkeypatch.setattr(checkpointer, "write_parts", written)
    monkeypatch.setattr(checkpointer, failing, full)
    ranks = Ranks()
    ranks.holds_parts = True
    saver = Checkpointer(tmp_path, nothing, in_background=True, log=print, ranks=ranks)
    with pytest.raises(UserError, match="No space left"):
        saver.save(snapshot(3))
    assert not list(tmp_path.rglob("*.tmp*"))
