"""Entry point of the command line: the verbs, and the exit codes for errors (2) and for signal n (128 + n)."""

import errno
import gc
import io
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from glassformer.common.errors import (
    Interrupted,
    Note,
    UnknownText,
    UserError,
    did_you_mean,
    enough_memory,
    notes_to,
    once,
    shown,
)
from glassformer.common.files import reason

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from glassformer.apps.cli.arguments import Group

VERBS = {
    "demo": "train on built-in text and generate, in a few minutes",
    "train": "train a model: give a recipe, a TOML file or your own data",
    "resume": "resume a run that was stopped",
    "checkpoint": "list, verify or prune the checkpoints of a run",
    "generate": "generate text with a trained model",
    "chat": "talk with a model that learned conversations",
    "translate": "translate every source, with one model or an ensemble",
    "score": "compute the log-probability of given targets",
    "fill": "fill the masks of a text",
    "classify": "classify texts",
    "tag": "tag every word",
    "embed": "compute vectors of texts, or find the nearest texts",
    "evaluate": "measure the loss and the scores of a model",
    "average": "average the weights of several checkpoints",
    "merge": "merge the LoRA updates of a model into its weights",
    "import": "convert a checkpoint of transformers to a model directory",
    "export": "export a model to transformers, ONNX, llama.cpp or CTranslate2",
    "sweep": "train variants with several seeds, and report which are better",
    "compare": "compare several models in one table and one plot",
    "inspect": "show the inner values of a model on a page in the browser",
    "serve": "serve models to other programs, with OpenAI's interface",
    "plot": "plot attention, ablations, positions, curves or confusion",
    "tokenizer": "train a tokenizer, encode text, count tokens",
    "data": "report on texts, pairs, labels or conversations",
    "doctor": "check a model for common implementation errors",
    "reproduce": "train a recipe and compare with its required result",
    "plan": "estimate memory, FLOPs and time of a run, and choose a layout",
    "presets": "list the named model configurations and their sizes",
    "recipes": "list the recipes, or print one",
    "course": "write the exercises of the course, and check what you wrote",
}
"""The built-in verbs. Each is the function `main` of the module with its name, which is imported on use."""

notes: list[str] = []
"""The notes that were given since the last JSON object was printed (`progress.print_json`)."""

USAGE = """usage: glassformer VERB …

{verbs}

`glassformer help VERB` describes one verb. Start with:  glassformer train FILE.txt
`glassformer --completion bash` (or zsh, fish) prints the completion for a shell."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one verb and exit with its code. Input and output are UTF-8 in every locale."""
    replace_closed_streams()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=stream.errors if stream is sys.stdin else "backslashreplace")
    code = run(list(sys.argv[1:] if argv is None else argv))
    gc.freeze()  # else Python looks for cycles among all objects of torch before it ends, which takes a second
    sys.exit(code)


class ClosedOutput(io.TextIOBase):
    """Standard output of a process that was started without one; raises OSError on every write."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


def replace_closed_streams() -> None:
    """Replace standard streams that were closed when the process started (None in `sys`).

    Input becomes empty, output raises OSError on use, and standard error is discarded. File descriptors 0 to 2 are
    opened first; otherwise a data file could get one of these numbers and receive the output of libraries.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # opens the lowest free descriptor, which is this one
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = ClosedOutput()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def run(argv: list[str]) -> int:
    """Run one command and return its exit code.

    0: success; 1: a check failed; 2: user error; 75: time limit reached; 128 + n: stopped by signal n.
    """
    notes.clear()
    advice = "use shorter inputs, fewer inputs or a smaller model"
    try:
        with warnings.catch_warnings(), notes_to(once(_say)), enough_memory(advice):
            warnings.showwarning = _print_note
            with UnknownText():
                code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"glassformer: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        if os.environ.get("RANK", "0") == "0":  # print once, from rank 0
            print(f"glassformer: {stop}", file=sys.stderr)
        return stop.exit_code
    except KeyboardInterrupt:
        print("glassformer: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        _discard_output()
        what = "cannot write standard output" if error.filename is None else f"cannot use {shown(str(error.filename))}"
        print(f"glassformer: {what}: {reason(error)}; use another path", file=sys.stderr)
        return 2


def _dispatch(argv: list[str]) -> int:
    if (kernels := os.environ.get("GLASSFORMER_KERNELS", "auto")) not in ("auto", "plain", "onednn", "bf16"):
        raise UserError(
            f"the environment variable GLASSFORMER_KERNELS is {kernels!r} and must be auto, plain, onednn or bf16"
        )
    if not argv or argv[0] in ("-h", "--help") or argv == ["help"]:
        foreign = {name: f"from the module {point.module}" for name, point in _others().items()}
        print(USAGE.format(verbs="\n".join(f"  {verb:<11}{text}" for verb, text in (VERBS | foreign).items())))
        return 0 if argv else 2
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"glassformer {version('glassformer')}")
        return 0
    if argv[0] == "--completion":
        from glassformer.apps.cli.completion import script

        print(script("".join(argv[1:]), VERBS), end="")
        return 0
    if argv[0] == "help":
        from glassformer.apps.cli.arguments import Group

        n = 2 if isinstance(_verb(argv[1]), Group) else 1
        argv = [*argv[1 : n + 1], "--help", *argv[n + 1 :]]
    return int(parse(_verb(argv[0]), argv[1:], argv[0]) or 0)


def _verb(name: str) -> "Callable[..., Any] | Group":
    """Import a verb of glassformer or of another package; raise `UserError` for an unknown name."""
    if name in VERBS:
        return import_module(f"glassformer.apps.cli.{name}").main
    others = _others()
    if name not in others:
        raise UserError(f"unknown verb {name!r}: {did_you_mean(name, [*VERBS, *others], 'expected one of')}")
    return others[name].load()


def parse(verb: "Callable[..., Any] | Group", argv: Sequence[str], name: str) -> Any:
    """Parse the arguments of a verb and call its function; with `--help`, print the help and return 0.

    >>> def greet(name: str, /, *, times: int = 1) -> None:
    ...     print(f"hello {name}, " * times)
    >>> parse(greet, ["--times=2", "you"], "greet")
    hello you, hello you,
    """
    from glassformer.apps.cli import help
    from glassformer.apps.cli.arguments import HELP, Group, Signature

    if isinstance(verb, Group):
        if not argv or argv[0] in HELP:
            print(help.of_group(verb, name))
            return 0 if argv else 2
        if argv[0] not in verb.verbs:
            raise UserError(f"unknown verb `{name} {argv[0]}`: expected one of {', '.join(verb.verbs)}")
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
        raise UserError(f"{error} (see glassformer {name} --help)") from None
    return verb(*places, **options)


def _others() -> "dict[str, EntryPoint]":
    """Return verbs of other packages: entry points NAME = "module:function" in the group `glassformer.verbs`."""
    from importlib.metadata import entry_points  # this import takes 0.1 s

    return {point.name: point for point in entry_points(group="glassformer.verbs") if point.name not in VERBS}


def _print_note(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Print a `Note` as one line, and other warnings in the format of Python."""
    if issubclass(category, Note):
        _say(str(message))
    else:
        _PYTHONS_OWN(message, category, *place, **more)


def _say(note: str) -> None:
    """Print a note, in the first of several processes only."""
    notes.append(note)
    if os.environ.get("RANK", "0") == "0":
        print(f"note: {note}", file=sys.stderr)


_PYTHONS_OWN = warnings.showwarning


def _discard_output() -> None:
    """Send buffered standard output to the null device, so that Python raises no error at exit."""
    with suppress(OSError):  # not a system file: it has no buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
