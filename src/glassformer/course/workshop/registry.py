"""All exercises of the workshop, in the order of the chapters."""

import pkgutil
from functools import cache
from importlib import import_module

from glassformer.course.workshop import exercises
from glassformer.course.workshop.exercise import Exercise
from glassformer.course.workshop.solutions import require_exercise


@cache
def every_exercise() -> dict[str, Exercise]:
    """Return the exercises by name."""
    names = sorted(info.name for info in pkgutil.iter_modules(exercises.__path__) if info.name.startswith("ch"))
    modules = [import_module(f"{exercises.__name__}.{name}") for name in names]
    return {exercise.name: exercise for module in modules for exercise in module.EXERCISES}


def exercise_of(name: str) -> Exercise:
    """Return the exercise of a name; raise `UserError` for an unknown name."""
    require_exercise(name)
    return every_exercise()[name]
