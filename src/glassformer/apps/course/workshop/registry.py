"""All exercises of the workshop, in the order of the chapters."""

from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

from glassformer.apps.course.workshop import exercises
from glassformer.apps.course.workshop.exercise import Exercise
from glassformer.apps.course.workshop.solutions import require_exercise
from glassformer.apps.course.workshop.tables import mistakes_in


@cache
def every_exercise() -> dict[str, Exercise]:
    """Return the exercises by name, with their known mistakes."""
    found: dict[str, Exercise] = {}
    for table in sorted(Path(exercises.__path__[0]).glob("ch*.mistakes")):
        known = mistakes_in(table)
        for exercise in import_module(f"{exercises.__name__}.{table.stem}").EXERCISES:
            found[exercise.name] = replace(exercise, mistakes=known[exercise.name])
    return found


def exercise_of(name: str) -> Exercise:
    """Return the exercise of a name; raise `UserError` for an unknown name."""
    require_exercise(name)
    return every_exercise()[name]
