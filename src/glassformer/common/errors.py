"""Exceptions shown to the user: `UserError` for a mistake, `Interrupted` for a run that was stopped."""

import difflib
import errno
import functools
import inspect
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path
from typing import Any, Self, TypeVar

from glassformer.common.formatting import size

LONGEST_MESSAGE, BEGIN_OF_MESSAGE = 400, 240
"""`LONGEST_MESSAGE`: maximum length of a `UserError`'s message. `BEGIN_OF_MESSAGE`: length of the beginning that is
kept of a longer message. Both in characters."""


class UserError(Exception):
    """A user's mistake: one sentence with the problem, its place and what to do.

    The command line prints the sentence and exits with code 2; no file is left half-written. If a sentence has more
    than `LONGEST_MESSAGE` characters, because it repeats a long value, its middle is left out.

    >>> len(str(UserError("no such file: " + "long/" * 1000 + "name")))
    400
    """

    def __init__(self, message: object = "") -> None:
        text = str(message)
        if len(text) > LONGEST_MESSAGE:
            text = f"{text[:BEGIN_OF_MESSAGE]} … {text[BEGIN_OF_MESSAGE + 3 - LONGEST_MESSAGE :]}"
        super().__init__(text)


@contextmanager
def placed(where: object) -> Iterator[None]:
    """Put the place before the message of a `UserError` of the block."""
    try:
        yield
    except UserError as error:
        raise type(error)(f"{where}: {error}") from error


class Note(UserWarning):
    """A notice that needs no action; the command line prints it as one line."""


C = TypeVar("C")
Log = Callable[[str], None]
"""Function that receives a message."""
Progress = Callable[[int, int], None]
"""Function that receives the amount of work that is done, and the total amount."""


_LISTENER: ContextVar[Log | None] = ContextVar("_LISTENER", default=None)


def warn(text: str) -> None:
    """Give a note: to the listener of the innermost `notes_to`, otherwise as a warning at the line of the caller.

    The line is the one that called into this package. Every note about data that is skipped, cut or left out is given
    here. A run collects the notes (`reporting.noted`), and the command line prints them and adds them to JSON.
    """
    if (listener := _LISTENER.get()) is not None:
        listener(text)
        return
    level, frame, inside = 1, sys._getframe(), str(Path(__file__).parents[1])
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, Note, stacklevel=level)


@contextmanager
def notes_to(listener: Log) -> Iterator[None]:
    """Pass the notes of the block to a function.

    >>> with notes_to(print):
    ...     warn("2 records are empty and are skipped")
    2 records are empty and are skipped
    """
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def once(log: Log) -> Log:
    """Return a function that passes each message on once.

    >>> log = once(print)
    >>> log("a note"), log("a note")
    a note
    (None, None)
    """
    said: set[str] = set()

    def log_new(text: str) -> None:
        if text not in said:
            said.add(text)
            log(text)

    return log_new


# Unknown text

UNKNOWN_SHOWN = 3
"""Maximum number of unknown places that a note names."""
_READING: ContextVar["UnknownText | None"] = ContextVar("_READING", default=None)


@dataclass
class UnknownText:
    """A `with` block that counts the parts of texts that a tokenizer does not know. At its end it gives one note.

    A tokenizer counts the unknown parts of all texts that it encodes (`count_unknown`); it reads them as `[UNK]`.
    Outside of such a block, each encoding gives a note. So every method and command that encodes a text gives the note,
    without code of its own.
    """

    joins: bool = True
    """True if a block around this one gives the note for both."""
    is_silent: bool = False
    """True for a block that gives no note."""
    n: int = field(default=0, init=False)
    places: list[str] = field(default_factory=list, init=False)

    def __enter__(self) -> Self:
        self._outer: UnknownText | None = _READING.get() if self.joins and not self.is_silent else None
        self._token: Token[UnknownText | None] | None = None if self._outer else _READING.set(self)
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if self._token is not None:
            _READING.reset(self._token)
            if kind is None:
                self.say()

    def say(self) -> None:
        """Give the note for the texts so far, if a part of them was unknown."""
        n, places = self.n, self.places
        self.n, self.places = 0, []
        if n and not self.is_silent:
            warn(unknown_sentence(n, "the text", places))


def unknown_sentence(n: int, name: str, places: list[str]) -> str:
    """Return the note about `n` unknown parts of a text that is called `name`.

    >>> print(unknown_sentence(2, "the text", ["'é' at character 4 of 'café'"]))
    2 parts of the text are unknown to the tokenizer and are read as [UNK] (the first: 'é' at character 4 of 'café')
    """
    parts, are = (f"{n:,} parts", "are") if n > 1 else ("1 part", "is")
    first = f" (the first: {', '.join(places)})" if places else ""
    return f"{parts} of {name} {are} unknown to the tokenizer and {are} read as [UNK]{first}"


