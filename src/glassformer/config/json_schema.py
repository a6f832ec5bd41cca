"""JSON Schema of a configuration: an editor of TOML completes and checks a recipe with it."""

import dataclasses
import math
import typing
from collections.abc import Sequence
from typing import Any, Literal, cast

from glassformer.config.extensions import members
from glassformer.config.presets import PRESETS
from glassformer.config.run import Run
from glassformer.config.schema import setting_doc, to_dict

NAMES = {int: "integer", float: "number", bool: "boolean", str: "string"}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe, with the kinds of installed packages."""
    table = _table(Run)
    for model in table["properties"]["model"]["anyOf"]:
        model["properties"]["preset"] = {"enum": [*PRESETS], "description": "the preset that the other keys change"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "A recipe of glassformer"} | table


def _table(cls: Any, required: Sequence[str] = ()) -> dict[str, Any]:
    """Return the schema of the table of a dataclass."""
    hints = typing.get_type_hints(cls, include_extras=True)
    properties: dict[str, Any] = {"kind": {"const": cls.kind}} if hasattr(cls, "kind") else {}
    for field in dataclasses.fields(cls):
        properties[field.name] = _value(hints[field.name]) | {"description": setting_doc(field)}
        for within in field.metadata.get("ranges", ()):
            properties[field.name] |= {name: x for name, x in within.bounds.items() if math.isfinite(x)}
        if not dataclasses.is_dataclass(field.default) and field.default is not None:
            default = to_dict(field.default)
            properties[field.name] |= {"default": default} if default != math.inf else {}
    table: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return table | {"required": list(required), "description": " ".join(str(cls.__doc__).split())}


def _value(kind: Any) -> dict[str, Any]:
    """Return the schema of a value of this type; None is written as "none", and the usual kind may be missing."""
    options = members(kind)
    tables = [member for member in options if dataclasses.is_dataclass(member)]
    if len(options) > 1:
        rest = [_value(member) for member in options if member not in tables]
        named = [() if len(tables) == 1 or hasattr(table, "is_default_kind") else ("kind",) for table in tables]
        return {"anyOf": [*map(_table, tables, named), *rest]}
    [kind] = options
    inner = typing.get_args(kind)
    if kind is type(None):
        return {"const": "none"}
    if dataclasses.is_dataclass(kind):
        return _table(kind)
    if typing.get_origin(kind) is Literal:
        return {"enum": list(inner)}
    if typing.get_origin(kind) is tuple:
        length = {} if Ellipsis in inner else {"minItems": len(inner), "maxItems": len(inner)}
        return {"type": "array", "items": _value(inner[0])} | length
    return {"type": NAMES[cast(type, kind)]}
