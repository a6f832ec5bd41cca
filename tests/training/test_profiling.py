"""The trace of some steps."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glassformer import api
from glassformer.common.errors import Interrupted, UserError
from glassformer.training import loop, speed
from glassformer.training.metrics_log import read_lines
from runs import Recording, remains, signal_at, tiny_run, write_text


def profiled(folder: Path) -> tuple[set[str], set[str]]:
    """Return the names of the steps in a trace, and those of the operations."""
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    names = {event["name"] for event in events if event.get("ph") == "X"}
    return {name for name in names if name.startswith("ProfilerStep")}, names


def test_a_trace_has_the_operations_of_the_steps_and_changes_no_result(tmp_path: Path) -> None:
    run, reporter = tiny_run(write_text(tmp_path), max_steps=10), Recording()
    api.train(run, tmp_path / "plain")
    api.train(replace(run, train=replace(run.train, profile_steps=2)), tmp_path / "run", reporter)
    steps, names = profiled(tmp_path / "run")
    assert steps == {"ProfilerStep#5", "ProfilerStep#6"}, "counted from 0: the sixth and the seventh step"
    assert {"aten::mm", "autograd::engine::evaluate_function: MmBackward0", "Optimizer.step#AdamW.step"} <= names
    assert [line for line in reporter.messages if str(tmp_path / "run" / "trace.json") in line]
    found, expected = remains(tmp_path / "run"), remains(tmp_path / "plain")
    assert found["tensors"] == expected["tensors"] and found["metrics"] == expected["metrics"]
    assert not (tmp_path / "plain" / "trace.json").exists()


def test_the_time_to_write_a_trace_is_no_time_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that each reading moves by 1 ms, and the function after a step by 100 s."""
    seconds = [0.0]

    def read() -> float:
        seconds[0] += 1e-3
        return seconds[0]

    @contextmanager
    def slow(*_: Any) -> Iterator[Callable[[], None]]:
        yield lambda: seconds.append(seconds.pop() + 100)

    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=read))
    monkeypatch.setattr(loop, "profiling", slow)
    api.train(tiny_run(write_text(tmp_path)), tmp_path / "run")
    times = [line["step_ms"] for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "step_ms" in line]
    assert times and max(times) < 1000


def test_resume_profiles_steps_of_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        signal_at(patch, 3)
        with pytest.raises(Interrupted):
            api.train(tiny_run(write_text(tmp_path)), tmp_path / "run")
    api.resume(tmp_path / "run", flags={"train.profile_steps": "3"})
    assert len(profiled(tmp_path / "run")[0]) == 3


@pytest.mark.parametrize("n_left", [4, 5])
def test_a_rest_without_profiled_steps_is_reported(
    n_left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        signal_at(patch, 10 - n_left)
        with pytest.raises(Interrupted):
            api.train(tiny_run(write_text(tmp_path), max_steps=10), tmp_path / "run")
    reporter = Recording()
    api.resume(tmp_path / "run", reporter, flags={"train.profile_steps": "1"})
    assert [line for line in reporter.messages if line.startswith("no new trace.json: at most 5 steps were left")]
    assert not (tmp_path / "run" / "trace.json").exists()


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"profile_steps": 6, "max_steps": 10}, "is 6 and must be at most 5: train.max_steps is 10, and the first 5"),
        ({"profile_steps": 1, "max_steps": 5}, "is 1 and has no effect: train.max_steps is 5"),
        ({"profile_steps": -1}, "train.profile_steps is -1 and must not be negative"),
        ({"profile_steps": 1001}, "train.profile_steps is 1,001 and must be at most 1,000"),
    ],
)
def test_a_number_of_steps_that_is_not_possible_is_one_sentence(
    train: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        api.train(tiny_run(write_text(tmp_path), **train), tmp_path / "run")
    assert not (tmp_path / "run").exists()
