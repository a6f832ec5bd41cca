"""A signal in any phase of a run ends it after the step, and the run then ends with equal bits."""

import itertools
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch

from faults.children import SECONDS, done, fork, wait, wait_until
from glassformer import api
from glassformer.common.errors import Interrupted
from glassformer.config.run import Run
from glassformer.store import checkpoint, tensors
from glassformer.tasks.reporting import Silent
from runs import remains, tiny_run, write_text

LONG = 4 * SECONDS
"""Seconds that a phase waits at most."""


def run_of(folder: Path) -> Run:
    return tiny_run(write_text(folder), max_steps=6, eval_every=2, log_every=1, select="average", compile=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a run without a signal."""
    folder = tmp_path_factory.mktemp("whole")
    assert done(lambda: with_eager_compiler(lambda: api.train(run_of(folder), folder / "run"))) == 0
    return remains(folder / "run")


def with_eager_compiler(work: Callable[[], object]) -> None:
    """Do the work with a compiler that leaves the function unchanged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda function, **_: function)
        work()


PHASES: dict[str, tuple[str, int]] = {
    "reading": ("glassformer.data.corpus.Corpus.__init__", 1),
    "learning": ("glassformer.data.tokens.Tokenizer.train", 1),
    "encoding": ("glassformer.tokenization.tokenizer.Tokenizer.encode_batch", 1),
    "building": ("glassformer.training.init_from.new_network", 1),
    "compiling": ("torch.compile", 1),
    "first step": ("glassformer.training.step.TrainStep._accumulate", 1),
    "making a batch": ("glassformer.data.batching.Windows.batch", 3),
    "later step": ("glassformer.training.step.TrainStep._accumulate", 4),
    "evaluation": ("glassformer.training.evaluations.evaluate_loss", 1),  # two splits per evaluation
    "last evaluation": ("glassformer.training.evaluations.evaluate_loss", 5),
    "mean of checkpoints": ("glassformer.training.loop.average_directories", 1),
    "evaluation of the mean": ("glassformer.training.evaluations.evaluate_loss", 7),
}
"""A function that each phase calls, and the number of the call that takes long."""
BEFORE_THE_LOOP = ("reading", "learning", "encoding", "building")
AFTER_THE_LAST_STEP = ("last evaluation", "mean of checkpoints", "evaluation of the mean")


def takes_long(
    real: Callable[..., Any], number: int, has_begun: Path, wait_: Callable[[], object]
) -> Callable[..., Any]:
    """Return the function with one call that waits first, after it has made the file `has_begun`."""
    n_calls = 0

    def call(*args: Any, **options: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == number:
            has_begun.touch()
            wait_()
        return real(*args, **options)

    return call


def appears(file: Path) -> None:
    """Wait for a file."""
    deadline = time.monotonic() + LONG
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def start(work: Callable[[], object]) -> int:
    """Do the work in a child, which exits like the command line after a signal; return its process id."""

    def child() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            work()
        except Interrupted as stop:
            os._exit(stop.exit_code)
        except KeyboardInterrupt:
            os._exit(128 + signal.SIGINT)

    return fork(child)


@pytest.mark.parametrize(
    ("phase", "which"), list(zip(PHASES, itertools.cycle([signal.SIGTERM, signal.SIGINT]), strict=False))
)
def test_a_signal_in_any_phase_loses_nothing(
    phase: str, which: signal.Signals, whole: dict[str, Any], tmp_path: Path
) -> None:
    """Before the loop, the process ends at once; then it finishes its step; after the last step, the run."""
    run, folder, has_begun, goes_on = (run_of(tmp_path), *(tmp_path / name for name in ("run", "begun", "goes on")))
    name, number = PHASES[phase]

    def slow(function: Callable[..., Any]) -> Callable[..., Any]:
        return takes_long(function, number, has_begun, lambda: appears(goes_on))

    def train() -> None:
        with pytest.MonkeyPatch.context() as patch:
            if phase == "compiling":
                patch.setattr(torch, "compile", lambda function, **_: slow(function))
            else:
                patch.setattr(torch, "compile", lambda function, **_: function)
                patch.setattr(name, slow(resolve_name(name)))
            api.train(run, folder)

    process = start(train)
    wait_until(has_begun.exists, process)
    os.kill(process, which)
    if phase not in BEFORE_THE_LOOP:
        goes_on.touch()
    code = wait(process)
    if phase in BEFORE_THE_LOOP:
        assert code in (-which, 128 + which) and not folder.exists()
    else:
        assert code == (0 if phase in AFTER_THE_LAST_STEP else 128 + which) and checkpoint.steps(folder)

    def go_on() -> None:
        with_eager_compiler(lambda: api.resume(folder) if folder.exists() else api.train(run, folder))

    assert done(go_on) == 0
    found = remains(folder)
    assert all(found[name] == whole[name] for name in whole if name not in ("manifest", "numbers"))
    assert found["numbers"] | {"data_digest": 0} == whole["numbers"] | {"data_digest": 0}


@pytest.fixture(scope="module")
def averaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    """A run with a moving average, whose weights an evaluation replaces, and its result without a signal."""
    folder = tmp_path_factory.mktemp("averaged")
    run = tiny_run(write_text(folder), max_steps=6, eval_every=3, log_every=1, ema_decay=0.5)
    assert done(lambda: api.train(run, folder / "run")) == 0
    return run, remains(folder / "run")


class Told(Silent):
    """A reporter that makes a file after the message that the run stops later."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def log(self, text: str) -> None:
        if "a second signal ends it at once" in text:
            (complete := self.place.with_suffix(".part")).write_text(text)
            complete.replace(self.place)


@pytest.mark.parametrize("is_second", [False, True], ids=["one signal", "two signals"])
def test_a_signal_while_a_slow_disk_writes_a_checkpoint(
    is_second: bool, averaged: tuple[Run, dict[str, Any]], tmp_path: Path
) -> None:
    """A message appears; the checkpoint is completed, or a second signal ends the process with the one before."""
    (run, whole), folder = averaged, tmp_path / "run"
    run = replace(run, train=replace(run.train, checkpoint_every=1))
    has_begun, told, is_fast = (tmp_path / name for name in ("begun", "told", "fast"))

    def train() -> None:
        with pytest.MonkeyPatch.context() as patch:
            slow = takes_long(tensors.save_file, 6, has_begun, lambda: appears(is_fast))  # of the second checkpoint
            patch.setattr(tensors, "save_file", slow)
            api.train(run, folder, Told(told))

    process = start(train)
    wait_until(has_begun.exists, process)
    os.kill(process, signal.SIGTERM)
    wait_until(told.exists, process)
    assert "continues from step 1" in told.read_text()
    if is_second:
        os.kill(process, signal.SIGTERM)
        assert wait(process) == -signal.SIGTERM
        assert checkpoint.steps(folder) == [1] and list((folder / checkpoint.FOLDER).glob(".*.tmp-*"))
    else:
        is_fast.touch()
        assert wait(process) == 128 + signal.SIGTERM
        assert checkpoint.steps(folder)[-1] >= 2
    assert done(lambda: api.resume(folder)) == 0
    assert not list((folder / checkpoint.FOLDER).glob(".*"))
    found = remains(folder)
    assert all(found[name] == whole[name] for name in ("tensors", "published", "metrics"))
