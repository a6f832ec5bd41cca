"""The code of every chapter, and of every program of `from-notebooks`, runs without an error or a warning.

Trainings of the chapters have few steps here. `tests/test_site.py` renders one of them. Here the cells of all chapters
run in this process, which saves the start of a kernel for each. `make docs` runs them in full, and checks what they
state about trainings. Chapters that teach by writing show the solutions of all exercises of the workshop.
"""

import ast
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.apps.course.notebooks import cells_of
from glassformer.apps.course.workshop.exercises import every_exercise

WRITING = ("01", "02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "13", "14")
"""Chapters whose code is that of the workshop's exercises."""
DOCS = Path(__file__).parents[2] / "docs"
CHAPTERS = sorted((DOCS / "course").glob("[0-9][0-9]*-*.md"))
PROGRAMS = sorted((DOCS / "from-notebooks").glob("[0-9]-*.md"))


@pytest.fixture
def default_printing() -> Iterator[None]:
    """Undo a chapter's number of printed digits: doctests of the same process compare printed tensors."""
    yield
    torch.set_printoptions(profile="default")


def show(value: Any) -> None:
    """Make what a notebook displays for the value of a cell."""
    from matplotlib.figure import Figure

    if isinstance(value, Figure):
        value.canvas.draw()
    for kind in ("_repr_markdown_", "_repr_html_"):
        if hasattr(value, kind):
            getattr(value, kind)()


def run(source: str, where: str, names: dict[str, Any]) -> None:
    """Run a cell; its last expression is its value."""
    tree = ast.parse(source, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, where, "exec"), names)
    if isinstance(last, ast.Expr):
        show(eval(compile(ast.Expression(last.value), where, "eval"), names))


def test_the_course_has_fifteen_chapters() -> None:
    assert [path.name.split("-")[0] for path in CHAPTERS] == sorted(["09b", *(f"{n:02}" for n in range(1, 16))])


@pytest.mark.parametrize("chapter", CHAPTERS + PROGRAMS, ids=lambda path: path.stem)
def test_the_code_of_a_chapter_is_python_and_imports_what_exists(chapter: Path) -> None:
    cells = [cell for cell in cells_of(chapter.read_text("utf-8")) if cell.is_code]
    assert len(cells) > 5
    for n, cell in enumerate(cells):
        for node in ast.walk(ast.parse(cell.source, f"{chapter.name}, code cell {n}")):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "glassformer":
                exec(compile(ast.Module([node], []), chapter.name, "exec"), {})


@pytest.mark.usefixtures("default_printing")
@pytest.mark.parametrize("chapter", CHAPTERS + PROGRAMS, ids=lambda path: path.stem)
def test_a_chapter_runs(chapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSFORMER_COURSE", "short")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for n, cell in enumerate(cells_of(chapter.read_text("utf-8"))):
        if cell.is_code:
            run(cell.source, f"{chapter.name}, cell {n}", names)
    number = chapter.name.partition("-")[0]
    for exercise in every_exercise().values():
        if number in WRITING and exercise.chapter == int(number):
            assert names[exercise.name].__module__ == "__main__", f"{exercise.name} is imported"
