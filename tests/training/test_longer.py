"""Another number of steps in a resumed run: its result is that of a run that was started with it, or it is refused."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glassformer import api
from glassformer.common.errors import Interrupted, UserError
from glassformer.config.train import (
    AdamWConfig,
    ConstantSchedule,
    CosineSchedule,
    EarlyStopping,
    InverseSqrtSchedule,
    LinearSchedule,
    PlateauSchedule,
    WarmupStableDecaySchedule,
)
from glassformer.store import checkpoint
from glassformer.store.model_directory import read_run
from runs import Recording, remains, signal_at, tiny_run, write_text

SCHEDULES = {
    "constant": ConstantSchedule(warmup_steps=3),
    "inverse_sqrt": InverseSqrtSchedule(warmup_steps=4),
    "plateau": PlateauSchedule(patience=0, ratio=0.5),
    "cosine with its own end": CosineSchedule(warmup_steps=2, decay_steps=9),
    "linear in its warm-up": LinearSchedule(warmup_steps=14),
}
INTERVALS = {  # eval_every, log_every, checkpoint_every
    "on schedule": (4, 2, 0),
    "evaluated at the end": (5, 1, 0),
    "logged at the end": (4, 5, 0),
    "saved at the end": (4, 1, 5),
}
SHORT, LONG = 12, 17


def settings(schedule: str, intervals: str) -> dict[str, Any]:
    eval_every, log_every, checkpoint_every = INTERVALS[intervals]
    return {
        "schedule": SCHEDULES[schedule],
        "eval_every": eval_every,
        "log_every": log_every,
        "checkpoint_every": checkpoint_every,
        "optimizer": AdamWConfig(learning_rate=0.01),
    }


CASES = [
    *((schedule, name, "best") for schedule, name in zip(SCHEDULES, itertools.cycle(INTERVALS), strict=False)),
    *(("constant", name, "average") for name in ("on schedule", "saved at the end")),
]


@pytest.mark.parametrize(("schedule", "intervals", "select"), CASES)
def test_a_longer_resumed_run_equals_one_that_was_started_so(
    schedule: str, intervals: str, select: str, tmp_path: Path
) -> None:
    run = tiny_run(write_text(tmp_path), select=select, max_steps=SHORT, **settings(schedule, intervals))
    api.train(replace(run, train=replace(run.train, max_steps=LONG)), tmp_path / "whole")
    api.train(run, tmp_path / "parts")
    outcome = api.resume(tmp_path / "parts", max_steps=LONG)
    assert outcome.run.train.max_steps == read_run(tmp_path / "parts").train.max_steps == LONG
    assert remains(tmp_path / "parts") == remains(tmp_path / "whole")


def test_a_stopped_run_continues_to_another_number_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger or smaller, but above the steps done."""
    run = tiny_run(write_text(tmp_path), max_steps=SHORT, **settings("constant", "on schedule"))
    for n_steps in (LONG, 9):
        whole, parts = tmp_path / f"whole {n_steps}", tmp_path / f"parts {n_steps}"
        api.train(replace(run, train=replace(run.train, max_steps=n_steps)), whole)
        with monkeypatch.context() as patch:
            signal_at(patch, 6)
            with pytest.raises(Interrupted):
                api.train(run, parts)
        api.resume(parts, flags={"train.max-steps": str(n_steps)})
        assert remains(parts) == remains(whole)


def test_a_run_that_goes_back_is_not_resumed_from_its_former_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run(write_text(tmp_path), max_steps=SHORT, **settings("constant", "evaluated at the end"))
    api.train(run, tmp_path / "run")
    reporter = Recording()
    with monkeypatch.context() as patch:
        signal_at(patch, 10)
        with pytest.raises(Interrupted):
            api.resume(tmp_path / "run", reporter, max_steps=LONG)
    assert reporter.messages[0] == "steps 11 to 12 are repeated: a run of 17 steps does not end there"
    assert checkpoint.steps(tmp_path / "run")[-1] == 11
    assert api.resume(tmp_path / "run").run.train.max_steps == LONG


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    (
        {"schedule": CosineSchedule(warmup_steps=3)},
        LONG,
        r"cannot change from 12 to 17: the learning rate .* depends on it \(cosine",
    ),
    ({"schedule": LinearSchedule(warmup_steps=3)}, LONG, r"depends on it \(linear\); start a new run .* --init\.path"),
    ({"schedule": WarmupStableDecaySchedule()}, LONG, r"depends on it \(warmup_stable_decay\)"),
    ({"schedule": ConstantSchedule()}, 12 - 2, "expected more than the 12 steps done, got 10"),
    (
        {"schedule": ConstantSchedule(), "eval_every": 100},
        LONG,
        "was evaluated at its end, step 12, and no checkpoint before it is left; start a new run",
    ),
]


@pytest.mark.parametrize(("changes", "n_steps", "words"), REFUSED)
def test_a_number_of_steps_that_would_change_the_result_is_refused(
    changes: dict[str, Any], n_steps: int, words: str, tmp_path: Path
) -> None:
    run = tiny_run(write_text(tmp_path), max_steps=SHORT, **changes)
    api.train(run, tmp_path / "run")
    before = remains(tmp_path / "run")
    with pytest.raises(UserError, match=words):
        api.resume(tmp_path / "run", max_steps=n_steps)
    assert remains(tmp_path / "run") == before


def test_other_settings_are_refused_in_python_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"resume cannot change train\.seed: .* --init\.path DIR"):
        api.resume(tmp_path, seed=1)
    with pytest.raises(UserError, match=r"resume cannot change data\.path"):
        api.resume(tmp_path, flags={"data.path": "x"})


@pytest.mark.usefixtures("rising_perplexity")
def test_early_stopping_ends_a_longer_run_at_the_same_step(tmp_path: Path) -> None:
    stopping = {"early_stopping": EarlyStopping(metric="perplexity", patience=1)}
    run = tiny_run(write_text(tmp_path), max_steps=SHORT, **settings("constant", "on schedule"), **stopping)
    api.train(run, tmp_path / "run")
    assert checkpoint.steps(tmp_path / "run")[-1] == 8
    reporter = Recording()
    api.resume(tmp_path / "run", reporter, max_steps=LONG)
    assert reporter.messages == ["resumed at step 8 of 17: the run is complete"]
