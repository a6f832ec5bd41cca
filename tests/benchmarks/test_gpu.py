"""The measurements of `make gpu` share their time, and write one record."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from benchmark_files import ROOT, load, result


class Clock:
    """A clock that a part moves forward."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def parts_of(gpu: ModuleType) -> list[Any]:
    return [gpu.Part(name, (), least, most) for name, least, most in (("a", 10, 50), ("b", 30, 60), ("c", 5, 9))]


def test_parts_on_a_gpu_share_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    """A part gets the rest of the time, at most its own; a part that needs more than the rest is skipped."""
    gpu, clock = load("gpu"), Clock()
    limits: list[tuple[str, float]] = []

    def launch(part: Any, limit: float) -> tuple[int | None, list[str]]:
        limits.append((part.name, limit))
        clock.now += {"a": 45, "c": 9}[part.name]
        return {"a": 0, "c": None}[part.name], [part.name]

    outcomes = gpu.run_all(parts_of(gpu), 70, launch, clock)
    assert limits == [("a", 50), ("c", 9)]
    assert [(one.name, one.state, one.seconds) for one in outcomes] == [
        ("a", "passed", 45),
        ("b", "skipped", 0),
        ("c", "stopped", 9),
    ]
    said = capsys.readouterr().out
    assert "b skipped: it needs 30 s, and 25 s are left" in said and "c stopped: it did not end within 9 s" in said


def test_the_parts_on_a_gpu_fit_in_the_time() -> None:
    gpu, catalogue = load("gpu"), load("catalogue")
    assert sum(part.most for part in gpu.PARTS) <= 60 * gpu.MINUTES
    names = {part.name for part in gpu.PARTS if "JSON" in part.words}
    assert names == set(catalogue.ON_GPU) and not names & set(catalogue.BENCHMARKS)
    for part in gpu.PARTS:
        assert part.words[0] == "-m" or (ROOT / part.words[0]).is_file()
        assert part.most - gpu.CLOSING_SECONDS > 0 or "SECONDS" not in part.words


def runs(process: int) -> bool:
    """Return False for a process that has ended; it may disappear during the question."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def test_a_part_is_stopped_with_its_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, path = load("gpu"), tmp_path / "child"

    class Timer(threading.Timer):
        """A timer whose time begins when the part has printed its line and started its process."""

        def run(self) -> None:
            while not (path.exists() and path.read_text()) and not self.finished.wait(0.01):
                pass
            super().run()

    monkeypatch.setattr(gpu, "threading", SimpleNamespace(Event=threading.Event, Timer=Timer))
    code = (
        "import subprocess, sys\n"
        "print('a line')\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(path)!r}, 'w').write(str(child.pid))\n"
        "child.wait()\n"
    )
    status, lines = gpu.launch(gpu.Part("sleeps", ("-c", code), 0, 0), 0.1, tmp_path / "none")
    assert status is None and lines == ["a line"] and "a line" in capsys.readouterr().out
    deadline = time.monotonic() + 60
    while runs(int(path.read_text())):
        assert time.monotonic() < deadline, "the process of the part still runs"
        time.sleep(0.01)
    words = ("-c", "import sys; print(*sys.argv[1:]); sys.exit(3)", "SECONDS", "JSON")
    assert gpu.launch(gpu.Part("fails", words, 0, 0), 70.0, Path("file")) == (3, ["40 file"])


def test_the_record_of_a_gpu_has_every_part_test_and_failure() -> None:
    gpu, results = load("gpu"), load("results")
    lines = [
        "[gw0] [ 33%] PASSED tests/gpu/test_a.py::test_one[gpt, packed] ",
        "[gw1] [ 66%] FAILED tests/gpu/test_a.py::test_two ",
        "FAILED tests/gpu/test_a.py::test_two - assert 1 == 2",
    ]
    outcomes = [
        gpu.Outcome("tests", "failed", 61.24, lines),
        gpu.Outcome("train", "passed", 5.0),
        gpu.Outcome("plan", "passed", 1.0, ["a", "b"]),
    ]
    rows = [{"error": ""}, {"error": "out of memory"}]
    record = gpu.report("a GPU", outcomes, {"train": {"rows": rows}})
    assert record == {
        "format": results.FORMAT,
        "gpu": "a GPU",
        "parts": [
            {"name": "tests", "state": "failed", "seconds": 61.2},
            {"name": "train", "state": "failed", "seconds": 5.0},
            {"name": "plan", "state": "passed", "seconds": 1.0},
        ],
        "tests": {
            "tests/gpu/test_a.py::test_one[gpt, packed]": "passed",
            "tests/gpu/test_a.py::test_two": "failed",
        },
        "benchmarks": {"train": {"rows": rows}},
        "plan": ["a", "b"],
    }
    assert gpu.summary(record)[1:3] == [["tests", "failed", "61", "1 passed, 1 failed"], ["train", "failed", "5", ""]]


def test_the_command_on_a_gpu_writes_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu, results = load("gpu"), load("results")

    def launch(part: Any, limit: float, path: Path) -> tuple[int | None, list[str]]:
        if part.name == "train-gpt2-on-gpu":
            results.write(path, {part.name: result(picks_best=False)})
        return 0, []

    monkeypatch.setattr(gpu, "require_gpu", lambda: "a GPU")
    monkeypatch.setattr(gpu, "launch", launch)
    path = tmp_path / "gpu.json"
    with pytest.raises(SystemExit) as ends:  # a candidate of `result` failed
        gpu.main(["--json", str(path), "--minutes", "4"])
    assert ends.value.code == 1
    assert list(results.read(path)) == ["train-gpt2-on-gpu"], "the file can be read like that of the other benchmarks"
    with pytest.raises(SystemExit) as ends:
        gpu.main(["--minutes", "0"])
    assert ends.value.code == 2


def test_without_a_gpu_the_command_ends_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"^make gpu needs a GPU with CUDA, and torch .* finds none$"):
        load("gpu").main([])
