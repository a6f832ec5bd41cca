"""The pages of the Python interface: tables of functions and classes, and a page for each with an example."""

import inspect
import re
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import examples
from markup import table

import glassformer
from glassformer.apps.cli.help import sentence

GROUPS = {
    "The package": [name for name in glassformer.__all__ if not inspect.ismodule(getattr(glassformer, name))],
    "Recipes and presets": [
        "recipes.load",
        "recipes.names",
        "recipes.with_changes",
        "presets.preset",
    ],
    "Checks": [f"doctor.{name}" for name in glassformer.doctor.__all__],
    "Inner values": [f"inspection.{name}" for name in glassformer.inspection.__all__],
    "Pictures": [f"plot.{name}" for name in glassformer.plot.__all__],
    "Layers": [f"nn.{name}" for name in glassformer.nn.__all__],
    "Models": [f"models.{name}" for name in glassformer.models.__all__],
}
"""The public names by the title of their table."""


def public() -> dict[str, Any]:
    """Return the public functions and classes by their names; constants and types of functions have no page."""
    values = {name: attrgetter(name)(glassformer) for names in GROUPS.values() for name in names}
    return {name: value for name, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)}


def pages() -> Iterator[tuple[str, str]]:
    """Yield name and text of each page. Names that differ only in capitals share one: some file systems need it."""
    values = public()
    lines = [
        "# Python interface",
        "",
        "`import glassformer` loads nothing heavy: each name below is imported when it is first used.",
        "`presets.PRESETS` has the presets by name, for `build_model` and `plan`.",
        "",
    ]
    for title, names in GROUPS.items():
        rows = [(f"[`{name}`]({page_of(name)}.md)", sentence(values[name].__doc__)) for name in names if name in values]
        lines += [f"## {title}", "", *table(("Name", "Meaning"), rows)]
    yield "python", "\n".join(lines)
    for page in dict.fromkeys(map(page_of, values)):
        shared = [name for name in values if page_of(name) == page]
        lines = [
            "---",
            "orphan: true",
            "---",
            "",
            f"# {page.rpartition('/')[2]}",
            "",
            "[Python interface](../python.md)",
            "",
        ]
        for name in shared:
            lines += [*described(name, values[name]), *example(name, values)]
        yield page, "\n".join(lines)


def page_of(name: str) -> str:
    return f"python/{name.lower()}"


def described(name: str, value: Any) -> list[str]:
    """Return the directive that shows an object with its docstring and its members."""
    kind = "autofunction"
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
    members = [] if kind == "autofunction" else ["   :members:", "   :inherited-members: Module"]
    return ["```{eval-rst}", f".. {kind}:: glassformer.{name}", *members, "```", ""]


def example(name: str, values: dict[str, Any]) -> list[str]:
    """Return an example of an object, with the place where it is from; none if its docstring has one."""
    value = values[name]
    members = vars(value).values() if inspect.isclass(value) else []
    members = [one for one in members if inspect.isroutine(one) or isinstance(one, property)]
    has_code = re.search(r"^```|\n\n    \S", inspect.getdoc(value) or "", re.MULTILINE)
    if has_code or any(">>>" in (one.__doc__ or "") for one in (value, *members)):
        return []
    found = examples.example([value, *makers(value, values)])
    if found is None:
        raise LookupError(f"{name} has no example: add one to its docstring")
    code, path = found
    if examples.DOCS in path.parents:
        where = f"[](../../../{path.relative_to(examples.DOCS)})"
    else:
        where = f"`{path.relative_to(examples.TESTS.parent)}`"
    return [f"Example, from {where}:", "", "```python", code, "```", ""]


def makers(value: Any, values: dict[str, Any]) -> list[Any]:
    """Return the functions that return objects of a class; none for a function."""
    if not inspect.isclass(value):
        return []
    name = re.compile(rf"\b{value.__name__}\b")
    functions = filter(inspect.isfunction, values.values())
    return [function for function in functions if name.search(str(function.__annotations__["return"]))]
