"""A signal in any phase of a run ends it soon, and the run then ends with equal bits."""

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch

from faults.children import done, fork, wait
from glassformer import api
from glassformer.config.run import Run
from glassformer.errors import Interrupted
from glassformer.store import checkpoint
from runs import remains, tiny_run, write_text

LONG, BOUND = 100.0, 20.0
"""Seconds of a phase, and seconds in which the process must end; it needs about one."""


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
    "learning": ("glassformer.tasks.preparation.Tokenizer.train", 1),
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


def takes_long(real: Callable[..., Any], number: int, has_begun: Path) -> Callable[..., Any]:
    """Return the function with one call that takes `LONG` seconds, after it has made the file `has_begun`."""
    n_calls = 0

    def call(*args: Any, **options: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == number:
            has_begun.touch()
            deadline = time.monotonic() + LONG
            while time.monotonic() < deadline:
                time.sleep(0.01)
        return real(*args, **options)

    return call


def ended(work: Callable[[], object], has_begun: Path, which: signal.Signals) -> int:
    """Send a signal to a child when a phase has begun; return its exit code, and check the time."""

    def child() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            work()
        except Interrupted as stop:
            os._exit(stop.exit_code)
        except KeyboardInterrupt:
            os._exit(128 + signal.SIGINT)

    process = fork(child)
    while not has_begun.exists():
        time.sleep(0.01)
    began = time.monotonic()
    os.kill(process, which)
    code = wait(process)
    assert time.monotonic() - began < BOUND
    return code


@pytest.mark.parametrize(
    ("phase", "which"), list(zip(PHASES, itertools.cycle([signal.SIGTERM, signal.SIGINT]), strict=False))
)
def test_a_signal_is_answered_in_every_phase(
    phase: str, which: signal.Signals, whole: dict[str, Any], tmp_path: Path
) -> None:
    run, folder, has_begun = run_of(tmp_path), tmp_path / "run", tmp_path / "begun"
    name, number = PHASES[phase]

    def train() -> None:
        with pytest.MonkeyPatch.context() as patch:
            if phase == "compiling":
                patch.setattr(torch, "compile", lambda function, **_: takes_long(function, number, has_begun))
            else:
                patch.setattr(torch, "compile", lambda function, **_: function)
                patch.setattr(name, takes_long(resolve_name(name), number, has_begun))
            api.train(run, folder)

    code = ended(train, has_begun, which)
    if phase in BEFORE_THE_LOOP:
        assert code in (-which, 128 + which) and not folder.exists()
    else:
        assert code == 128 + which and checkpoint.steps(folder)

    def go_on() -> None:
        with_eager_compiler(lambda: api.resume(folder) if folder.exists() else api.train(run, folder))

    assert done(go_on) == 0
    found = remains(folder)
    assert all(found[name] == whole[name] for name in whole if name not in ("manifest", "numbers"))
    assert found["numbers"] | {"data_digest": 0} == whole["numbers"] | {"data_digest": 0}
