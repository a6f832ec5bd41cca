"""The table of verbs, and what becomes of errors: one sentence and exit code 2; 128 + n after signal n."""

import ctypes
import errno
import io
import os
import platform
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from glassformer.errors import Interrupted, Note, UserError, did_you_mean, enough_memory
from glassformer.files import reason

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from glassformer.cli.arguments import Group

VERBS = {
    "demo": "train on built-in text and write, in a few minutes",
    "train": "learn from text: a recipe, a TOML file or a text file",
    "resume": "go on with a run that was stopped",
    "checkpoint": "list, verify, prune those of a run",
    "generate": "write text with a trained model",
    "translate": "a target for every source: one model, or several that vote",
    "score": "the probability of given targets",
    "fill": "what stands behind the masks of a text",
    "classify": "a label for a text: one model, or several that vote",
    "tag": "a tag for every word: one model, or several that vote",
    "embed": "a vector for a text, and the texts nearest to one",
    "evaluate": "the loss of a model, or of a vote, and the scores of what it writes",
    "average": "the mean of the weights of several checkpoints",
    "merge": "an adapted model as a plain one",
    "import": "a checkpoint of transformers as a model directory",
    "export": "a model for transformers, ONNX, llama.cpp or CTranslate2",
    "compare": "several models in one table and one plot",
    "plot": "pictures: alignment, attention, positions, schedule, curves, confusion",
    "tokenizer": "train, encode, decode, explain",
    "data": "report on a text, on pairs, on labelled texts",
    "doctor": "check a model for the classical mistakes",
    "reproduce": "train a recipe and compare with the result it must reach",
    "plan": "what a run needs: memory, FLOPs, time, and the layout that fits",
    "presets": "named model configurations and their sizes",
    "recipes": "runs that are ready to start",
}
"""Our verbs: each is the `main` of the module of its name, which is imported when the verb is used."""

TRAINING_VERBS = ("demo", "train", "resume", "reproduce")

USAGE = """usage: glassformer VERB …

{verbs}

`glassformer VERB --help` says more about one. Start with:  glassformer train FILE.txt"""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one verb and exits with its code. Text goes in and out as UTF-8, whatever the machine's locale says."""
    replace_closed_streams()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in TRAINING_VERBS:
        keep_freed_memory()
    sys.exit(run(arguments))


def keep_freed_memory() -> bool:
    """Tells glibc not to give large blocks back to the system after every use; says whether it could.

    Fresh pages must be cleared by the kernel before they can be written, which on a CPU costs a training step of a
    few million parameters a tenth of its time (docs/log.md). Other systems are left as they are. It holds for the whole
    process, so the command line calls it and the API does not: a program that wants the same sets
    `MALLOC_TRIM_THRESHOLD_=2147483647` and `MALLOC_MMAP_THRESHOLD_=1073741824` before it starts.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc, (trim_threshold, mmap_threshold) = ctypes.CDLL(None), (-1, -3)  # names of `mallopt(3)`
    # The second call replaces a threshold that the first one alone would freeze at 128 KiB.
    return bool(libc.mallopt(trim_threshold, 2**31 - 1) and libc.mallopt(mmap_threshold, 2**30))


class ClosedOutput(io.TextIOBase):
    """Standard output of a process that was started without one: raises OSError when something is printed."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


def replace_closed_streams() -> None:
    """Replaces standard streams that were closed when the process started (None in `sys`).

    Input becomes empty, output raises OSError when it is used, and standard error is discarded. The file descriptors
    0 to 2 are occupied first: a data file with one of these numbers would receive what libraries print.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = ClosedOutput()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def run(argv: list[str]) -> int:
    """The exit code of one command.

    0 done, 1 a check failed, 2 a mistake, 75 the time was over, 128 + n stopped by signal n.
    """
    try:
        with warnings.catch_warnings(), enough_memory("give shorter or fewer inputs at once, or use a smaller model"):
            warnings.showwarning = _print_note
            code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"glassformer: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        if os.environ.get("RANK", "0") == "0":  # of several processes, all of which have stopped, one says so
            print(f"glassformer: {stop}", file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        print("glassformer: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        _discard_output()
        what = "cannot write standard output" if error.filename is None else f"cannot use {error.filename}"
        print(f"glassformer: {what}: {reason(error)}; choose a place that can be used", file=sys.stderr)
        return 2


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        foreign = {name: f"of the module {point.module}" for name, point in _others().items()}
        print(USAGE.format(verbs="\n".join(f"  {verb:<11}{text}" for verb, text in (VERBS | foreign).items())))
        return 0 if argv else 2
    if argv[0] == "--version":
        from glassformer import __version__

        print(f"glassformer {__version__}")
        return 0
    if argv[0] in VERBS:
        verb = import_module(f"glassformer.cli.{argv[0]}").main
    elif argv[0] in (others := _others()):
        verb = others[argv[0]].load()
    else:
        raise UserError(f"unknown verb {argv[0]!r}: {did_you_mean(argv[0], [*VERBS, *others], 'verbs are')}")
    return int(parse(verb, argv[1:], argv[0]) or 0)


def parse(verb: "Callable[..., Any] | Group", argv: Sequence[str], name: str) -> Any:
    """Calls the function of a verb with what the words say; after `--help` it prints and gives 0.

    >>> def greet(name: str, /, *, times: int = 1) -> None:
    ...     print(f"hello {name}, " * times)
    >>> parse(greet, ["--times=2", "you"], "greet")
    hello you, hello you,
    """
    from glassformer.cli import help
    from glassformer.cli.arguments import HELP, Group, Signature

    if isinstance(verb, Group):
        if not argv or argv[0] in HELP:
            print(help.of_group(verb, name))
            return 0 if argv else 2
        if argv[0] not in verb.verbs:
            raise UserError(f"unknown verb `{name} {argv[0]}`: there are {', '.join(verb.verbs)}")
        return parse(verb.verbs[argv[0]], argv[1:], f"{name} {argv[0]}")
    signature = Signature.of(verb, name)
    try:
        asked = next((n for n, word in enumerate(argv) if word.partition("=")[0] in HELP), None)
        if asked is not None and "--" not in argv[:asked]:
            key = argv[asked].partition("=")[2] or "".join(argv[asked + 1 : asked + 2])
            print(help.of_option(signature, key) if key else help.of_verb(signature))
            return 0
        places, options = signature.read(argv)
    except UserError as error:
        raise UserError(f"{error} (glassformer {name} --help says more)") from None
    return verb(*places, **options)


def _others() -> "dict[str, EntryPoint]":
    """Verbs of other packages, by their entry points in the group `glassformer.verbs`: NAME = "module:function"."""
    from importlib.metadata import entry_points  # which takes a tenth of a second

    return {point.name: point for point in entry_points(group="glassformer.verbs") if point.name not in VERBS}


def _print_note(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """A warning of ours as one line; others as Python prints them."""
    if issubclass(category, Note):
        print(f"note: {message}", file=sys.stderr)
    else:
        _PYTHONS_OWN(message, category, *place, **more)


_PYTHONS_OWN = warnings.showwarning


def _discard_output() -> None:
    """Sends what standard output still buffers to the null device, so that the exit of Python raises nothing."""
    with suppress(OSError):  # not a file of the system: nothing is buffered there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
