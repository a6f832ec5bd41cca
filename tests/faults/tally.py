"""How often each fault was injected and survived: quick counts in every run of the tests, full ones on demand."""

import json
import os
from pathlib import Path


def count(quick: int, full: int) -> int:
    """How often a fault is injected: `full` where GLASSFORMER_FAULTS=full."""
    return full if os.environ.get("GLASSFORMER_FAULTS") == "full" else quick


def record(fault: int, injected: int, survived: int, seeds: str) -> None:
    """Adds one line to the file that GLASSFORMER_FAULTS_TALLY names, if it names one."""
    path = os.environ.get("GLASSFORMER_FAULTS_TALLY")
    if path:
        line = {"fault": fault, "injected": injected, "survived": survived, "seeds": seeds}
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
