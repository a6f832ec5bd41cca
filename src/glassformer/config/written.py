"""Configurations as files: TOML, the reference of all keys in TOML, and the JSON Schema for editors of TOML."""

import dataclasses
import math
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from glassformer.common.errors import UserError
from glassformer.config import presets
from glassformer.config.extensions import members
from glassformer.config.run import Run
from glassformer.config.schema import hints_of, setting_doc, to_dict, type_text

MAX_TOML_CHARACTERS = 1 << 18  # the longest recipe has a few thousand
MAX_DOTS = 1000  # parsing time is quadratic in the parts of a dotted key


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse TOML; raise `UserError` for invalid TOML, and for a text that is too large for a recipe."""
    if len(text) > MAX_TOML_CHARACTERS or max(line.count(".") for line in text.split("\n")) > MAX_DOTS:
        raise UserError(
            f"{where} is not a recipe: it has over {MAX_TOML_CHARACTERS:,} characters, or {MAX_DOTS} dots in a line"
        )
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: not TOML, or a number with thousands of digits
        raise UserError(f"{where} is not valid TOML: {error}") from error


def to_toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """Write nested tables as TOML, without values that equal None.

    >>> print(to_toml({"name": "x", "train": {"seed": 1, "betas": [0.9, 0.99]}}), end="")
    name = "x"
    <BLANKLINE>
    [train]
    seed = 1
    betas = [0.9, 0.99]
    """
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    lines = [f"{key} = {toml_value(value)}" for key, value in table.items() if value is not None and key not in tables]
    text = "".join(line + "\n" for line in lines)
    for key, value in tables.items():
        body = to_toml(value, f"{prefix}{key}.")
        if not body.startswith("\n["):
            body = f"\n[{prefix}{key}]\n{body}"
        text += body
    return text


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
    if isinstance(value, Sequence):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return repr(value)


HEAD = """\
# Every key of a recipe, with its default. This file is the default run; only data.path is missing.
# A table with a `kind` has the keys of that kind only; the other kinds follow it in comments.
# Every key of a table is also a flag, and a keyword of glassformer.train: [train] max_steps is --train.max-steps.
# [model] may also have preset = "NAME": the model is that preset, and the other keys of [model] change it.
"""


def reference() -> str:
    """Return TOML with every key, its default, its values and its description."""
    return HEAD + "".join(line + "\n" for line in _lines(Run(), "", ""))


def _lines(value: Any, prefix: str, mark: str) -> Iterator[str]:
    """Yield the lines of one dataclass, plain keys before tables; `mark` comments all of them out."""
    cls: Any = type(value)
    hints = hints_of(cls)
    tables: list[str] = []
    for field in dataclasses.fields(value):
        kinds = [m for m in members(hints[field.name]) if dataclasses.is_dataclass(m)]
        current, doc = to_dict(getattr(value, field.name)), setting_doc(field)
        if kinds:
            tables += _choices(f"{prefix}{field.name}", kinds, getattr(value, field.name), doc, mark)
            continue
        here, shown = (mark or "# ", '"…"') if current is None else (mark, toml_value(current))
        yield f"{here}{field.name} = {shown}  # {doc} ({type_text(hints[field.name])})"
    yield from tables


def _choices(name: str, kinds: list[Any], current: Any, doc: str, mark: str) -> Iterator[str]:
    """Yield the lines of a table, with its other kinds in comments."""
    for kind in sorted(kinds, key=lambda kind: type(current) is not kind):
        is_current = type(current) is kind
        here = mark if is_current else "# "
        yield ""
        yield f"{here}[{name}]  # {doc}. {kind.__doc__.strip().splitlines()[0]}"
        if hasattr(kind, "kind"):
            yield f'{here}kind = "{kind.kind}"'
        yield from _lines(current if is_current else kind(), f"{name}.", here)


JSON_TYPES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe, with the kinds of installed packages."""
    table = _schema_of_table(Run)
    for model in table["properties"]["model"]["anyOf"]:
        model["properties"]["preset"] = {
            "enum": presets.names(),
            "description": "the preset that the other keys change",
        }
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "A recipe of glassformer"} | table


def _schema_of_table(cls: Any, required: Sequence[str] = ()) -> dict[str, Any]:
    properties: dict[str, Any] = {"kind": {"const": cls.kind}} if hasattr(cls, "kind") else {}
    for field in dataclasses.fields(cls):
        properties[field.name] = _schema(hints_of(cls)[field.name]) | {"description": setting_doc(field)}
        for within in field.metadata.get("ranges", ()):
            properties[field.name] |= {name: x for name, x in within.bounds.items() if math.isfinite(x)}
        if not dataclasses.is_dataclass(field.default) and field.default not in (None, math.inf):
            properties[field.name] |= {"default": to_dict(field.default)}
    table: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return table | {"required": list(required), "description": " ".join(str(cls.__doc__).split())}


def _schema(kind: Any) -> dict[str, Any]:
    """Return the schema of a value of this type; None is written as "none", and the usual kind may be missing."""
    options, inner = members(kind), typing.get_args(kind)
    tables = [member for member in options if dataclasses.is_dataclass(member)]
    if len(options) > 1:
        rest = [_schema(member) for member in options if member not in tables]
        named = [() if len(tables) == 1 or hasattr(table, "is_default_kind") else ("kind",) for table in tables]
        return {"anyOf": [*map(_schema_of_table, tables, named), *rest]}
    if kind is type(None):
        return {"const": "none"}
    if tables:
        return _schema_of_table(kind)
    if typing.get_origin(kind) is Literal:
        return {"enum": list(inner)}
    if typing.get_origin(kind) is tuple:
        length = {} if Ellipsis in inner else {"minItems": len(inner), "maxItems": len(inner)}
        return {"type": "array", "items": _schema(inner[0])} | length
    return {"type": JSON_TYPES[kind]}
