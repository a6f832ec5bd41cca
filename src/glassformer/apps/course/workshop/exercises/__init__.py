"""All exercises of the workshop, in the order of the chapters: steps are functions, and parts are larger."""

from dataclasses import replace
from functools import cache

from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.exercises import lineages, parts, recurrent, transformer
from glassformer.apps.course.workshop.tables import every_table, require_exercise


@cache
def every_exercise() -> dict[str, Exercise]:
    """Return the exercises by name, each with its table."""
    known = every_table()
    steps = [*recurrent.EXERCISES, *transformer.EXERCISES, *lineages.EXERCISES]
    ordered = sorted([*steps, *parts.EXERCISES], key=lambda exercise: exercise.chapter)
    return {exercise.name: replace(exercise, known=known[exercise.name]) for exercise in ordered}


def exercise_of(name: str) -> Exercise:
    """Return the exercise of a name; raise `UserError` for an unknown name."""
    require_exercise(name)
    return every_exercise()[name]
