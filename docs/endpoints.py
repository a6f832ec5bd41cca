"""The page of the server's endpoints: parameters, answers, limits and errors, from the code of the server."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from glassformer.apps.serving.application import application
from glassformer.apps.serving.errors import TYPES
from glassformer.apps.serving.schemas import ERRORS
from glassformer.apps.serving.settings import Limits
from glassformer.config.schema import describe

Schema = Mapping[str, Any]
Row = tuple[str, ...]
WORDS = {"string": "text", "boolean": "true or false", "object": "object", "null": "null"}
BOUNDS = (
    ("minimum", "≥ {}"), ("exclusiveMinimum", "> {}"), ("maximum", "≤ {}"), ("exclusiveMaximum", "< {}"),
    ("minItems", "≥ {} items"), ("maxItems", "≤ {} items"),
)  # fmt: skip
"""Bounds of OpenAPI, and how they are written."""


class Document:
    """The OpenAPI document of a server."""

    def __init__(self) -> None:
        document = application({}, Limits()).openapi()
        self.paths: Mapping[str, Mapping[str, Schema]] = document["paths"]
        self.schemas: Mapping[str, Schema] = document["components"]["schemas"]

    def endpoints(self) -> Iterator[tuple[str, str, Schema]]:
        """Yield the path, the method and the description of each endpoint below `/v1`."""
        for path, methods in self.paths.items():
            for method, operation in methods.items():
                if path.startswith("/v1"):
                    yield path, method.upper(), operation

    def resolved(self, schema: Schema) -> Schema:
        """Return the schema that a reference names."""
        return self.schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema

    def rows(self, schema: Schema, path: str = "", *, has_defaults: bool) -> Iterator[Row]:
        """Yield name, values, default and meaning of each field; the fields of an object follow it."""
        schema = self.resolved(schema)
        for name, field in schema.get("properties", {}).items():
            place = f"{path}{name}"
            default = "required" if name in schema.get("required", ()) else written(field.get("default"))
            values, meaning = self.values(field), field.get("description", "")
            yield (f"`{place}`", values, *([default] if has_defaults else []), meaning)
            for inner, suffix in self.inner(field):
                yield from self.rows(inner, f"{place}{suffix}.", has_defaults=has_defaults)

    def inner(self, field: Schema, suffix: str = "") -> Iterator[tuple[Schema, str]]:
        """Yield the schemas of objects inside a field, with `[]` for each list around them."""
        if "$ref" in field:
            yield field, suffix
        for one in field.get("anyOf", field.get("oneOf", ())):
            yield from self.inner(one, suffix)
        if "items" in field:
            yield from self.inner(field["items"], f"{suffix}[]")

    def values(self, field: Schema) -> str:
        """Return the values of a field in words; null, which is the same as an absent field, is left out."""
        kinds = field.get("anyOf", field.get("oneOf"))
        if kinds is not None:
            return " or ".join(self.values(one) for one in kinds if one.get("type") != "null")
        if "$ref" in field:
            return "object"
        if "enum" in field or "const" in field:
            return ", ".join(f"`{one}`" for one in field.get("enum", [field.get("const")]))
        kind: str = field.get("type", "any value")
        if "items" in field:
            kind = f"list of {self.values(field['items'])}"
        bounds = ", ".join(form.format(f"{field[name]:g}") for name, form in BOUNDS if is_shown(name, field))
        words = WORDS.get(kind, kind)
        return f"{words} ({bounds})" if bounds else words


def is_shown(name: str, field: Schema) -> bool:
    """Return True for a bound that a reader needs: not that of the integers of 32 or 64 bits, and not one item."""
    return name in field and field[name] < 2**31 and not (name == "minItems" and field[name] == 1)


def written(default: Any) -> str:
    """Return a default as JSON writes it; empty for null, which means the model's or the server's own."""
    if default is None or default == "":
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def sections() -> Iterator[tuple[str, str, Sequence[str], Sequence[Row]]]:
    """Yield title, sentence, head and rows of each table."""
    document = Document()
    for path, method, operation in document.endpoints():
        title, text = f"{method} {path}", operation["description"]
        body = operation.get("requestBody")
        if body is not None:
            schema = body["content"]["application/json"]["schema"]
            rows = list(document.rows(schema, has_defaults=True))
            yield title, text, ("Parameter", "Values", "Default", "Meaning"), rows
            title, text = "", "The answer:"
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        yield title, text, ("Field", "Values", "Meaning"), list(document.rows(schema, has_defaults=False))
    limits = [(f"`--{e.key.replace('_', '-')}`", e.doc, f"`{e.default}`") for e in describe(Limits)]
    yield (
        "Limits",
        "Options of `glassformer serve`, and fields of `Limits` in Python.",
        ("Option", "Meaning", "Default"),
        limits,
    )
    errors = [(str(status), f"`{TYPES.get(int(status), 'invalid_request_error')}`", error["description"])
              for status, error in ERRORS.items()]  # fmt: skip
    yield "Errors", "The type is in `error.type` of the answer.", ("Status", "Type", "Meaning"), errors
