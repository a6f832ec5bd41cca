"""The exceptions that reach a user: a mistake of theirs, and their own wish to stop."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """What is wrong, where, and what to do, in one sentence.

    The command line prints the sentence and exits with code 2; nothing has been half-written.
    """


class Note(UserWarning):
    """Something to know of, about which nothing must be done; the command line prints it as one line."""


TIME_IS_UP = 75
"""Exit code of a run whose time was over; the system's own code for `try again later`."""


def shown(name: str, most: int = 80) -> str:
    """A name from a file as a message repeats it: a few characters, all of them printable.

    >>> print(shown("w"), shown("a\\nb"))
    w 'a\\nb'
    """
    return name if name.isprintable() and len(name) <= most else f"{name!r:.{most}}"


@contextmanager
def enough_memory(advice: str) -> Iterator[None]:
    """Convert an out-of-memory error in the block to a `UserError`: how much was asked for, and `advice`.

    >>> with enough_memory("lower train.batch_size"):
    ...     raise MemoryError("Unable to allocate 16.0 GiB for an array")
    Traceback (most recent call last):
    glassformer.errors.UserError: not enough memory for another 16.0 GiB: lower train.batch_size
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not _OUT_OF_MEMORY.search(str(error)):
            raise
        found = _ASKED.search(str(error))
        asked = ""
        if found is not None:
            n_bytes = float(found[1]) * 1024 ** " KMGT".index(found[2][0].upper() if found[2] != "bytes" else " ")
            asked = f" for another {_size(n_bytes)}"
        raise UserError(f"not enough memory{asked}: {advice}") from error


_OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory|can't start new thread", re.I)
"""Of RuntimeErrors of torch (CPU, CUDA, MPS) and Python, those that tell of too little memory."""
_ASKED = re.compile(r"(?:tried to allocate|unable to allocate) ([\d.]+) ?(bytes|[KMGT]i?B)", re.I)


def _size(n_bytes: float) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if n_bytes >= size:
            return f"{n_bytes / size:,.1f} {unit}"
    return f"{n_bytes:,.0f} bytes"


class Interrupted(Exception):
    """A signal, or the end of its time, asked a run to stop: everything is saved, and the sentence says how to go on.

    The command line exits with 128 + the signal's number, or with `TIME_IS_UP`; with 0 at the end of its time under
    `torchrun`, which would start again what ends with another code.
    """

    def __init__(self, message: str, cause: signal.Signals | None) -> None:
        super().__init__(message)
        self.signal = cause

    @property
    def exit_code(self) -> int:
        if self.signal is not None:
            return 128 + self.signal
        return 0 if "TORCHELASTIC_RUN_ID" in os.environ else TIME_IS_UP