def count_unknown(n: int, places: Callable[[], list[str]]) -> None:
    """Count unknown parts; `places` returns where the first of them are, and is only called if a note names them."""
    block = _READING.get() or UnknownText()
    if block.is_silent:
        return
    block.n += n
    if len(block.places) < UNKNOWN_SHOWN:
        block.places += places()[: UNKNOWN_SHOWN - len(block.places)]
    if _READING.get() is None:
        block.say()


def say_unknown() -> None:
    """Give the note for the texts so far of the current block, such as before its result is printed as JSON."""
    if (block := _READING.get()) is not None:
        block.say()


def unknown_place(text: str, first: int, end: int) -> str:
    """Describe a place in a text.

    >>> unknown_place("Das Café", 7, 8)
    "'é' at character 8 of 'Das Café'"
    """
    return f"{quoted(text[first:end])} at character {first + 1:,} of {quoted(text)}"


def one_note_per_call(cls: type[C]) -> type[C]:
    """Put every public method of a class in an `UnknownText`, except generators, which encode after the call."""
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and not name.startswith("_") and not inspect.isgeneratorfunction(method):
            setattr(cls, name, _as_call(method))
    return cls


def _as_call(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def called(*args: Any, **named: Any) -> Any:
        with UnknownText():
            return method(*args, **named)

    return called


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


def listed(problems: Sequence[str], most: int = 8, beside: str = "") -> str:
    """Join problems for a message; those after the first `most` are only counted.

    `beside` is the rest of the message. At least one problem is listed, and no more than fit into `LONGEST_MESSAGE`
    characters with `beside`.

    >>> print(listed(["a is missing", "b is missing", "c is missing"], most=2))
    a is missing; b is missing … and 1 more
    """
    text = ""
    for n in range(min(most, len(problems)), 0, -1):
        left = len(problems) - n
        text = "; ".join(problems[:n]) + (f" … and {left:,} more" if left else "")
        if len(beside) + len(text) <= LONGEST_MESSAGE:
            break
    return text


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its type if the message is empty.

    >>> first_line(ValueError("no such file\\nat place 3")), first_line(ValueError())
    ('no such file', 'ValueError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def nearest_name(name: object, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the name in `known` that is most similar to `name`; None if no similarity reaches `cutoff` (0 to 1).

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


def no_member(module: str, name: str, instead: str | None) -> Exception:
    """Return the error of `no_attribute` for a module, to raise in its `__getattr__`.

    It is an `ImportError` in `from MODULE import NAME`, which otherwise replaces the message.
    """
    error = no_attribute(f"module {module!r}", name, instead)
    in_import = sys._getframe(2).f_code.co_filename == "<frozen importlib._bootstrap>"
    return ImportError(str(error)) if in_import and find_spec(f"{module}.{name}") is None else error


def require_integer(name: str, value: object, least: int, what: str) -> None:
    """Raise `UserError` unless `value` is an integer of at least `least`; `what` is its meaning.

    >>> require_integer("n", 2.5, 1, "the number of samples")
    Traceback (most recent call last):
    glassformer.common.errors.UserError: n is 2.5 and must be an integer: it is the number of samples
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"{name} is {value!r:.40} and must be an integer: it is {what}")
    if int(value) < least:
        must = f"be at least {least}" if least else "not be negative"
        raise UserError(f"{name} is {value} and must {must}: it is {what}")


def require_type(value: object, kind: type | tuple[type, ...], argument: str, what: str) -> None:
    """Raise `UserError` unless a value has a type; `what` describes the expected values."""
    if not isinstance(value, kind):
        raise UserError(f"{argument}: expected {what}, got {value!r:.60}")


@contextmanager
def enough_memory(advice: str, where: str = "") -> Iterator[None]:
    """Convert an out-of-memory error in the block to a `UserError` with the requested size, `where` and `advice`.

    >>> with enough_memory("lower train.batch_size"):
    ...     raise MemoryError("Unable to allocate 16.0 GiB for an array")
    Traceback (most recent call last):
    glassformer.common.errors.UserError: not enough memory for another 16.0 GiB: lower train.batch_size
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

    >>> with needs("a plot", "plot"):
    ...     raise ModuleNotFoundError(name="matplotlib")
    Traceback (most recent call last):
    glassformer.common.errors.UserError: a plot needs the package matplotlib: pip install 'glassformer[plot]'
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
