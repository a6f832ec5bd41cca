"""The chapters as Jupyter notebooks: one to read, and one to write, with stubs in place of the exercises.

A chapter is a text in MyST Markdown: code cells are between "```{code-cell}" and "```", and "+++" alone in a line
divides two cells of prose. The wheel has the chapters; in a checkout they are in `docs/course`.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glassformer.apps.course.workshop.exercise import definition_of, first_line, stubs
from glassformer.apps.course.workshop.exercises import every_exercise
from glassformer.apps.course.workshop.tables import SOLUTIONS, every_table
from glassformer.common.errors import UserError
from glassformer.common.files import write_text

IN_WHEEL = Path(__file__).with_name("chapters")
IN_CHECKOUT = Path(__file__).parents[4] / "docs" / "course"
ANSWER = "hide-cell"
"""The tag of a cell with the answer of an exercise on paper."""
INSTALL = """\
# Install glassformer, if it is missing: from its wheel in this folder, or else from the package index.
import glob
import importlib.util

if importlib.util.find_spec("glassformer") is None:
    wheels = [f"./{name}" for name in glob.glob("glassformer-*.whl")]
    %pip install --quiet "{[*wheels, 'glassformer'][0]}[demo,eval,plot]"
"""
"""The first cell of every notebook, which needs nothing but the wheel, or a network (Colab)."""
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


CODE_CELL = re.compile(r"^```\{code-cell\}([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TAGS = re.compile(r":tags: \[(.*)\]\n+")
OWN = re.compile(r"^from mytransformer\.(\w+) import (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook; `source` has no line break at its end."""

    is_code: bool
    source: str
    tags: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """The exercises that the reader writes here."""


def chapters() -> list[Path]:
    """Return the files of the chapters in their order."""
    return sorted((IN_WHEEL if IN_WHEEL.is_dir() else IN_CHECKOUT).glob("[0-9][0-9]*-*.md"))


def cells_of(page: str) -> Iterator[Cell]:
    """Yield the cells of a page in MyST Markdown, with the definitions of exercises (`expanded`).

    >>> [cell.source for cell in cells_of("# A\\n\\n```{code-cell}\\n:tags: [hide-cell]\\n\\n1 + 1\\n```\\n")]
    ['# A', '1 + 1']
    """
    page = re.sub(r"\A---\n.*?\n---\n", "", page, flags=re.DOTALL)
    known: set[str] = set()
    for n, part in enumerate(CODE_CELL.split(page)):
        if n % 3 == 2:
            tags = TAGS.match(part)
            source = part[tags.end() :] if tags else part
            names = tuple(name for _, line in OWN.findall(source) for name in line.split(", "))
            source = _with_definitions(source, known).strip("\n")
            yield Cell(True, source, tuple(re.split(r",\s*", tags[1])) if tags else (), names)
        elif n % 3 == 0:
            yield from (Cell(False, text.strip()) for text in re.split(r"^\+\+\+$", part, flags=re.M) if text.strip())


def expanded(page: str) -> str:
    """Return a page with the definitions of exercises in place of their imports.

    In a chapter, `from mytransformer.attention import causal_mask` stands for the text of this solution, so that each
    solution exists once. The imports and given functions that it uses come before it, if no earlier cell has them.
    """
    known: set[str] = set()

    def cell(found: re.Match[str]) -> str:
        tags = TAGS.match(found[2])
        begin = tags[0] if tags else ""
        return f"```{{code-cell}}{found[1]}\n{begin}{_with_definitions(found[2][len(begin) :], known)}```"

    return CODE_CELL.sub(cell, page)


def _with_definitions(source: str, known: set[str]) -> str:
    """Return a cell with the definitions that it imports, and add the names that it defines to `known`."""
    if source.startswith("%"):
        return source
    pieces = OWN.split(source)  # text, module, names, text, …
    for n in range(0, len(pieces), 3):
        if n:
            pieces[n - 2], pieces[n - 1] = "", _definitions(pieces[n - 2], pieces[n - 1].split(", "), known)
        known |= {name for statement in ast.parse(pieces[n]).body for name in _names_of(statement)}
    return "".join(pieces)


