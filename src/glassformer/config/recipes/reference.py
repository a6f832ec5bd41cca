"""Generator of `REFERENCE.toml`: every key with its default, its values and its description.

python -m glassformer.config.recipes.reference > src/glassformer/config/recipes/REFERENCE.toml
"""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from glassformer.config.extensions import members
from glassformer.config.run import Run
from glassformer.config.schema import setting_doc, toml_value, type_text

HEAD = """\
# Every key of a recipe, with its default. This file is the default run; only data.path is missing.
# A table with a `kind` has the keys of that kind only; the other kinds follow it in comments.
# Every key of a table is also a flag, and a keyword of glassformer.train: [train] max_steps is --train.max-steps.
# [model] may also have preset = "NAME": the model is that preset, and the other keys of [model] change it.
"""


def reference() -> str:
    """Return the text of `REFERENCE.toml`."""
    return HEAD + "".join(line + "\n" for line in _table(Run(), "", ""))


def _table(value: Any, prefix: str, mark: str) -> Iterator[str]:
    """Yield the lines of one dataclass, plain keys before tables; `mark` comments all of them out."""
    hints = typing.get_type_hints(type(value))
    inner: list[str] = []
    for field in dataclasses.fields(value):
        kinds = [m for m in members(hints[field.name]) if dataclasses.is_dataclass(m)]
        current, doc = getattr(value, field.name), setting_doc(field)
        if kinds:
            inner += _choices(f"{prefix}{field.name}", kinds, current, doc, mark)
            continue
        type_of_key = type_text(hints[field.name])
        if current is None:
            yield f'{mark or "# "}{field.name} = "…"  # {doc} ({type_of_key})'
            continue
        if isinstance(current, tuple):
            current = list(current)
        yield f"{mark}{field.name} = {toml_value(current)}  # {doc} ({type_of_key})"
    yield from inner


def _choices(name: str, kinds: list[Any], current: Any, doc: str, mark: str) -> Iterator[str]:
    """Yield the lines of a table, with its other kinds in comments."""
    ordered = sorted(kinds, key=lambda kind: type(current) is not kind)
    for kind in ordered:
        is_current = type(current) is kind
        here = mark if is_current else "# "
        yield ""
        summary = (kind.__doc__ or "").strip().splitlines()[0]
        yield f"{here}[{name}]  # {doc}. {summary}"
        if hasattr(kind, "kind"):
            yield f'{here}kind = "{kind.kind}"'
        yield from _table(current if is_current else kind(), f"{name}.", here)


if __name__ == "__main__":
    print(reference(), end="")
