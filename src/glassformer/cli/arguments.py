"""Command-line words: plain options of a verb, and dotted `--section.key value` flags of a run."""

import ast
import functools
import inspect
import io
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NoReturn, TypeVar

import tyro

from glassformer import recipes
from glassformer.config.run import Run
from glassformer.config.schema import Entry, FlagText, describe, require_int64
from glassformer.errors import UserError, nearest_name

T = TypeVar("T")


@dataclass(frozen=True)
class Words:
    """What a command line says: places, plain options (`--out DIR`), and flags of the run."""

    places: list[str]
    options: dict[str, str]
    flags: dict[str, str]


def read_words(argv: Sequence[str], options: Sequence[str], switches: Sequence[str] = ()) -> Words:
    """Sorts the words; `--key value`, `--key=value`, and `--key` alone for true; `switches` are options without value.

    >>> read_words(["a.txt", "--train.max-steps", "5", "--out=x"], ["out"])
    Words(places=['a.txt'], options={'out': 'x'}, flags={'train.max-steps': '5'})
    """
    places: list[str] = []
    plain: dict[str, str] = {}
    flags: dict[str, str] = {}
    queue = list(argv)
    while queue:
        word = queue.pop(0)
        if not word.startswith("--"):
            places.append(word)
            continue
        key, equals, value = word[2:].partition("=")
        if not equals and key not in switches:
            value = _value_after(key, queue)
        if key in options or key in switches:
            plain[key] = value
        elif "." in key:
            flags[key] = value
        else:
            leaf = [name for name in _flag_names() if name.rsplit(".", 1)[-1] == key]
            found = leaf[0] if leaf else nearest_name(key, [*options, *switches, *_flag_names()], cutoff=0.4)
            hint = "; --help lists them all" if found is None else f": did you mean --{found}?"
            raise UserError(f"unknown option --{key}{hint}")
    return Words(places, plain, flags)


def _value_after(key: str, queue: list[str]) -> str:
    """The next word; for a key that is true or false, only when it says which."""
    is_switch = any(e.key == key.replace("-", "_") and e.type == "true | false" for e in all_flags())
    if is_switch:
        return queue.pop(0) if queue and queue[0].lower() in ("true", "false") else "true"
    if not queue or queue[0].startswith("--"):
        raise UserError(f"--{key} needs a value: --{key} VALUE")
    return queue.pop(0)


def with_flags(run: Run, flags: dict[str, str]) -> Run:
    """The run with some of its keys replaced."""
    typed = {flag: FlagText(text) for flag, text in flags.items()}
    return recipes.with_changes(run, typed, "the command line")


def all_flags() -> list[Entry]:
    """Every key of a run that can be given as a flag."""
    preset = Entry(recipes.PRESET, "text", None, "a preset that replaces the model; other keys of the model change it")
    return [preset, *(entry for entry in describe(Run) if "." in entry.key)]


MOST_USED = (
    "data.path",
    "data.valid_path",
    "train.max_steps",
    "train.batch_size",
    "train.optimizer.learning_rate",
    "train.eval_every",
    "train.seed",
    "train.device",
    "train.precision",
    "model.d_model",
    "model.max_len",
    "model.decoder.n_layers",
    "model.decoder.n_heads",
    "tokenizer.vocab_size",
)
"""Keys that the help lists first."""
SECTIONS = (
    *("train", "data", "tokenizer", "objective", "generation", "init", "lora", "parallel", "model"),
    *("source_tokenizer", "result"),
)
"""The order of the other keys in the help."""


def flags_help() -> str:
    """Every key once: its name, and what it is, with its default and the kinds that have it; the most used first."""
    entries: dict[str, list[Entry]] = {}
    for entry in all_flags():
        entries.setdefault(entry.key, []).append(entry)
    lines, section = ["", "The most used:"], ""
    others = [key for key in entries if key not in MOST_USED]
    order = {name: place for place, name in enumerate(SECTIONS)}
    others.sort(key=lambda key: order.get(key.split(".", 1)[0], len(order)))
    for key in (*MOST_USED, *others):
        if key not in MOST_USED and key.split(".", 1)[0] != section:
            section = key.split(".", 1)[0]
            lines += ["", f"[{section}]"]
        lines.append(f"  --{key.replace('_', '-')}")
        lines += [f"      {meaning}" for meaning in _meanings(entries[key])]
    return "\n".join(lines)


def _meanings(entries: Sequence[Entry]) -> Iterator[str]:
    """What a key means, a line per meaning: `tokens of a micro-batch (integer; default 4096; kinds pairs, labels)`."""
    alike: dict[tuple[str, str], dict[str, list[str]]] = {}
    for entry in entries:
        default = "none" if entry.default is None else _shown(entry.default)
        kinds = alike.setdefault((entry.doc, entry.type), {}).setdefault(default, [])
        kinds += [entry.kind] if entry.kind not in ("", *kinds) else []
    for (doc, type_), defaults in alike.items():
        if len(defaults) == 1:
            [(default, kinds)] = defaults.items()
            words = f"default {default}" + (f"; kind{'s' * (len(kinds) > 1)} {', '.join(kinds)}" if kinds else "")
        else:
            words = "default " + ", ".join(f"{default} of {' and '.join(kinds)}" for default, kinds in defaults.items())
        yield f"{doc} ({type_}; {words})"


