"""Argument parser: the signature and the docstring of a verb's function define its command line.

Positional parameters are positional arguments. Keyword-only parameters are options: `top_k` is `--top-k`, `json_` is
`--json`, and `data__path` is `--data.path`. A type `Annotated[Path, "DIR", "The model directory."]` has a placeholder,
and a description that `Args:` may replace. A parameter whose type is a dataclass gives one option per field, with the
description of the field's `setting`. If the class has `is_usual = True`, the help lists these options among the most
used ones. `Annotated[Class, "name", …]` selects fields. With `Annotated[dict[str, Any], Class]`, the function gets a
dictionary of the options that were given, with checked values. `**keys` accepts every key of a run, by its whole or
short name; `**keys: Annotated[str, "train."]` accepts the keys with this prefix. The docstring begins with one
sentence, describes the parameters after `Args:`, and ends with command lines after `Examples:`.
"""

import dataclasses
import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

from glassformer.common.errors import UserError, nearest_name
from glassformer.common.files import as_path
from glassformer.config import recipes
from glassformer.config.changes import NO_KEY
from glassformer.config.extensions import members
from glassformer.config.run import BeamConfig, GenerationConfig, Run
from glassformer.config.schema import SAME, Entry, FlagText, describe, hints_of, setting_doc, typed

