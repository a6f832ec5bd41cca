"""The page of the names that the code of the chapters imports from the package."""

import ast
import inspect
from collections import defaultdict
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import jupytext
import objects
from markup import table

import glassformer
from glassformer.apps.cli.help import sentence
from glassformer.apps.course import notebooks


def page() -> str:
    """List each name with its module, its meaning and the chapters that import it."""
    modules: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)
    chapters: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)
    public = {value: name for name, value in objects.public().items()}
    for chapter in notebooks.chapters():
        number = chapter.stem.partition("-")[0].lstrip("0")
        for module, name in names(chapter):
            value = value_of(module, name)
            known = public.get(value) if inspect.isclass(value) or inspect.isfunction(value) else None
            shown = f"[`{name}`]({objects.page_of(known)}.md)" if known else f"`{name}`"
            row = (name.lower(), shown, meaning(module, name))
            modules[row][f"`{module}`"] = chapters[row][f"[{number}](../../course/{chapter.name})"] = None
    lines = [
        "# What the chapters import",
        "",
        "A chapter defines what it teaches. What it imports from glassformer for the rest is listed here.",
        "A name with a link belongs to [the Python interface](python.md). The others are inner parts, which may change",
        "with any version.",
        "",
    ]
    rows = ((*row[1:], ", ".join(modules[row]), ", ".join(chapters[row])) for row in sorted(modules))
    return "\n".join([*lines, *table(("Name", "Meaning", "Module", "Chapters"), rows)])


def names(chapter: Path) -> list[tuple[str, str]]:
    """Return module and name of each import from the package in a chapter's code, each once."""
    found: dict[tuple[str, str], None] = {}
    for cell in jupytext.read(chapter, fmt="md:myst").cells:
        if cell.cell_type != "code":
            continue
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == glassformer.__name__:
                found |= dict.fromkeys((node.module or "", alias.name) for alias in node.names)
    return list(found)


def value_of(module: str, name: str) -> Any:
    """Return an object of a module, or its submodule of this name."""
    try:
        return getattr(import_module(module), name)
    except AttributeError:
        return import_module(f"{module}.{name}")


def meaning(module: str, name: str) -> str:
    """Return the first sentence about an object; that of a constant is below its assignment.

    Raises LookupError for a constant without one.
    """
    value = inspect.unwrap(value_of(module, name))
    if inspect.ismodule(value) or inspect.isclass(value) or inspect.isfunction(value):
        return sentence(value.__doc__)
    body = ast.parse(inspect.getsource(import_module(module))).body
    for node in body:
        if isinstance(node, ast.ImportFrom) and node.module and name in [alias.name for alias in node.names]:
            return meaning(node.module, name)
    for assigned, text in pairwise(body):
        targets = assigned.targets if isinstance(assigned, ast.Assign) else [getattr(assigned, "target", None)]
        is_name = any(isinstance(target, ast.Name) and target.id == name for target in targets)
        if is_name and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            return sentence(str(text.value.value))
    raise LookupError(f"{module}.{name} has no sentence: add one below its assignment")
