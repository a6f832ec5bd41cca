"""Exceptions shown to the user: `UserError` for a mistake, `Interrupted` for a run that was stopped."""

import difflib
import errno
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path

from glassformer.formatting import size


class UserError(Exception):
    """A user's mistake: one sentence with the problem, its place and what to do.

    The command line prints the sentence and exits with code 2; no file is left half-written.
    """


class Note(UserWarning):
    """A notice that needs no action; the command line prints it as one line."""


Log = Callable[[str], None]
"""Function that receives a message."""
Progress = Callable[[int, int], None]
"""Function that receives how much of a work is done, and the total."""


def warn(text: str) -> None:
    """Warn at the line that called into this package."""
    level, frame, inside = 1, sys._getframe(), str(Path(__file__).parent)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, Note, stacklevel=level)


TIME_IS_UP = 75
"""Exit code of a run that reached its time limit; the operating system's code for `try again later`."""


def shown(name: str, most: int = 80) -> str:
    """Format a name from a file for a message: shortened to `most` characters, all of them printable.

    >>> print(shown("w"), shown("a\\nb"))
    w 'a\\nb'
    """
    return name if name.isprintable() and len(name) <= most else f"{name!r:.{most}}"


def quoted(text: str) -> str:
    """Quote a user's text for a message; a text of more than 40 characters is cut.

    >>> print(quoted("a short one"))
    'a short one'
    """
    return repr(text if len(text) <= 40 else text[:37] + "…")


def listed(problems: Sequence[str], most: int = 8) -> str:
    """Join problems for a message; those after the first `most` are only counted.

    >>> print(listed(["a is missing", "b is missing", "c is missing"], most=2))
    a is missing; b is missing … and 1 more
    """
    text = "; ".join(problems[:most])
    if len(problems) > most:
        text += f" … and {len(problems) - most:,} more"
    return text


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its type if the message is empty.

    >>> first_line(ValueError("no such file\\nat place 3")), first_line(ValueError())
    ('no such file', 'ValueError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def nearest_name(name: object, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name most similar to `name`; None if no similarity reaches `cutoff` (0 to 1).

    >>> nearest_name("trian", ["train", "tag"])
    'train'
    """
    return next(iter(difflib.get_close_matches(str(name), list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(name: object, known: Iterable[str], there_are: str = "known names are", cutoff: float = 0.6) -> str:
    """Return the end of a message about an unknown name: the nearest known name, or all of them.

    >>> print(did_you_mean("trian", ["train", "tag"]), did_you_mean("x", ["train", "tag"], "verbs are"), sep="; ")
    did you mean train?; verbs are train, tag
    """
    known = list(known)
    return suggestion(nearest_name(name, known, cutoff), f": {there_are} {', '.join(known)}").removeprefix(": ")


def suggestion(near: str | None, otherwise: str = "") -> str:
    """Return the end of a message that suggests a name; `otherwise` is the end without a suggestion."""
    return otherwise if near is None else f": did you mean {near}?"


def no_attribute(owner: str, name: str, instead: str | None) -> AttributeError:
    """Return the error for an attribute that users of other libraries try; `instead` is what to use, if known."""
    hint = f": use {instead}" if instead else ""
    return AttributeError(f"{owner} has no attribute {name!r}{hint}")


def require_integer(name: str, value: object, least: int, what: str) -> None:
    """Raise `UserError` unless `value` is an integer of at least `least`; `what` is its meaning.

    >>> require_integer("n", 2.5, 1, "the number of samples")
    Traceback (most recent call last):
    glassformer.errors.UserError: n is 2.5 and must be an integer: it is the number of samples
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"{name} is {value!r:.40} and must be an integer: it is {what}")
    if int(value) < least:
        must = f"be at least {least}" if least else "not be negative"
        raise UserError(f"{name} is {value} and must {must}: it is {what}")


@contextmanager
def enough_memory(advice: str, where: str = "") -> Iterator[None]:
    """Convert an out-of-memory error in the block to a `UserError` with the requested size, `where` and `advice`.

    >>> with enough_memory("lower train.batch_size"):
    ...     raise MemoryError("Unable to allocate 16.0 GiB for an array")
    Traceback (most recent call last):
    glassformer.errors.UserError: not enough memory for another 16.0 GiB: lower train.batch_size
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as error:
        if not is_out_of_memory(error):
            raise
        found = _ASKED.search(str(error))
        asked = ""
        if found is not None:
            n_bytes = float(found[1]) * 1024 ** " KMGT".index(found[2][0].upper() if found[2] != "bytes" else " ")
            asked = f" for another {size(n_bytes)}"
        raise UserError(f"not enough memory{asked}{where}: {advice}") from error


def is_out_of_memory(error: Exception) -> bool:
    """Return True if Python, torch (CPU, CUDA, MPS) or the operating system could not allocate memory or map a file.

    >>> is_out_of_memory(RuntimeError("CUDA out of memory.")), is_out_of_memory(RuntimeError("shapes differ"))
    (True, False)
    """
    is_of_torch = isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
    is_of_system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or is_of_torch or is_of_system


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Convert a failed import in the block to a `UserError`: `what` needs a package that `extra` installs.

    >>> with needs("the harness", "lm-eval"):
    ...     raise ModuleNotFoundError(name="lm_eval")
    Traceback (most recent call last):
    glassformer.errors.UserError: the harness needs the package lm_eval: pip install 'glassformer[lm-eval]'
    """
    try:
        yield
    except ImportError as error:
        raise UserError(f"{what} needs the package {error.name}: pip install 'glassformer[{extra}]'") from error


_OUT_OF_MEMORY = re.compile(
    r"out of memory|(?:can't|cannot) allocate memory|not enough memory|can't start new thread"
    r"|CUBLAS_STATUS_ALLOC_FAILED|^could not create a primitive$",
    re.I,
)
"""Pattern of the out-of-memory messages in RuntimeErrors of torch (CPU, CUDA, MPS), its libraries and Python. The last
one is of oneDNN, when it has no memory for the code of a kernel."""
_ASKED = re.compile(r"(?:tried to allocate|unable to allocate|unable to mmap) ([\d.]+) ?(bytes|[KMGT]i?B)", re.I)


class Interrupted(Exception):
    """Raised when a signal or the time limit stops a run: all is saved, and the message explains how to resume.

    The command line exits with 128 + the signal's number, or with `TIME_IS_UP`. Under `torchrun` the time limit gives
    exit code 0, because `torchrun` restarts a process that exits with another code.
    """

    def __init__(self, message: str, cause: signal.Signals | None) -> None:
        super().__init__(message)
        self.signal = cause

    @property
    def exit_code(self) -> int:
        if self.signal is not None:
            return 128 + self.signal
        return 0 if "TORCHELASTIC_RUN_ID" in os.environ else TIME_IS_UP
