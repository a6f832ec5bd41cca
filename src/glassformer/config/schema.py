"""Conversion of frozen dataclasses to and from dictionaries, TOML and command-line flags.

Recipes, `config.json` and flags share this conversion, so a mistake gives the same message everywhere: an unknown
key suggests the nearest known key, and a value of the wrong type names its key.

A field whose type is a union of dataclasses is tagged: its table contains `kind = "rotary"`, and each class defines
its tag as `kind: ClassVar[str]`. A field that may be None is left out of TOML, or written as the word "none".
"""

import dataclasses
import functools
import math
import numbers
import os
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast, dataclass_transform

from glassformer.common.arguments import names_here
from glassformer.common.errors import UserError, nearest_name, shown, suggestion, warn
from glassformer.config.extensions import members, own_members

MAX_INT = (1 << 63) - 1  # TOML and most libraries are limited to 64 bits
_SHOWN = 60  # maximum characters of a wrong value or key in a message

T = TypeVar("T")


class Range(NamedTuple):
    """Allowed values of a setting; `must` ends a message such as `train.max_steps is 0 and must be at least 1`."""

    must: str
    holds: Callable[[Any], bool]
    spec: str = ""
    """Format specification of the wrong value."""
    bounds: Mapping[str, float] = {}
    """The bounds as keywords of JSON Schema, also infinite ones."""


_HOLDS = {"minimum": ge, "maximum": le, "exclusiveMinimum": gt, "exclusiveMaximum": lt}


def _within(must: str, spec: str = "", **bounds: float) -> Range:
    return Range(must, lambda x: all(_HOLDS[name](x, bound) for name, bound in bounds.items()), spec, bounds)


RANGES = {
    "≥ 0": _within("not be negative", minimum=0),
    "≥ 1": _within("be at least 1", minimum=1),
    "≥ 2": _within("be at least 2", minimum=2),
    "> 0": _within("be positive", exclusiveMinimum=0),
    "> 1": _within("be above 1", exclusiveMinimum=1),
    "[0, ∞)": _within("not be negative", minimum=0, exclusiveMaximum=math.inf),
    "[1, ∞)": _within("be at least 1", minimum=1, exclusiveMaximum=math.inf),
    "(0, ∞)": _within("be a positive number", exclusiveMinimum=0, exclusiveMaximum=math.inf),
    "(-∞, ∞)": _within("be a finite number", exclusiveMinimum=-math.inf, exclusiveMaximum=math.inf),
    "[0, 1]": _within("be from 0 to 1", minimum=0, maximum=1),
    "[0, 1)": _within("be at least 0 and below 1", minimum=0, exclusiveMaximum=1),
    "(0, 1]": _within("be above 0 and at most 1", exclusiveMinimum=0, maximum=1),
    "(0, 1)": _within("be above 0 and below 1", exclusiveMinimum=0, exclusiveMaximum=1),
}
"""Common ranges; a round bracket excludes the bound."""


def between(least: int, most: int) -> Range:
    return _within(f"be from {least} to {most:,}", minimum=least, maximum=most)


def at_most(most: int) -> Range:
    """Return a range that rejects sizes beyond any machine, and typing errors."""
    return _within(f"be at most {most:,}", ",", maximum=most)


def setting(default: T, doc: str, *ranges: str | Range) -> T:
    """Define a dataclass field with its default, a one-line description with the unit, and its allowed values.

    `ranges` are names of `RANGES`, or other ranges. `checked` checks them when a section of a run with this field is
    created; None is in every range.
    """
    allowed = [RANGES[name] if isinstance(name, str) else name for name in ranges]
    return dataclasses.field(default=default, metadata={"doc": doc, "ranges": allowed})


