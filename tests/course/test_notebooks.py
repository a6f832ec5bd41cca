"""Notebooks of the chapters: read as jupytext reads them, and with stubs that the reader fills."""

import json
from pathlib import Path

import pytest

import late
from glassformer.apps.cli.main import run
from glassformer.apps.course import notebooks
from glassformer.apps.course.workshop.exercise import Exercise, definition_of, stubs
from glassformer.apps.course.workshop.exercises import every_exercise
from glassformer.apps.course.workshop.folder import keep_part, own_part
from glassformer.apps.course.workshop.tables import PACKAGE, SOLUTIONS

jupytext = late.optional("jupytext")
nbformat = late.optional("nbformat")
CHAPTERS = notebooks.chapters()
EXERCISES = every_exercise()


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_cells_are_those_of_jupytext(chapter: Path) -> None:
    text = chapter.read_text("utf-8")
    expected = jupytext.reads(notebooks.expanded(text), fmt="md:myst").cells
    found = list(notebooks.cells_of(text))
    assert [(cell.is_code, cell.source, list(cell.tags)) for cell in found] == [
        (cell.cell_type == "code", cell.source.strip("\n"), cell.metadata.get("tags", [])) for cell in expected
    ]
    nbformat.validate(nbformat.reads(notebooks.to_read(text), as_version=4))


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_notebook_to_write_has_stubs_hints_checks_and_answers(chapter: Path) -> None:
    text = chapter.read_text("utf-8")
    cells = [("".join(cell["source"]), cell["cell_type"]) for cell in json.loads(notebooks.to_write(text))["cells"]]
    asked = [EXERCISES[name] for cell in notebooks.cells_of(text) for name in cell.names if name in EXERCISES]
    sources = [source for source, _ in cells]
    for exercise in asked:
        assert f'course.check("{exercise.name}", {exercise.name}, keep="mycourse")' in sources
        assert f"<code>{exercise.name}</code>" in sources[-1] and exercise.known.hints[0] in "\n".join(sources)
    shown = "\n\n".join(source for source, kind in cells if kind == "code" and "raise NotImplementedError(" in source)
    for exercise in asked:
        stub = definition_of(shown, exercise.name)
        assert stub == definition_of(stubs_beside(exercise), exercise.name)


def stubs_beside(exercise: Exercise) -> str:
    """Return the file of an exercise as `course start` writes it."""
    return stubs((SOLUTIONS / exercise.file).read_text("utf-8"), list(EXERCISES))


def test_what_is_right_in_a_notebook_grows_the_package(tmp_path: Path) -> None:
    """Stubs are filled once; what the reader has written already is never replaced."""
    causal_mask = EXERCISES["causal_mask"].solution
    place = tmp_path / PACKAGE / "attention.py"
    assert own_part(tmp_path, "causal_mask") is causal_mask
    assert keep_part(tmp_path, "causal_mask", causal_mask) == f"{place} has it."
    assert keep_part(tmp_path, "causal_mask", causal_mask) == f"{place} has it already."
    assert own_part(tmp_path, "causal_mask")(3).tolist() == causal_mask(3).tolist()
    assert own_part(tmp_path, "causal_mask") is not causal_mask
    place.write_text(place.read_text("utf-8").replace("return torch.ones(n_tokens", "return 1 * torch.ones(n_tokens"))
    assert "has another causal_mask, which stays" in keep_part(tmp_path, "causal_mask", causal_mask)


def test_start_writes_notebooks_and_replaces_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    assert run(["course", "start", str(folder), "--notebooks", "write"]) == 0
    paths = sorted(folder.glob("*.ipynb"))
    assert [path.stem for path in paths] == [chapter.stem for chapter in CHAPTERS]
    paths[0].write_text("mine", "utf-8")
    paths[1].unlink()
    assert run(["course", "start", str(folder), "--notebooks", "write"]) == 0
    assert paths[0].read_text("utf-8") == "mine" and paths[1].exists()
    assert run(["course", "start", str(folder), "--notebooks", "read"]) == 2
    assert "has all notebooks already" in capsys.readouterr().err
