"""The page of the mistakes that the check of the workshop names.

It also has the pitfalls that no function of the workshop can make.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from markup import index, table

from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.exercises import every_exercise

PITFALLS = Path(__file__).parent / "pitfalls.md"
CHAPTERS = Path(__file__).parent / "course"

IN_NO_FUNCTION = {
    15: "A table that is not shared gives an error of shapes or other weights, and not a wrong number.",
    17: "All sizes are arguments.",
    22: "No function divides a text into training and validation data.",
    24: "No function exchanges gradients between processes.",
    28: "The tokens that a function makes are texts. All ids are arguments.",
    30: "No function has both a tokenizer and a table of embeddings.",
}
"""For each pitfall that no function of the workshop can make, the reason."""


def page() -> str:
    """List the known mistakes of all functions, chapter by chapter, and the pitfalls without one."""
    lines = [
        "# Mistakes that the workshop names",
        "",
        *index(["mistakes", "grader", "course check"]),
        "`glassformer course check` names these mistakes in the functions of [the workshop](../../course/workshop.md).",
        "The chapter of an exercise explains them; a link names another place.",
        "A pitfall is a mistake of [the list of common ones](../../pitfalls.md), and has its number.",
        "",
    ]
    for chapter, group in groupby(every_exercise().values(), key=lambda exercise: exercise.chapter):
        [page] = CHAPTERS.glob(f"{chapter:02}-*.md")
        title = re.findall(r"^# (.*)$", page.read_text("utf-8"), re.MULTILINE)[0]
        rows = (row for exercise in group for row in mistakes(exercise, page.stem))
        lines += [f"## {title}", "", *table(("Exercise", "Mistake", "Pitfall"), rows)]
    lines += ["## Pitfalls that no function of the workshop can make", ""]
    lines += table(("Pitfall", "Why"), ((f"{n}. {titles()[n]}", reason) for n, reason in IN_NO_FUNCTION.items()))
    return "\n".join(lines)


def mistakes(exercise: Exercise, chapter: str) -> Iterator[tuple[str, str, str]]:
    """Yield function, sentence and pitfall of each known mistake; one that has several forms is listed once.

    The sentence ends with the place that explains it, if that is not the chapter as a whole.
    """
    known = (exercise.explained(mistake) for mistake in exercise.mistakes)
    for sentence, section, pitfall in dict.fromkeys((one.sentence, one.section, one.pitfall) for one in known):
        name, _, anchor = section.partition("#")
        link = f"[](../../{name}.md#{anchor})" if anchor else f"[](../../{name}.md)"
        own = section.removeprefix("course/") == chapter
        yield f"`{exercise.name}`", sentence if own else f"{sentence} ({link})", str(pitfall or "")


def titles() -> dict[int, str]:
    """Return the title of each pitfall."""
    found = re.findall(r"^(\d+)\. \*\*(.+?)\.?\*\*", PITFALLS.read_text("utf-8"), re.MULTILINE)
    return {int(number): title for number, title in found}