SAME = {
    **dict.fromkeys(("steps", "num_steps", "iters", "max_iters", "max_update", "iterations"), "max_steps"),
    **dict.fromkeys(("lr", "rate"), "learning_rate"),
    **dict.fromkeys(("bs", "batch", "micro_batch_size", "per_device_train_batch_size"), "batch_size"),
    **dict.fromkeys(("accumulation_steps", "gradient_accumulation_steps", "update_freq"), "grad_accumulation"),
    **dict.fromkeys(("warmup", "warmup_iters", "warmup_updates"), "warmup_steps"),
    **dict.fromkeys(("n_layer", "num_layers", "layers", "num_hidden_layers", "depth"), "n_layers"),
    **dict.fromkeys(("n_head", "num_heads", "heads", "num_attention_heads"), "n_heads"),
    **dict.fromkeys(("n_embd", "dim", "d_embd", "embed_dim", "hidden_size"), "d_model"),
    **dict.fromkeys(("block_size", "seq_len", "sequence_length", "context_length"), "context"),
    **dict.fromkeys(("beam_size", "beams", "num_beams"), "beam"),
    **dict.fromkeys(("max_length", "max_tokens", "max_new"), "max_new_tokens"),
}
"""Name in another toolkit → the last part of the key here."""


@dataclass_transform(frozen_default=True)
def checked(cls: type[T]) -> type[T]:
    """Decorate a class: make it a frozen dataclass with checked values, as in a recipe.

    To match its field, a list becomes a tuple, an integer a float, and a table a dataclass. Raises `UserError` for a
    value of the wrong type, and for an unknown field, with the nearest known field. The class attribute `start_from`
    names a preset to suggest in that message. The class attribute `section` marks a section of a run: its values and
    those of nested dataclasses must be in their ranges, and messages name them as `section` and field.

    >>> from glassformer.config.transformer import Stack
    >>> Stack(n_layers="2")
    Traceback (most recent call last):
    glassformer.common.errors.UserError: Stack.n_layers must be an integer, not '2'
    """
    if "__dataclass_fields__" not in vars(cls):
        cls = dataclass(frozen=True)(cls)
    init: Any = cls.__init__
    names = [field.name for field in dataclasses.fields(cast(Any, cls))]

    @functools.wraps(init)
    def checked_init(self: T, *values: Any, **named: Any) -> None:
        for name in [*named]:
            same = [here for here in names_here(name) if here in names and here not in named]
            if name not in names and same:
                named[same[0]] = named.pop(name)
            elif name not in names:
                raise UserError(f"{cls.__name__} has no field {shown(name)}{_nearest_field(cls, name)}")
        hints = hints_of(cast(Any, cls))

        def value_of(name: str, value: Any) -> Any:
            kind = hints[name]
            if dataclasses.is_dataclass(value) and any(isinstance(value, of(kind)) for of in (own_members, members)):
                return value  # search other packages only if no member of this one matches
            return typed(kind, value, f"{cls.__name__}.{name}")

        placed = [value_of(name, value) for name, value in zip(names, values, strict=False)]
        surplus = values[len(names) :]  # Python itself raises TypeError for them
        by_name = {name: value_of(name, value) for name, value in named.items()}
        if (section := getattr(cls, "section", None)) is not None:
            _require_ranges(cls, dict(zip(names, placed, strict=False)) | by_name, section)
        init(self, *placed, *surplus, **by_name)

    setattr(cls, "__init__", checked_init)  # noqa: B010, mypy rejects a plain assignment to a method
    return cls


@functools.cache
def hints_of(cls: Any) -> dict[str, Any]:
    """Return the types of the fields of a class, or of the parameters of a function, by name."""
    return typing.get_type_hints(cls, include_extras=True)


def _nearest_field(cls: type, name: str) -> str:
    """Return a hint for an unknown field: the nearest field, or the same field of a nested dataclass."""
    names = [field.name for field in dataclasses.fields(cast(Any, cls))]
    others = [same for same in (SAME.get(name), *names_here(name)) if same in names]
    near = others[0] if others else nearest_name(name, names, cutoff=0.7)
    suggestions = [f"{name}=…" for name in (near,) if name is not None]
    for field in dataclasses.fields(cast(Any, cls)):
        for member in members(hints_of(cls)[field.name]):
            if dataclasses.is_dataclass(member) and name in {inner.name for inner in dataclasses.fields(member)}:
                suggestions.append(f"{field.name}={cast(type, member).__name__}({name}=…)")
    start = getattr(cls, "start_from", None)
    hint = f": did you mean {' or '.join(suggestions[:2])}?" if suggestions else ""
    return hint if start is None else f"{hint or ';'} a preset to start from: {start}"


