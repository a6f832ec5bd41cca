"""How often each fault was injected and survived: quick counts in every run of the tests, full ones on demand."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Tally:
    """Of one fault in one test."""

    injected: int = 0
    survived: int = 0


def count(quick: int, full: int) -> int:
    """How often a fault is injected: `full` where GLASSFORMER_FAULTS=full."""
    return full if os.environ.get("GLASSFORMER_FAULTS") == "full" else quick


@contextmanager
def injected(fault: int, seeds: str, n: int = 0) -> Iterator[Tally]:
    """Inside the block a test counts what it injects, after the first `n`, and what is survived.

    A test that fails is counted too: with all that it has injected, and what had been survived until then.
    """
    tally = Tally(injected=n)
    try:
        yield tally
    finally:
        record(fault, tally.injected, tally.survived, seeds)


def record(fault: int, injected: int, survived: int, seeds: str) -> None:
    """Adds one line to the file that GLASSFORMER_FAULTS_TALLY names, if it names one."""
    path = os.environ.get("GLASSFORMER_FAULTS_TALLY")
    if path:
        line = {"fault": fault, "injected": injected, "survived": survived, "seeds": seeds}
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
