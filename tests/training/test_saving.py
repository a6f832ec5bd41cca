"""Snapshots: taken in a moment, written in the background, and replayed."""

import io
import json
import platform
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glassformer import __version__, api
from glassformer.config.train import PlateauSchedule
from glassformer.distributed.ranks import Ranks
from glassformer.errors import UserError
from glassformer.store import checkpoint
from glassformer.store.checkpoint import TrainingState
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import read_model
from glassformer.training import checkpointer, machine
from glassformer.training.checkpointer import Checkpointer, Snapshot, publish_step
from runs import MODEL, TIMES, Recording, label_run, pair_run, remains, tiny_run, write_text


def snapshot(step: int, **changes: Any) -> Snapshot:
    state = TrainingState({"step": step}, {"w/step": torch.tensor(float(step))})
    return replace(Snapshot(step, {"w": torch.full((3,), float(step))}, state, step, frozenset()), **changes)


def nothing(folder: Path, weights: Any) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def test_the_loop_goes_on_while_a_checkpoint_is_written_and_cannot_change_it(tmp_path: Path) -> None:
    may_write, seen = threading.Event(), []

    def slow(folder: Path, weights: Any) -> None:
        assert may_write.wait(30)
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
def test_what_goes_wrong_in_the_background_is_raised_once_by_what_comes_next(then: str, tmp_path: Path) -> None:
    def fails(folder: Path, weights: Any) -> None:
        raise UserError("the disk is full")

    saver = Checkpointer(tmp_path, fails, in_background=True, log=print)
    saver.save(snapshot(1))
    with pytest.raises(UserError, match="the disk is full"):
        saver.wait() if then == "wait" else saver.save(snapshot(2))
    saver.wait()
    assert checkpoint.steps(tmp_path) == [] and not list(tmp_path.rglob("*.tmp*"))


def test_a_full_disk_in_the_background_ends_a_run_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_saving_at_once_and_in_the_background_give_the_same(tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path), ema_decay=0.9, checkpoint_every=3)
    api.train(run, tmp_path / "a")
    at_once = replace(run, train=replace(run.train, background_saving=False))
    api.train(at_once, tmp_path / "b")
    a, b = remains(tmp_path / "a"), remains(tmp_path / "b")
    assert {name for name in a if a[name] != b[name]} == {"manifest"}  # of run.toml, which says how