def _require_ranges(cls: Any, values: Mapping[str, Any], prefix: str) -> None:
    """Raise `UserError` for the first value outside its ranges, in a dataclass and those nested in it."""
    for field in dataclasses.fields(cls):
        value = values.get(field.name)
        if dataclasses.is_dataclass(value):
            _require_ranges(value, vars(value), f"{prefix}{field.name}.")
        for within in field.metadata.get("ranges", ()):
            if value is not None and not within.holds(value):
                wrong = format(list(value) if isinstance(value, tuple) else value, within.spec)
                raise UserError(f"{prefix}{field.name} is {wrong} and must {within.must}")


def setting_doc(field: "dataclasses.Field[Any]") -> str:
    """Return the description that was given to `setting`."""
    return str(field.metadata.get("doc", ""))


class FlagText(str):
    """A value as typed on the command line; the type of its field decides how it is parsed."""


def parse_flag(kind: Any, text: str) -> Any:
    """Convert the text of a flag to a scalar type; raise `ValueError` for another text.

    >>> parse_flag(int, "300e9"), parse_flag(int, "1,000"), parse_flag(bool, "True")
    (300000000000, 1000, True)
    """
    if kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind is int:
        digits = text.replace(",", "").replace("_", "").lower()
        return int(float(digits)) if "e" in digits and float(digits).is_integer() else int(digits)
    if kind is float and not math.isnan(number := float(text)):
        return number
    if kind is str:
        return str(text)
    raise ValueError(text)


def typed(kind: Any, value: Any, name: str) -> Any:
    """Convert a value, or the `FlagText` of one, to a type; raise `UserError` with its `name` if this is not possible.

    >>> typed(float, FlagText("1e-3"), "--rate")
    0.001
    """
    return _Reader("").value(kind, value, name)


