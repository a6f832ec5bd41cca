"""Candidates run in turns, each in its own process."""

import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmark_files import BENCHMARKS, load


@pytest.fixture
def candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Candidates in a file of their own, which record their rounds."""
    (tmp_path / "recorded.py").write_text(
        "import os, sys\n"
        "from task import Task\n"
        "def make(name, path, fails_at=0):\n"
        "    rounds = []\n"
        "    def call():\n"
        "        print('text of a package')\n"
        "        rounds.append(name)\n"
        "        with open(path, 'a') as file:\n"
        "            file.write(name)\n"
        "        if len(rounds) == fails_at:\n"
        "            raise ValueError('first line\\nsecond line')\n"
        "        return 0.5\n"
        "    return Task(call, amount=2, measures=True)\n"
        "def seconds_in_block():\n"
        "    kept = lambda: float('glassformer.models.devices' in sys.modules)\n"
        "    return Task(kept, measures=True)\n"
        "def dies():\n"
        "    os._exit(3)\n"
        "def waits():\n"
        "    return Task(lambda: sys.stdin.read())\n"
        "def is_killed():\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    made = load("turns").Candidate
    path = str(tmp_path / "order")
    return [made(name, "recorded:make", {"name": name, "path": path}) for name in "abc"]


def test_candidates_rotate_places_in_processes_of_their_own(candidates: list[Any], tmp_path: Path) -> None:
    measured = load("turns").take_turns(candidates, rounds=3, warmups=1)
    assert (tmp_path / "order").read_text() == "aabbccbcacab"  # in the first pass, each warms up before its round
    for one in measured:
        assert one.seconds == [0.5, 0.5, 0.5] and one.facts["amount"] == 2 and not one.error
        assert one.peak_bytes > 1 << 20


def test_freed_memory_is_kept_for_the_candidates_that_name_it(candidates: list[Any]) -> None:
    """The other processes do not import glassformer for it."""
    turns = load("turns")
    both = [turns.Candidate("a", "recorded:seconds_in_block", keeps_memory=keeps) for keeps in (True, False)]
    measured = turns.take_turns(both, rounds=1, warmups=0)
    assert [one.seconds for one in measured] == [[1.0], [0.0]]


def test_a_candidate_that_fails_gives_one_line_and_the_others_continue(candidates: list[Any]) -> None:
    turns = load("turns")
    broken = replace(candidates[0], arguments={**candidates[0].arguments, "fails_at": 2})
    dead, killed = turns.Candidate("dead", "recorded:dies"), turns.Candidate("killed", "recorded:is_killed")
    unknown = turns.Candidate("unknown", "recorded:nothing")
    said: list[str] = []
    measured = turns.take_turns([broken, dead, killed, unknown, candidates[1]], rounds=3, warmups=0, log=said.append)
    assert said == [
        "a: ValueError: first line",
        "dead: the process ended with exit status 3: no text",
        "killed: the process was killed, perhaps because memory is full: no text",
        "unknown: AttributeError: module 'recorded' has no attribute 'nothing'",
    ]
    assert measured[4].seconds == [0.5, 0.5, 0.5]


def test_the_parent_imports_no_torch() -> None:
    """Its memory would count in the peak memory of every child."""
    code = "import sys, run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS).returncode == 0


class Clock:
    """A clock that the test moves forward."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("seconds", "n_warmups", "n_rounds"),
    [(23.0, 2, 1), (31.0, 3, 1), (47.0, 4, 2), (60.0, 6, 3), (math.inf, 6, 4)],
)
def test_no_pass_begins_that_would_end_too_late(
    seconds: float, n_warmups: int, n_rounds: int, candidates: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round takes 4 s: warm-ups are left out in the second half of the time, and every candidate has a result."""
    turns, clock, done = load("turns"), Clock(), []
    monkeypatch.setattr(turns, "time", clock)

    class Child:
        def __init__(self, candidate: Any) -> None:
            self.measured = turns.Measured(candidate)

        def begin(self, end: float) -> None: ...

        def round(self, is_kept: bool, end: float = math.inf) -> None:
            done.append(is_kept)
            clock.now += 4
            self.measured.round_seconds = 4
            self.measured.seconds += [1.0] * is_kept

        def end(self) -> Any:
            return self.measured

        def close(self) -> None: ...

    monkeypatch.setattr(turns, "Child", Child)
    measured = turns.take_turns(candidates, rounds=4, warmups=2, end=seconds)
    assert done.count(False) == n_warmups and [len(one.seconds) for one in measured] == [n_rounds] * 3


def test_a_candidate_that_is_too_late_is_stopped_with_its_reason(candidates: list[Any]) -> None:
    """It waits for ever in its first round, or the time is over before."""
    turns, said = load("turns"), []
    late = turns.Candidate("late", "recorded:waits")
    [measured] = turns.take_turns([late], rounds=1, warmups=0, log=said.append, end=time.monotonic() + 1)
    assert said == ["late: no result within --seconds"] and not measured.seconds
    measured = turns.take_turns(candidates, rounds=1, warmups=1, log=said.append, end=0.0)
    assert {one.error for one in measured} == {turns.LATE} and len(said) == 4


def test_progress_is_printed_only_from_time_to_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, clock = load("turns"), Clock()
    monkeypatch.setattr(turns, "time", clock)
    progress = turns.Progress()
    for second in range(25):
        clock.now = second
        progress(f"round {second}")
    assert capsys.readouterr().out == "  round 10\n  round 20\n"


def test_first_calls_of_a_round_do_not_count() -> None:
    task, worker, calls = load("task"), load("worker"), []

    def call() -> float:
        calls.append(1)
        return float(len(calls))

    assert worker.seconds_of(task.Task(call, calls=2, first_calls=1, measures=True)) == 2.5
