"""Numbers of injected and survived faults: small by default, full on demand."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Tally:
    """The numbers of one fault in one test."""

    injected: int = 0
    survived: int = 0


def count(quick: int, full: int) -> int:
    """Return how often to inject a fault: `full` with GLASSFORMER_FAULTS=full, otherwise `quick`."""
    return full if os.environ.get("GLASSFORMER_FAULTS") == "full" else quick


@contextmanager
def injected(fault: int, seeds: str, n: int = 0) -> Iterator[Tally]:
    """Count injected and survived faults of a test inside the block; `n` are already injected.

    A test that fails is counted too, with its numbers until the error.
    """
    tally = Tally(injected=n)
    try:
        yield tally
    finally:
        record(fault, tally.injected, tally.survived, seeds)


def record(fault: int, injected: int, survived: int, seeds: str) -> None:
    """Append one line to the file of the variable GLASSFORMER_FAULTS_TALLY, if it is set."""
    path = os.environ.get("GLASSFORMER_FAULTS_TALLY")
    if path:
        line = {"fault": fault, "injected": injected, "survived": survived, "seeds": seeds}
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