def from_dict(cls: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """Build a dataclass from nested plain values; errors name the dotted key and `where` it is (a file).

    >>> from glassformer.config.transformer import Stack
    >>> from_dict(Stack, {"n_layers": 2, "n_heads": 4}).n_heads
    4
    >>> from_dict(Stack, {"n_layer": 2})
    Traceback (most recent call last):
    glassformer.common.errors.UserError: unknown key n_layer: did you mean n_layers?
    """
    built: T = from_union(cls, table, where)
    return built


def from_union(kind: Any, table: Mapping[str, Any], where: str = "", section: str = "") -> Any:
    """Build the member of a tagged union of dataclasses that the table selects by `kind`.

    `section` is the key of the table in a run, such as `model` for `config.json`: `RENAMED` has the keys of a run.

    >>> from glassformer.config.recurrent import ModelConfig
    >>> from_union(ModelConfig, {"kind": "recurrent", "cell": "gru"}).cell
    'gru'
    """
    return _Reader(where, members(kind), f"{section}.".lstrip(".")).table(list(members(kind)), table, "")


def to_dict(value: Any) -> Any:
    """Convert dataclasses to tables (the inverse of `from_dict`); members of a union contain their `kind`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        tag = {"kind": value.kind} if hasattr(value, "kind") else {}
        return tag | {field.name: to_dict(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [to_dict(item) for item in value] if isinstance(value, tuple) else value


def known_keys(cls: type) -> list[str]:
    """Return every dotted key that a configuration of this class can have, over all members of its unions."""
    return list(dict.fromkeys(entry.key for entry in describe(cls)))


@dataclass(frozen=True)
class Entry:
    """One line of the reference: a dotted key with its type, default and description."""

    key: str
    type: str
    default: Any
    doc: str
    kind: str = ""
    """The nearest `kind` above the key that must be selected for the key to exist; empty if the key always exists.
    """
    members: tuple[Any, ...] = ()
    """The dataclasses to choose from, for a key `kind`."""


def describe(cls: type, prefix: str = "", of_kind: str = "") -> Iterator[Entry]:
    """Yield every key of a configuration class in order; a union yields its `kind`, then each member's keys."""
    hints = hints_of(cls)
    for field in dataclasses.fields(cls):
        key, kind = f"{prefix}{field.name}", hints[field.name]
        tables = [m for m in members(kind) if dataclasses.is_dataclass(m)]
        doc = setting_doc(field)
        if not tables:
            yield Entry(key, type_text(kind), to_dict(field.default), doc, of_kind)
            continue
        if tagged := [cast(Any, m) for m in tables if hasattr(m, "kind")]:
            default = getattr(field.default, "kind", None)
            yield Entry(f"{key}.kind", " | ".join(m.kind for m in tagged), default, doc, of_kind, tuple(tagged))
        for member in tables:
            yield from describe(cast(type, member), f"{key}.", getattr(member, "kind", of_kind))


def type_text(kind: Any) -> str:
    if kind is type(None):
        return "none"
    if len(members(kind)) > 1:
        return " | ".join(type_text(member) for member in members(kind))
    if typing.get_origin(kind) is Literal:
        return " | ".join(str(value) for value in typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        inner = [type_text(a) for a in typing.get_args(kind) if a is not Ellipsis]
        return f"list of {inner[0]}" if Ellipsis in typing.get_args(kind) else f"[{', '.join(inner)}]"
    if typing.get_origin(kind) is list:
        return f"list of {type_text(typing.get_args(kind)[0])}"
    if typing.get_origin(kind) is dict:
        return "table"
    if dataclasses.is_dataclass(kind):
        return cast(type, kind).__name__
    return {int: "integer", float: "number", str: "text", bool: "true | false"}.get(kind, str(kind))


RENAMED: dict[str, str] = {}
"""Old dotted keys of a run, and the keys that replace them in the same table. No release has renamed a key yet."""


def current_name(key: str, where: str = "") -> str:
    """Return the key that replaces an old one, with a notice; other keys unchanged."""
    if key not in RENAMED:
        return key
    warn(f"{key} is now {RENAMED[key]}: the old name still works{f' (in {where})' if where else ''}")
    return RENAMED[key]


@dataclass(frozen=True)
class _Reader:
    """Converter of plain values to typed ones, with the source of the values for error messages."""

    where: str
    classes: tuple[type, ...] = ()
    """The classes that the whole configuration can have. It is empty where one value of Python is converted."""
    section: str = ""
    """Beginning of the keys in a run, such as `model.`; names in errors do not have it."""

    @functools.cached_property
    def known(self) -> list[str]:
        """All dotted keys, for suggestions in errors. To find them takes longer than to read the values."""
        return list(dict.fromkeys(key for cls in self.classes for key in known_keys(cls)))

    def error(self, message: str) -> UserError:
        return UserError(f"{message} (in {self.where})" if self.where else message)

    def table(self, classes: list[Any], table: Any, key: str) -> Any:
        """Build the one of several dataclasses that a table selects."""
        if not isinstance(table, Mapping):
            raise self.error(f"{key or 'the configuration'} must be a table, not {table!r:.{_SHOWN}}")
        cls = self.choose(classes, table, key)
        prefix = f"{key}.".lstrip(".")
        hints = hints_of(cls)
        names = [field.name for field in dataclasses.fields(cls)]
        values = {}
        for name, value in table.items():
            if name == "kind" and hasattr(cls, "kind"):
                continue
            new = current_name(self.section + prefix + name, self.where).removeprefix(self.section + prefix)
            if new != name and new in table:
                raise self.error(f"{prefix}{name} is now {prefix}{new}, which is given, too: leave out {prefix}{name}")
            name = new
            if name not in names:
                raise self.error(f"unknown key {prefix}{shown(name)}{self.suggestion(prefix + name, prefix, names)}")
            values[name] = self.value(hints[name], value, prefix + name)
        for field in dataclasses.fields(cls):
            if field.name not in values and field.default is field.default_factory is dataclasses.MISSING:
                raise self.error(f"{prefix}{field.name} is missing")
        return cls(**values)

    def suggestion(self, key: str, prefix: str, names: list[str]) -> str:
        if key in self.known:
            return f": it belongs to another {prefix}kind"
        leaf = key.rsplit(".", 1)[-1]
        elsewhere = [known for known in self.known if known.rsplit(".", 1)[-1] == leaf]
        here = {cutoff: nearest_name(leaf, names, cutoff) for cutoff in (0.8, 0.6)}
        if here[0.8] is None and elsewhere:
            near: str | None = elsewhere[0]
        elif here[0.6] is not None:
            near = prefix + here[0.6]
        else:
            near = nearest_name(key, self.known, cutoff=0.5)
        return suggestion(near)

    def value(self, kind: Any, value: Any, key: str) -> Any:
        options = members(kind)
        if type(None) in options and (value is None or value == "none"):
            return None
        options = tuple(m for m in options if m is not type(None))
        tables = [m for m in options if dataclasses.is_dataclass(m)]
        if tables and isinstance(value, Mapping):
            return self.table(tables, value, key)
        for member in options:
            try:
                converted = self.leaf(member, value)
            except ValueError:
                continue
            for number in converted if isinstance(converted, tuple) else (converted,):
                if isinstance(number, int) and abs(number) > MAX_INT:
                    digits = f"{number!s:.{_SHOWN}}"
                    raise self.error(f"{key} is {digits} and must have at most 64 bits: up to {MAX_INT:,}")
            return converted
        is_tagged = self.classes and any(hasattr(member, "kind") for member in tables)
        hint = f"; give its kind as {key}.kind" if is_tagged else ""
        wanted = type_text(kind)
        wanted = {"integer": "an integer", "number": "a number", "text": "a text"}.get(wanted, wanted)
        raise self.error(f"{key} must be {wanted}, not {value!r:.{_SHOWN}}{hint}")

    def choose(self, tables: list[Any], value: Mapping[str, Any], key: str) -> Any:
        if len(tables) == 1 and not ("kind" in value and hasattr(tables[0], "kind")):
            return tables[0]
        kinds = {member.kind: member for member in tables}
        usual = [member.kind for member in tables if getattr(member, "is_default_kind", False)]
        tag = value.get("kind", *usual)
        if not isinstance(tag, str) or tag not in kinds:
            name, listed = f"{key}.kind".lstrip("."), f"; known kinds are {', '.join(kinds)}"
            if tag is None:
                raise self.error(f"{name} is missing{listed}")
            hint = suggestion(nearest_name(tag, kinds, cutoff=0.4), listed)
            raise self.error(f"{name} {str(tag)!r:.{_SHOWN}} is unknown{hint}")
        return kinds[tag]

    def leaf(self, kind: Any, value: Any) -> Any:
        """Convert one scalar or list; text from the command line is parsed as the type of the field."""
        if typing.get_origin(kind) is tuple:
            return self.tuple(typing.get_args(kind), value)
        if typing.get_origin(kind) is list and isinstance(value, list):
            return [self.leaf(typing.get_args(kind)[0], item) for item in value]
        if typing.get_origin(kind) is dict and isinstance(value, dict):
            return value
        if typing.get_origin(kind) is Literal:
            for option in typing.get_args(kind):
                if str(option) == str(value):
                    return option
            raise ValueError
        if isinstance(value, FlagText):
            return parse_flag(kind, value)
        if kind is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
            value = float(value)
        if kind is str and isinstance(value, os.PathLike):
            return os.fspath(value)
        if kind is Path and isinstance(value, Path):
            return value
        if kind is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
            return int(value)  # also NumPy integers
        if not isinstance(kind, type) or type(value) is not kind or value != value:  # NaN is not valid in any field
            raise ValueError
        return value

    def tuple(self, inner: tuple[Any, ...], value: Any) -> Any:
        if isinstance(value, FlagText):
            value = [FlagText(part) for part in value.replace(",", " ").split()]
        if not isinstance(value, (list, tuple)):
            raise ValueError
        if inner[1:] == (Ellipsis,):
            inner = inner[:1] * len(value)
        if len(inner) != len(value):
            raise ValueError
        return tuple(self.leaf(kind, item) for kind, item in zip(inner, value, strict=True))
