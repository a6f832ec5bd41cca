"""Processors of this process, and the pipes of other processes."""

import os
import subprocess
from contextlib import suppress
from typing import Any


def n_processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def close_pipes(process: "subprocess.Popen[Any]") -> None:
    """Close the pipes to and from a process that has ended or will be killed."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):  # what the process has not read
                pipe.close()