def test_the_log_tells_what_saving_took_from_the_loop(tmp_path: Path) -> None:
    api.train(tiny_run(write_text(tmp_path), checkpoint_every=7, log_every=5), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    told = [line["step"] for line in lines if line.get("save_ms", 0) > 0]
    assert told == [10, 15] and "save_ms" in TIMES  # of steps 7 and 10, then of 14; that of 20 is behind the last line


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


def test_a_replay_sees_what_is_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api.train(tiny_run(write_text(tmp_path)), tmp_path / "run")
    from glassformer.training import loop

    real = loop._seed
    monkeypatch.setattr(loop, "schedule_factor", lambda *a: 0.5 if a[1] == 15 else 1.0)
    replay = api.replay(tmp_path / "run", Recording())
    assert real is loop._seed
    assert any(name.endswith("exp_avg") for name in replay.differing) and "seconds" not in replay.differing


def test_a_replay_says_whether_the_machine_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that is older than a key says nothing about it; a CPU without bfloat16 is another one."""
    from glassformer.training import run as run_module

    real = run_module.made_with
    old = {"torch", "device", "threads", "processes"}
    monkeypatch.setattr(run_module, "made_with", lambda *a: {k: v for k, v in real(*a).items() if k in old})
    api.train(tiny_run(write_text(tmp_path), checkpoint_every=7), tmp_path / "run")
    monkeypatch.setattr(run_module, "made_with", real)
    api.resume(tmp_path / "run", reporter := Recording())
    assert api.replay(tmp_path / "run").is_same_machine
    assert not [line for line in reporter.said if "was made with" in line]

    api.train(tiny_run(write_text(tmp_path), checkpoint_every=7), tmp_path / "new")
    monkeypatch.setattr(machine, "_cpu", lambda: "x86_64 Another AVX2")
    monkeypatch.setattr(machine.np, "__version__", "1.0")
    now = real(torch.device("cpu"), 1)
    assert not api.replay(tmp_path / "new").is_same_machine
    api.resume(tmp_path / "new", reporter := Recording())
    [told] = [line for line in reporter.said if "was made with" in line]
    assert "; cpu " in told and told.count(", now ") == 2
    assert ", now x86_64 Another AVX2: it goes on equal to rounding, not to the bit" in told
    assert now["glassformer"] == __version__ and now["python"] == platform.python_version()


@pytest.mark.parametrize("is_told", [True, False])
def test_the_cpu_is_named_as_far_as_the_system_tells(is_told: bool, monkeypatch: pytest.MonkeyPatch) -> None:

    def opened(path: str, **options: Any) -> Any:
        if not is_told:
            raise FileNotFoundError(path)
        return io.StringIO("processor\t: 0\nmodel name\t: Some  CPU @ 2.00GHz\nflags\t: fpu\n")

    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True, "amx_bf16": False})
    found = machine._cpu()
    capability = torch.backends.cpu.get_cpu_capability()
    model = " Some CPU @ 2.00GHz" if is_told else ""
    assert found == f"{platform.machine()}{model} {capability} avx512_bf16"


def test_a_replay_needs_two_checkpoints(tmp_path: Path) -> None:
    api.train(tiny_run(write_text(tmp_path), keep_checkpoints=1, select="last", eval_every=20), tmp_path / "run")
    with pytest.raises(UserError, match="has 1 intact checkpoints, and a replay goes from one to the next"):
        api.replay(tmp_path / "run")


def test_a_save_that_failed_ends_the_run_at_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.training.loop import Trainer

    taken: list[int] = []
    real = Trainer._one_step

    def slow(self: Trainer) -> Any:
        time.sleep(0.02)
        taken.append(self.progress.step)
        return real(self)

    def full(*args: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Trainer, "_one_step", slow)
    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(UserError, match="No space left on device"):
        api.train(tiny_run(write_text(tmp_path), max_steps=1000, checkpoint_every=5, eval_every=1000), tmp_path / "run")
    assert max(taken) < 9, "it went on until the next save"


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
    assert any("cannot be deleted yet: Directory not empty" in line for line in reporter.said)
    assert checkpoint.steps(tmp_path / "run") == [4, 16, 20]


def test_a_model_that_is_being_published_is_read_whole(tmp_path: Path) -> None:
    folder = api.train(tiny_run(write_text(tmp_path), select="last"), tmp_path / "run").folder
    (folder / ".owner.json").touch()  # as beside a trainer
    ends = threading.Event()

    def in_turn() -> None:
        while not ends.is_set():
            for step in (10, 20):
                publish_step(folder, step)
                time.sleep(0.03)

    thread = threading.Thread(target=in_turn)
    thread.start()
    try:
        found = {read_model(folder).manifest.step for _ in range(60)}
    finally:
        ends.set()
        thread.join()
    assert found <= {10, 20}


def test_a_replay_looks_at_the_weights_behind_an_average_too(tmp_path: Path) -> None:
    folder = api.train(tiny_run(write_text(tmp_path), ema_decay=0.9), tmp_path / "run").folder
    path = checkpoint.path_of(folder, 20)
    weights = load_file(path / checkpoint.UNAVERAGED)
    name = next(iter(weights))
    save_file(weights | {name: weights[name] + 1}, path / checkpoint.UNAVERAGED)
    names = sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file() and p.name != "manifest.json")
    Manifest.of(path, "checkpoint", 20, names).write(path)
    assert api.replay(folder).differing == [name]


def test_a_checkpoint_from_before_any_evaluation_keeps_the_plateau(tmp_path: Path) -> None:
    """Else a run that is rolled back to it would go on with a rate that had dropped later."""
    run = tiny_run(write_text(tmp_path), schedule=PlateauSchedule(), on_nonfinite="rollback", keep_checkpoints=9)
    api.train(run, tmp_path / "run")
    assert checkpoint.load_numbers(checkpoint.path_of(tmp_path / "run", 0))["plateau"]["factor"] == 1.0


@pytest.mark.parametrize("failing", ["write_parts", "join_parts"])
def test_parts_of_several_processes_that_cannot_be_written_leave_nothing(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk: the folder of the parts is removed at once, not by the next run."""

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
