"""Turns: every candidate has its own process, and one process at a time runs a round.

The parent imports no torch, so that its memory does not count in the peak memory of a child. It sends one line per
round and waits for the reply. A child replies after its threads sleep, so idle candidates use no CPU. No environment
variable is set: the number of threads and their waiting are the defaults of each package.
"""

import json
import math
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("worker.py")
PROGRESS_SECONDS = 10.0
LATE = "no result within --seconds"


@dataclass(frozen=True)
class Candidate:
    """A row of a table, and how its process makes the work."""

    name: str
    make: str
    """`module:function` of this folder; the function returns a `Task`."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    setting: str = ""
    """Group of the row; ratios compare rows of one group."""
    precision: str = ""
    """Precision of the matrix products: fp32 or bf16."""
    keeps_memory: bool = False
    """True for the training steps of glassformer: they run inside `freed_memory_kept`, as in its trainer."""

    @property
    def label(self) -> str:
        return f"{self.name}, {self.setting}" if self.setting else self.name


@dataclass
class Measured:
    """The measurements of one candidate."""

    candidate: Candidate
    seconds: list[float] = field(default_factory=list)
    """Seconds per call, one number per round."""
    round_seconds: float = 0.0
    """Seconds of the last round, all its calls included."""
    facts: dict[str, Any] = field(default_factory=dict)
    peak_bytes: int = 0
    device: str = ""
    """Name of the GPU that the process uses, if it uses one."""
    error: str = ""
    """The reason in one line if the candidate failed."""


class Failed(Exception):
    """The failure of a child, in one line."""


class Progress:
    """Prints what happens now, if the last line is some seconds old."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, text: str) -> None:
        if time.monotonic() - self.last >= PROGRESS_SECONDS:
            self.last = time.monotonic()
            print(f"  {text}", flush=True)


class Child:
    """The process of one candidate."""

    def __init__(self, candidate: Candidate) -> None:
        self.measured = Measured(candidate)
        self.errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115, closed in `close`
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            encoding="utf-8",
        )

    def begin(self, end: float = math.inf) -> None:
        """Send the order, and wait until the work is made."""
        candidate = self.measured.candidate
        order = {"make": candidate.make, "arguments": dict(candidate.arguments)}
        facts = self.send(json.dumps(order | {"keeps_memory": candidate.keeps_memory}), end)
        self.measured.device = facts.pop("device", "")
        self.measured.facts = facts

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()
        self.errors.close()

    def send(self, line: str, end: float = math.inf) -> dict[str, Any]:
        """Send a line and return the reply; after a failure, keep its reason and return an empty reply.

        A child that has not replied at the time `end` of the clock has failed.
        """
        if self.measured.error:
            return {}
        try:
            return self._reply(line, end)
        except Failed as failure:
            self.measured.error = str(failure)
            return {}

    def round(self, is_kept: bool = True, end: float = math.inf) -> None:
        """Run one round; a warm-up round is not kept."""
        began = time.monotonic()
        reply = self.send("round", end)
        self.measured.round_seconds = time.monotonic() - began
        if is_kept and reply:
            self.measured.seconds.append(reply["seconds"])

    def end(self) -> Measured:
        """Return the measurements, with the peak memory of the process."""
        self.measured.peak_bytes = self.send("end").get("peak_bytes", 0)
        return self.measured

    def _reply(self, line: str, end: float) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            self._wait(end)
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.errors.seek(0)
            said = self.errors.read().strip().splitlines()
            status = self.process.wait()
            cause = "was killed, perhaps because memory is full" if status == -9 else f"ended with exit status {status}"
            raise Failed(f"the process {cause}: {said[-1] if said else 'no text'}")
        reply: dict[str, Any] = json.loads(answer)
        if "error" in reply:
            raise Failed(reply["error"])
        return reply

    def _wait(self, end: float) -> None:
        """Return when the child replies or ends; kill it at the time `end`."""
        if end == math.inf or self.process.stdout is None:
            return
        ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            self.process.kill()
            raise Failed(LATE)


def take_turns(
    candidates: Sequence[Candidate],
    rounds: int,
    warmups: int,
    log: Callable[[str], None] = print,
    end: float = math.inf,
    progress: Callable[[str], None] | None = None,
) -> list[Measured]:
    """Run all candidates in turns, each at every place of the order; `log` receives one line per failure.

    In the first pass, each candidate is prepared, warmed up, and runs its first round, so every candidate that has had
    its turn at the time `end` of the clock (`time.monotonic`) is in the table. A warm-up is left out when half of the
    time is over. A candidate without a measured round at the end is stopped. No later pass begins that would end
    after it, if its rounds take as long as those before.
    """
    progress = progress or Progress()
    half = (time.monotonic() + end) / 2
    children: list[Child] = []
    try:
        for candidate in candidates:
            progress(f"preparing {candidate.label}")
            children.append(Child(candidate))
            children[-1].begin(end)
            for _ in range(warmups):
                if time.monotonic() < half:
                    children[-1].round(is_kept=False, end=end)
            if rounds:
                children[-1].round(is_kept=True, end=end)
        seconds = sum(child.measured.round_seconds for child in children)
        for number in range(1, rounds):
            began = time.monotonic()
            if began + seconds > end:
                break
            for place in range(len(children)):
                child = children[(number + place) % len(children)]
                progress(f"round {number + 1} of {rounds}: {child.measured.candidate.label}")
                child.round(is_kept=True)
            seconds = time.monotonic() - began
        measured = [child.end() for child in children]
    finally:
        for child in children:
            child.close()
    for one in measured:
        if one.error:
            log(f"{one.candidate.label}: {one.error}")
    return measured
