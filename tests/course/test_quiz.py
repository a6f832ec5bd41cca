"""The code quiz names places of the source that exist."""

import ast
import re
from pathlib import Path

import glassformer

QUIZ = Path(__file__).parents[2] / "docs" / "course" / "quiz.md"
SOURCE = Path(glassformer.__file__).parent
QUESTIONS = re.split(r"^\d+\. ", QUIZ.read_text("utf-8"), flags=re.MULTILINE)[1:]


def defined(path: Path) -> set[str]:
    """Return the names of all functions and classes of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_there_are_thirty_questions_in_order() -> None:
    numbers = re.findall(r"^(\d+)\. ", QUIZ.read_text("utf-8"), re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, 31))


def test_every_answer_names_places_that_exist() -> None:
    for question in QUESTIONS:
        places = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", question)
        assert places, f"no place: {question}"
        for file, name in places:
            assert (SOURCE / file).exists(), f"{file} does not exist"
            assert not name or name in defined(SOURCE / file), f"{file} has no {name}"