Dir = Annotated[Path, "DIR", "The model directory."]
Dirs = Annotated[Path, "DIR…", "Model directories."]
File = Annotated[str, "FILE"]
Files = Annotated[str, "FILE…", "txt or jsonl files, folders of them, or builtin:NAME."]
Json = Annotated[bool, "", "Print one JSON object."]
Sampling = Annotated[
    dict[str, Any],
    GenerationConfig,
    *("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "no_repeat_ngram_size", "stop"),
    *("seed", "prompt_lookup", "draft_tokens"),
]
"""The most used settings of generation; the others are keys of a recipe, and arguments in Python."""
Search = Annotated[dict[str, Any], BeamConfig, "beam", "length_penalty", "max_new_tokens"]

METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", bool: ""}
HELP = ("-h", "--help")
SHORT = re.compile(r"-[A-Za-z](=.*)?")
QUOTE = "put a text of several words in quotes"

OUTPUT = ("o", "out", "out_file", "out_dir", "output", "output_file", "output_dir", "save_dir")
OPTIONS = {
    **dict.fromkeys(("text", "texts", "prompt"), ("prompt", "text", "input", "data.path")),
    **dict.fromkeys(("file", "input", "in_file", "input_file", "prompts", "path"), ("input", "data.path")),
    **dict.fromkeys(("data", "dataset", "data_path", "test", "train"), ("data.path", "input")),
    **dict.fromkeys(("val", "valid", "validation", "eval_data"), ("data.valid_path", "data.path")),
    **dict.fromkeys(OUTPUT, ("output", "out", "html")),
    **dict.fromkeys(("num_samples", "n_samples", "samples", "num_return_sequences", "top", "k", "top_k"), ("n",)),
    **dict.fromkeys(("length", "n_tokens", "num_tokens", "tokens"), ("max_new_tokens",)),
    **dict.fromkeys(("temp", "t", "greedy", "do_sample"), ("temperature",)),
    **dict.fromkeys(("src", "source", "source_file"), ("source", "data.source", "input")),
    **dict.fromkeys(("tgt", "targets", "target_file"), ("target", "data.target")),
    **dict.fromkeys(("ckpt", "step"), ("checkpoint",)),
    **dict.fromkeys(("gpu", "cuda", "cpu"), ("device",)),
    **dict.fromkeys(("metric", "metrics"), ("score",)),
    **dict.fromkeys(("label", "labels", "label_column"), ("data.label_field",)),
    **dict.fromkeys(("size", "vocab"), ("vocab_size",)),
    "format": ("to",),
    "name": ("out",),
}
"""For a name that is no option, the options to suggest in its place. The error suggests the first that the verb has."""

PLACES = {
    **dict.fromkeys(OUTPUT, "out"),
    **dict.fromkeys(("model", "model_dir", "model_path", "dir", "folder", "checkpoint_dir"), "DIR"),
    **dict.fromkeys(("config", "config_file", "recipe"), "TOML"),
    "tokenizer": "TOKENIZER",
}
"""For a name that is no option, the positional argument with this value: its name, or a part of its placeholder."""
WRITES_NOTHING = ("demo", "resume", "checkpoint verify", "checkpoint prune", "serve", "course")
"""Verbs that print no result that a user could redirect to a file."""


@dataclass(frozen=True)
class Group:
    """A verb that contains further verbs, such as `glassformer plot attention`."""

    doc: str
    functions: tuple[Callable[..., int], ...]

    @property
    def verbs(self) -> dict[str, Callable[..., int]]:
        """The functions by verb name: `list_` is `list`."""
        return {function.__name__.rstrip("_"): function for function in self.functions}


@dataclass(frozen=True)
class Option:
    """A positional argument or an option of a verb."""

    name: str
    """The name on the command line: `top-k`."""
    parameter: str
    """The name of the function's parameter or of the dataclass field: `top_k`."""
    type: Any
    """The type of one value."""
    metavar: str
    is_repeated: bool
    default: Any
    doc: str
    group: str
    """The name of the dataclass parameter that contains this option; empty for other options."""

    @classmethod
    def of(cls, parameter: str, hint: Any, default: Any, doc: str, group: str = "") -> "Option":
        """Return the option for a parameter, or a field, with this type hint."""
        if typing.get_origin(hint) is not Annotated:
            (hint,) = (member for member in members(hint) if member is not type(None))
        is_repeated = typing.get_origin(hint) is tuple
        type_, *known = _annotated(typing.get_args(hint)[0] if is_repeated else hint)
        metavar = METAVARS.get(type_, "NAME") + " …" * is_repeated
        if known:
            metavar, *usual_doc = known
            doc = doc or "".join(usual_doc)
        name = parameter.replace("__", ".").rstrip("_").replace("_", "-")
        return cls(name, parameter, type_, metavar, is_repeated, default, doc, group)

    @property
    def choices(self) -> list[str]:
        """The texts of the values of a `Literal` type; none for other types."""
        return [str(value) for value in typing.get_args(self.type)]

    @property
    def is_required(self) -> bool:
        return self.default is Parameter.empty

    def read(self, words: Sequence[str], shown: str) -> Any:
        """Convert command-line words to the value of the option; messages call the option `shown`."""
        if self.type is Path:
            values = tuple(as_path(word, self.name) for word in words)
        else:
            values = tuple(typed(self.type, FlagText(word), shown) for word in words)
        return values if self.is_repeated else values[0]


@dataclass(frozen=True)
class Signature:
    """The positional arguments, options and keys of a verb."""

    verb: str
    doc: str
    places: list[Option]
    """Positional arguments; the last one may be repeated, and then takes all remaining words."""
    options: list[Option]
    groups: dict[str, tuple[str, Callable[..., Any]]]
    """Parameters that expand to several options: the title of the options, and the function that builds the value."""
    keys: dict[str, list[Entry]]
    """The keys of a run that are also options, each with one entry per kind of run that has the key."""
    examples: list[str]
    """Command lines."""

    @classmethod
    def of(cls, function: Callable[..., Any], verb: str) -> "Signature":
        """Read the signature from a verb's function."""
        # The docstring
        text, _, examples = (inspect.getdoc(function) or "").partition("\nExamples:\n")
        doc, _, listed = text.partition("\nArgs:\n")
        docs = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", listed, re.MULTILINE))
        signature = cls(verb, doc.strip(), [], [], {}, {}, [line.strip() for line in examples.splitlines()])
        # The parameters
        hints = hints_of(function)
        for name, parameter in inspect.signature(function).parameters.items():
            type_, *extras = _annotated(hints[name])
            table = next((part for part in (type_, *extras) if dataclasses.is_dataclass(part)), None)
            if parameter.kind is Parameter.VAR_KEYWORD:
                starts = tuple(extras) or ("",)
                for entry in all_flags():
                    if entry.key.startswith(starts):
                        signature.keys.setdefault(entry.key, []).append(entry)
            elif table is not None:
                signature._add_group(name, table, [extra for extra in extras if extra is not table], table is type_)
            else:
                option = Option.of(name, hints[name], parameter.default, docs.get(name, ""))
                if parameter.kind is Parameter.VAR_POSITIONAL:
                    option = replace(option, is_repeated=True)
                if parameter.kind is Parameter.KEYWORD_ONLY:
                    signature.options.append(option)
                else:
                    signature.places.append(option)
        return signature

    def _add_group(self, name: str, table: Any, some: Sequence[str], is_whole: bool) -> None:
        """Add the fields of a dataclass as options; the parameter gets the object, or a dictionary of given values."""
        title = " ".join(str(table.__doc__).split()).rstrip(".").partition(":")[0]
        self.groups[name] = (title, table)
        if not is_whole:
            self.groups[name] = (f"{title} (defaults: from the model directory)", _checked(table))
        hints = hints_of(table)
        for field in dataclasses.fields(table):
            if not some or field.name in some:
                default = field.default if is_whole else None
                self.options.append(Option.of(field.name, hints[field.name], default, setting_doc(field), name))

    @property
    def by_short_name(self) -> dict[str, list[str]]:
        """The keys by the last part of their name."""
        keys: dict[str, list[str]] = {}
        for key in self.keys:
            keys.setdefault(key.rsplit(".", 1)[-1], []).append(key)
        return keys

    @property
    def usage(self) -> str:
        """The command line of the verb, with placeholders."""
        words = [place.metavar for place in self.places if place.doc]
        words += [f"--{option.name} {option.metavar}" for option in self.options if option.is_required]
        if self.options:
            words.append("[--option VALUE …]")
        if self.keys:
            words.append("[--section.key VALUE …]")
        return " ".join(["glassformer", self.verb, *words])

    def read(self, argv: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        """Convert the words of a command line to positional and keyword arguments of the function."""
        known = {option.name: option for option in self.options}
        given: dict[str, list[str]] = {}
        keys: dict[str, str] = {}
        places: list[str] = []
        n = argv.index("--") if "--" in argv else len(argv)
        queue, after = list(argv[:n]), argv[n + 1 :]  # after "--", all words are positional
        while queue:
            word = queue.pop(0)
            if not self.is_option(word):
                places.append(word)
                continue
            # The option, or the key
            name, equals, value = word.lstrip("-").partition("=")
            option = known.get(name.replace("_", "-"))
            if option is None:
                key, is_repeated = self._key(name), False
                plain = key.replace("-", "_")
                entries = [entry for one in self.by_short_name.get(plain, [plain]) for entry in self.keys.get(one, ())]
                is_switch = any(entry.type == "true | false" for entry in entries)
            else:
                key, is_repeated, is_switch = "", option.is_repeated, option.type is bool
            # Its values
            if equals:
                values = [value]
            elif is_switch and not (queue and queue[0].lower() in ("true", "false")):
                values = ["true"]
            else:
                n = next((n for n, later in enumerate(queue) if self.is_option(later)), len(queue))
                if not is_repeated:
                    n = min(n, 1)
                values, queue = queue[:n], queue[n:]
            if not values:
                raise UserError(f"{word} needs a value: {word} VALUE")
            if option is None:
                keys[key] = values[0]
            else:
                if is_repeated:
                    values = given.get(option.name, []) + values
                given[option.name] = values
        return self._positional([*places, *after], given), self._named(given) | keys

    def _key(self, name: str) -> str:
        """Return the key of a run that is given as an option; raise `UserError` for an unknown name."""
        plain = name.replace("-", "_")
        if self.keys and "." in name:
            return name
        keys = self.by_short_name.get(plain, [])
        if recipes.PRESET in self.keys and (keys or plain in SAME or (plain in NO_KEY and plain not in OUTPUT)):
            return plain  # `whole_keys` finds its key in the run, or the hint for a name of another toolkit
        if len(keys) != 1:
            raise self.unknown(name)
        return keys[0]

    def is_option(self, word: str) -> bool:
        """Return True for `--anything` and for `-x`: a dash and one letter."""
        return word.startswith("--") or SHORT.fullmatch(word) is not None

    def unknown(self, name: str) -> UserError:
        """Return the error for an unknown option; it suggests the nearest option."""
        plain = name.replace("-", "_")
        keys = {key: [key] for key in self.keys}
        known = keys | self.by_short_name | {option.name.replace("-", "_"): [option.name] for option in self.options}
        kinds = [key for key in keys if f".{key}".endswith(f".{plain}.kind")]
        usual = (other for other in (SAME.get(plain, plain), *OPTIONS.get(plain, ()), *kinds) if other in known)
        near, instead = next(usual, None), self._without_option(plain)
        if near is None and instead is None:
            near = nearest_name(plain, known, cutoff=0.7)
        suggested = known.get(near or "") or known.get(plain.rsplit(".", 1)[-1], [])
        hint = f": {instead}" if instead else ""
        if suggested:
            hint = f": did you mean {dashed(suggested[0].replace('_', '-'))}?"
        elif len(name) == 1 and not hint and any(place.type is str for place in self.places):
            hint = f"; if it is a text, put -- before it: -- -{name}"
        return UserError(f"unknown option {dashed(name)}{hint}")

    def _without_option(self, name: str) -> str | None:
        """Return how to give a value that has no option: "" if the verb does not need it, None for an unknown name."""
        wanted = PLACES.get(name)
        if wanted is None:
            return None
        for place in self.places:
            if place.name == wanted or (place.doc and wanted in place.metavar.upper()):
                return f"give it without an option: {self.usage}"
        if name not in OUTPUT or self.verb.startswith(WRITES_NOTHING):
            return ""
        return "results are printed: add > FILE"

    def _positional(self, words: Sequence[str], given: Mapping[str, list[str]]) -> list[Any]:
        single = [place for place in self.places if not place.is_repeated]
        further = words[len(single) :]
        missing = [place.metavar for place in single[len(words) :] if place.is_required]
        missing += [f"--{option.name}" for option in self.options if option.is_required and option.name not in given]
        if further and single == self.places:
            shown = ", ".join(map(repr, further))
            quote = f", or {QUOTE}" if single and single[-1].type is str else ""
            raise UserError(f"unexpected arguments: {shown}; remove them{quote}")
        if missing:
            raise UserError(f"missing arguments of glassformer {self.verb}: {', '.join(missing)}")
        values = [place.read([word], place.metavar) for place, word in zip(single, words, strict=False)]
        if further:
            values.extend(self.places[-1].read(further, ""))
        return values

    def _named(self, given: Mapping[str, list[str]]) -> dict[str, Any]:
        values: dict[str, Any] = {group: {} for group in self.groups}
        for option in self.options:
            if option.name in given:
                place = values.get(option.group, values)
                place[option.parameter] = option.read(given[option.name], f"--{option.name}")
        return values | {group: make(**values[group]) for group, (_, make) in self.groups.items()}


def _checked(table: Any) -> Callable[..., dict[str, Any]]:
    """Return a function that returns its arguments as a dictionary, after checking them as fields of `table`."""

    def values(**given: Any) -> dict[str, Any]:
        table(**given)
        return given

    return values


def dashed(name: str) -> str:
    """Return the name of an option with the dashes before it."""
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _annotated(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)


def all_flags() -> list[Entry]:
    """Return every key of a run that can be given as an option."""
    preset = Entry(recipes.PRESET, "text", None, "a preset that replaces the model; other model keys change the preset")
    size = Entry(recipes.SIZE, "integer", None, "layers; width, heads, batch, steps and rates follow by one rule")
    return [preset, size, *(entry for entry in describe(Run) if "." in entry.key)]


def with_flags(run: Run, flags: Mapping[str, str]) -> Run:
    """Return the run with some of its keys replaced."""
    typed = {flag: FlagText(text) for flag, text in flags.items()}
    return recipes.with_changes(run, typed, "the command line")


def read_stdin() -> str:
    """Read all of standard input; raise `UserError` if it is not UTF-8."""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise UserError(f"standard input: expected UTF-8, got the byte {byte:#04x}; convert it to UTF-8") from error