def _definitions(module: str, names: Iterable[str], known: set[str]) -> str:
    """Return the text of definitions of a module of the solutions, after what they use and no cell has defined yet."""
    imports: dict[str, list[str]] = {}
    texts: list[str] = []

    def add(module: str, names: Iterable[str]) -> None:
        text = (SOLUTIONS / f"{module}.py").read_text("utf-8")
        lines, statements = text.split("\n"), ast.parse(text).body
        defined = {name: node for node in statements for name in _names_of(node)}
        for name in names:
            node = defined[name]
            known.add(name)
            for used in sorted({x.id for x in ast.walk(node) if isinstance(x, ast.Name)} - known):
                match defined.get(used):
                    case ast.Import():
                        imports.setdefault(f"import {used}", [])
                    case ast.ImportFrom(module=other, level=0):
                        imports.setdefault(f"from {other} import ", []).append(_alias(defined[used], used))
                    case ast.ImportFrom(module=str(other)) if used not in every_table():
                        add(other, [used])
                        continue
                    case ast.stmt() if used not in every_table():
                        add(module, [used])
                        continue
                    case _:
                        continue  # a name of Python, or an exercise, which the chapter defines or takes from the reader
                known.add(used)
            texts.append("\n".join(lines[first_line(node) : node.end_lineno]))

    add(module, names)
    head = sorted(line + ", ".join(sorted(parts)) for line, parts in imports.items())
    head.sort(key=lambda line: line.startswith("from"))
    return "\n\n".join(["\n".join(head), *texts] if head else texts)


def _alias(statement: ast.stmt, name: str) -> str:
    assert isinstance(statement, ast.ImportFrom)
    return next(ast.unparse(one) for one in statement.names if (one.asname or one.name) == name)


def _names_of(statement: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a module defines."""
    match statement:
        case ast.Import() | ast.ImportFrom():
            return [one.asname or one.name for one in statement.names]
        case ast.FunctionDef() | ast.ClassDef():
            return [statement.name]
    return [x.id for x in ast.walk(statement) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)]


def to_read(page: str) -> str:
    """Return a chapter as a notebook to read, in which the answers of the exercises are folded."""
    return _notebook(cells_of(page))


def to_write(page: str) -> str:
    """Return a chapter as a notebook to write: exercises are stubs with hints and a check; answers are at the end.

    The check puts what is right into the reader's package.
    """
    cells: list[Cell] = []
    answers = ["## Answers"]
    for cell in cells_of(page):
        exercises = [every_exercise()[name] for name in cell.names if name in every_exercise()]
        cells.append(replace(cell, source=stubs(cell.source, cell.names).strip("\n")) if exercises else cell)
        for exercise in exercises:
            hints = (f"<details><summary>Hint</summary>\n\n{hint}\n\n</details>" for hint in exercise.known.hints)
            cells.append(Cell(False, "\n\n".join(hints)))
            cells.append(Cell(True, f'course.check("{exercise.name}", {exercise.name}, keep="mycourse")'))
            summary = f"<details><summary><code>{exercise.name}</code></summary>"
            answers.append(f"{summary}\n\n```python\n{definition_of(cell.source, exercise.name)}\n```\n\n</details>")
    start = Cell(True, "from glassformer import course  # checks what you write")
    return _notebook([start, *cells, *([Cell(False, "\n\n".join(answers))] if answers[1:] else [])])


def _notebook(cells: Any) -> str:
    """Return cells as the text of a Jupyter notebook, format 4.5, after the cell that installs."""
    made = []
    for n, cell in enumerate([Cell(True, INSTALL.strip()), *cells]):
        kind = "code" if cell.is_code else "markdown"
        one = {"cell_type": kind, "id": f"cell-{n}", "metadata": {}, "source": cell.source.splitlines(keepends=True)}
        if cell.tags:
            one["metadata"] = {"tags": list(cell.tags)}
        if ANSWER in cell.tags:
            one["metadata"] |= {"jupyter": {"source_hidden": True, "outputs_hidden": True}}
        made.append(one | ({"execution_count": None, "outputs": []} if cell.is_code else {}))
    whole = {"cells": made, "metadata": {"kernelspec": KERNEL}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def write_notebooks(folder: Path, *, is_written: bool) -> list[Path]:
    """Write every chapter that has no file yet, to write or to read; return the paths.

    Raises `UserError` if all files exist.
    """
    paths = []
    for page in chapters():
        path = folder / f"{page.stem}.ipynb"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            text = page.read_text("utf-8")
            write_text(path, to_write(text) if is_written else to_read(text))
            paths.append(path)
    if not paths:
        raise UserError(f"{folder} has all notebooks already: choose another folder")
    return paths