def parse(function: Any, argv: Sequence[str], verb: str) -> Any:
    """Calls a verb's function with its typed arguments (tyro); its docstring is the help text."""

    @functools.wraps(function)
    def bound(*args: Any, **options: Any) -> Any:
        for name, value in (*zip(inspect.signature(function).parameters, args, strict=False), *options.items()):
            parts = (
                {part.name: getattr(value, part.name) for part in fields(value)}
                if is_dataclass(value)
                else {name: value}
            )
            for part, number in parts.items():
                require_int64(part.rstrip("_").replace("_", "-"), number)
        return functools.partial(function, *args, **options)

    said = io.StringIO()
    try:
        with redirect_stderr(said):
            call = tyro.cli(bound, args=list(argv), prog=f"glassformer {verb}")
    except SystemExit as stop:
        if stop.code in (0, None):
            return 0
        raise UserError(f"{one_sentence(said.getvalue().splitlines())} (glassformer {verb} --help says more)") from None
    return call()


def one_sentence(box: Sequence[str]) -> str:
    """The message of one of tyro's boxes as one sentence of ours, with the option that it suggests.

    >>> box = ["╭─ Error ─╮", "│ Unrecognized options: --jsn │", "│ ─── │", "│ Perhaps you meant: │", "│ --json │"]
    >>> print(one_sentence(box))
    unrecognized options: --jsn: did you mean --json?
    >>> print(one_sentence(["╭─ Error ─╮", "│ Error parsing --n: invalid literal for int() with base 10: 'a' │"]))
    --n must be INT, not 'a'
    """
    lines = [line.strip("│ ") for line in box[1:]]
    groups = itertools.groupby(lines, lambda line: bool(line.strip("─-╰╯")))  # "-" where there is no UTF-8
    paragraphs = [list(group) for is_text, group in groups if is_text]
    first = " ".join(paragraphs[0])
    for pattern, sentence in _SENTENCES:
        if match := re.match(pattern, first, re.IGNORECASE):
            first = sentence(match)
            break
    near = re.search(r"Perhaps you meant:\s+(--[\w.-]+)", " ".join(lines))
    return first[:1].lower() + first[1:] + (f": did you mean {near[1]}?" if near else "")


def _misplaced(match: re.Match[str]) -> str:
    words = ", ".join(map(repr, match[1].split(", ")))
    return f"there is no place for {words}: give as many folders and texts as the verb takes, before its options"


def _not_numbers(match: re.Match[str]) -> str:
    read = int if match[1] == "INT" else float
    return f"expected numbers ({match[1]}), not {', '.join(repr(w) for w in _words(match[2]) if not _reads(read, w))}"


def _words(listed: str) -> list[str]:
    """The words of a list as Python prints it."""
    found: list[str] = ast.literal_eval(listed)
    return found


def _reads(read: Callable[[str], object], word: str) -> bool:
    try:
        read(word)
    except ValueError:
        return False
    return True


def _choices(match: re.Match[str]) -> str:
    known = [word for word in re.findall(r"'([^']*)'", match[3]) if word != "None"]
    return f"invalid choice {match[1]} for argument '{match[2]}': choose one of {', '.join(known)}"


_SENTENCES: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"Unrecognized options: ([^-\s].*(?:, [^-\s].*)*)$", _misplaced),
    (
        r"Error parsing (\S+): invalid literal for int\(\) with base 10: (.*)",
        lambda m: f"{m[1]} must be INT, not {m[2]}",
    ),
    (r"Error parsing (\S+): could not convert string to float: (.*)", lambda m: f"{m[1]} must be FLOAT, not {m[2]}"),
    (
        r"Error parsing (\S+): .*?(?:\{None\}\|)?(\w+) could be instantiated from \[(.*)\]",
        lambda m: f"{m[1]} must be {m[2]}, not {m[3]}",
    ),
    (r"Error parsing .*?\b(INT|FLOAT)\b.*: Could not find valid parse for arguments: (\[.*\])", _not_numbers),
    (r"Invalid choice (.*) for argument '(--\S+)'. Expected one of \((.*)\)", _choices),
    (r"Missing value for argument '(--\S+)'", lambda m: f"{m[1]} needs a value"),
)
"""Messages of tyro, and what is said in their place."""


def read_stdin() -> str:
    """All of standard input; bytes that are no text are the user's mistake."""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(f"standard input is not UTF-8: byte {byte:#04x}; convert it first") from error


def fail(message: str) -> NoReturn:
    raise UserError(message)


def _flag_names() -> list[str]:
    return [entry.key.replace("_", "-") for entry in all_flags()]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
