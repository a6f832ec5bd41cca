"""The chapters as Jupyter notebooks: one to read, and one to write, with stubs in place of the exercises.

A chapter is a text in MyST Markdown: code cells are between "```{code-cell}" and "```", and "+++" alone in a line
divides two cells of prose. The wheel has the chapters; in a checkout they are in `docs/course`.
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.apps.course.workshop.exercise import UNWRITTEN, Exercise, first_line
from glassformer.apps.course.workshop.exercises import every_exercise
from glassformer.common.errors import UserError
from glassformer.common.files import write_text

IN_WHEEL = Path(__file__).with_name("chapters")
IN_CHECKOUT = Path(__file__).parents[4] / "docs" / "course"
ANSWER = "hide-cell"
"""The tag of a cell with the answer of an exercise on paper."""
INSTALL = """\
# Install glassformer, if it is missing, from its wheel in this folder.
import glob
import importlib.util

if importlib.util.find_spec("glassformer") is None:
    wheels = glob.glob("glassformer-*.whl")
    assert wheels, "glassformer is missing: put its wheel into the folder of this notebook"
    %pip install --quiet "./{wheels[0]}[course]"
"""
"""The first cell of every notebook, which needs nothing but the wheel."""
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook; `source` has no line break at its end."""

    is_code: bool
    source: str
    tags: tuple[str, ...] = ()


def chapters() -> list[Path]:
    """Return the files of the chapters in their order."""
    folder = IN_WHEEL if IN_WHEEL.is_dir() else IN_CHECKOUT
    return sorted(folder.glob("[0-9][0-9]*-*.md"))


def cells_of(page: str) -> Iterator[Cell]:
    """Yield the cells of a page in MyST Markdown.

    >>> [cell.source for cell in cells_of("# A\\n\\n```{code-cell}\\n:tags: [hide-cell]\\n\\n1 + 1\\n```\\n")]
    ['# A', '1 + 1']
    """
    page = re.sub(r"\A---\n.*?\n---\n", "", page, flags=re.DOTALL)
    for n, part in enumerate(re.split(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)):
        if n % 2:
            tags = re.match(r":tags: \[(.*)\]\n+", part)
            source = part[tags.end() :] if tags else part
            yield Cell(True, source.strip("\n"), tuple(re.split(r",\s*", tags[1])) if tags else ())
        else:
            yield from (Cell(False, text.strip()) for text in re.split(r"^\+\+\+$", part, flags=re.M) if text.strip())


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
        found = exercises_in(cell)
        cells.append(Cell(True, _with_stubs(cell.source, found), cell.tags) if found else cell)
        for node, exercise in found:
            hints = "\n\n".join(
                f"<details><summary>Hint</summary>\n\n{hint}\n\n</details>" for hint in exercise.known.hints
            )
            cells.append(Cell(False, hints))
            cells.append(Cell(True, f'course.check("{exercise.name}", {exercise.name}, keep="mycourse")'))
            code = "\n".join(cell.source.split("\n")[first_line(node) : node.end_lineno])
            summary = f"<details><summary><code>{exercise.name}</code></summary>"
            answers.append(f"{summary}\n\n```python\n{code}\n```\n\n</details>")
    start = Cell(True, "from glassformer import course  # checks what you write")
    return _notebook([start, *cells, *([Cell(False, "\n\n".join(answers))] if answers[1:] else [])])


def exercises_in(cell: Cell) -> list[tuple[ast.FunctionDef | ast.ClassDef, Exercise]]:
    """Return the definitions of exercises in a cell."""
    if not cell.is_code or cell.source.startswith("%"):
        return []
    known = every_exercise()
    nodes = [node for node in ast.parse(cell.source).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [(node, known[node.name]) for node in nodes if node.name in known]


def _with_stubs(source: str, found: list[tuple[ast.FunctionDef | ast.ClassDef, Exercise]]) -> str:
    """Return the source of a cell without what the reader writes; docstrings are those of the solutions."""
    lines = source.split("\n")
    for node, exercise in reversed(found):
        [solved] = ast.parse(exercise.source()).body
        lines[node.lineno - 1 : node.end_lineno] = _stub(node, solved, lines, 4)
    return "\n".join(lines)


def _stub(node: Any, solved: Any, lines: list[str], indent: int) -> list[str]:
    head, space = lines[node.lineno - 1 : first_line(node.body[0]) if _is_definition(node.body[0]) else 0], " " * indent
    head = head or lines[node.lineno - 1 : node.body[0].lineno - 1]
    if text := ast.get_docstring(solved):
        first, *rest = f'"""{text}{"" if chr(10) not in text else chr(10)}"""'.split("\n")
        head += [space + first, *(space + line if line else "" for line in rest)]
    if isinstance(node, ast.FunctionDef):
        return [*head, f'{space}raise NotImplementedError("{UNWRITTEN}")']
    methods = {one.name: one for one in solved.body if isinstance(one, ast.FunctionDef)}
    for one in node.body:
        if isinstance(one, ast.FunctionDef) and one.name in methods:
            decorators = lines[first_line(one) : one.lineno - 1]
            head += ["", *decorators, *_stub(one, methods[one.name], lines, indent + 4)]
    return head


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef)


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
