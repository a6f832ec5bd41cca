"""Tests and benchmarks on a GPU, in at most 13 minutes: `make gpu`.

    python benchmarks/gpu.py [--minutes M] [--json FILE]

Each part is a process with a limit of time; a part that does not fit in the rest of the time is skipped. The file gets
the state of each part, the outcome of each test, and the results of the benchmarks as `run.py` writes them.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tables
from results import FORMAT

ROOT = Path(__file__).parent.parent
MINUTES = 13.0
CLOSING_SECONDS = 30.0
"""Time between the end of `--seconds` and the limit at which a benchmark is killed."""
TESTED = re.compile(r"\[gw\d+\] \[ *\d+%\] (PASSED|FAILED|ERROR|SKIPPED) (\S.*?) *$")
"""A line of pytest for one test, in several processes."""


@dataclass(frozen=True)
class Part:
    """A command, and the seconds that it may take."""

    name: str
    words: Sequence[str]
    """Arguments of python; `SECONDS` becomes the time for the rounds, `JSON` the file of results."""
    least: float
    """The part is skipped if less time is left."""
    most: float


@dataclass
class Outcome:
    """The end of a part."""

    name: str
    state: Literal["passed", "failed", "stopped", "skipped"]
    seconds: float = 0.0
    lines: list[str] = field(default_factory=list)


Launch = Callable[[Part, float], tuple[int | None, list[str]]]
"""(part, limit in seconds) → exit status, or None if the part was stopped; lines of its output."""

TESTS = ("-m", "pytest", "-m", "cuda", "-v", "-n", "auto", "--maxprocesses", "8", "-p", "no:cacheprovider", "tests/gpu")
RUN = ("benchmarks/run.py", "--json", "JSON", "--seconds", "SECONDS")
SIZES = ("--preset", "gpt2", "--batch-size", "16", "--context", "1024", "--precision", "bf16", "--device", "cuda")
PARTS = (
    Part("tests", TESTS, least=60, most=230),
    Part("train-gpt2-on-gpu", (*RUN, "train-gpt2-on-gpu"), least=150, most=220),
    Part("train-packed-on-gpu", (*RUN, "train-packed-on-gpu"), least=110, most=150),
    Part("decode-gpt2-on-gpu", (*RUN, "decode-gpt2-on-gpu"), least=60, most=100),
    Part("plan", ("benchmarks/plan.py", *SIZES), least=20, most=40),
)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="time of all parts together")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="file of results")
    arguments = parser.parse_args(words)
    if not arguments.minutes > 0:
        parser.error(f"--minutes: expected more than 0, got {arguments.minutes:g}")
    gpu = require_gpu()
    print(f"{gpu}; results go to {arguments.json}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        measured = Path(folder) / "results.json"
        outcomes = run_all(PARTS, 60 * arguments.minutes, lambda part, limit: launch(part, limit, measured))
        results = json.loads(measured.read_text("utf-8"))["benchmarks"] if measured.exists() else {}
    record = report(gpu, outcomes, results)
    arguments.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\n{tables.as_text(summary(record))}", flush=True)
    if any(part["state"] in ("failed", "stopped") for part in record["parts"]):
        sys.exit(1)


def require_gpu() -> str:
    """Return the names of the GPUs; end the program with one sentence if torch finds no GPU."""
    import torch

    if not torch.cuda.is_available():
        sys.exit(f"make gpu needs a GPU with CUDA, and torch {torch.__version__} finds none")
    return ", ".join(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))


def run_all(
    parts: Sequence[Part], seconds: float, launch: Launch, clock: Callable[[], float] = time.monotonic
) -> list[Outcome]:
    """Run the parts in order until the time is over; print one line for each part that no longer fits."""
    end, outcomes = clock() + seconds, []
    for part in parts:
        began = clock()
        if (left := end - began) < part.least:
            print(f"{part.name} skipped: it needs {part.least:.0f} s, and {max(0.0, left):.0f} s are left", flush=True)
            outcomes.append(Outcome(part.name, "skipped"))
            continue
        limit = min(part.most, left)
        print(f"\n{part.name}: at most {limit:.0f} s", flush=True)
        status, lines = launch(part, limit)
        outcome = Outcome(part.name, "failed" if status else "passed", clock() - began, lines)
        if status is None:
            outcome.state = "stopped"
            print(f"{part.name} stopped: it did not end within {limit:.0f} s", flush=True)
        outcomes.append(outcome)
    return outcomes


def launch(part: Part, limit: float, results: Path) -> tuple[int | None, list[str]]:
    """Run a part, print its lines as they come, and stop it with its processes after `limit` seconds."""
    values = {"SECONDS": f"{max(1.0, limit - CLOSING_SECONDS):.0f}", "JSON": str(results)}
    process = subprocess.Popen(
        [sys.executable, *(values.get(word, word) for word in part.words)],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # a group of its own, which can be stopped as a whole
    )
    was_stopped = threading.Event()

    def stop() -> None:
        was_stopped.set()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(limit, stop)
    timer.start()
    lines = []
    with process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip("\n"))
            status = process.wait()
        except BaseException:  # Ctrl-C reaches this process only
            stop()
            raise
        finally:
            timer.cancel()
    return None if was_stopped.is_set() else status, lines


def report(gpu: str, outcomes: Sequence[Outcome], benchmarks: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the file: a benchmark of which a candidate failed has failed too."""
    parts = []
    for one in outcomes:
        rows = benchmarks.get(one.name, {"rows": []})["rows"]
        state = "failed" if one.state == "passed" and any(row["error"] for row in rows) else one.state
        parts.append({"name": one.name, "state": state, "seconds": round(one.seconds, 1)})
    lines = {one.name: one.lines for one in outcomes}
    found = [match for line in lines.get("tests", ()) if (match := TESTED.match(line))]
    return {
        "format": FORMAT,
        "gpu": gpu,
        "parts": parts,
        "tests": {match[2]: match[1].lower() for match in found},
        "benchmarks": dict(benchmarks),
        "plan": lines.get("plan", []),
    }


def summary(record: Mapping[str, Any]) -> tables.Table:
    """Return the table of the parts; that of the tests has the number of each outcome."""
    outcomes = list(record["tests"].values())
    counted = ", ".join(f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes))
    rows = [["part", "state", "seconds", ""]]
    for part in record["parts"]:
        notes = counted if part["name"] == "tests" else ""
        rows.append([part["name"], part["state"], f"{part['seconds']:.0f}", notes])
    return rows


if __name__ == "__main__":
    main()
