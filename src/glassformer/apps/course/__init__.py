"""Helpers of the course's notebooks: pictures, computed sentences, the workshop's check, sizes of short runs.

It imports `common`. `mytransformer` is the package of the solutions. Begin with `workshop/checking.py`.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.apps.course.pictures import Drawing, Widget, drawing, widget
from glassformer.common.errors import UserError
from glassformer.common.formatting import show

__all__ = ["Drawing", "Note", "Widget", "case", "check", "drawing", "new_folder", "part", "steps", "widget"]

SHORT = "GLASSFORMER_COURSE"
"""Environment variable: with the value "short", trainings are only long enough to run every line of a chapter."""


def steps(full: int, short: int = 20) -> int:
    """Return a number of steps or examples: `full` for a reader, `short` when only the code is tested.

    >>> steps(600) in (600, 20)
    True
    """
    return short if is_short() else full


def is_short() -> bool:
    """Return True if trainings are shortened. Then the notebook's statements about their results are not true."""
    return os.environ.get(SHORT) == "short"


def new_folder(name: str) -> str:
    """Return the path of a folder that does not exist yet, for a run that a notebook may repeat."""
    return str(Path(tempfile.mkdtemp(prefix="glassformer-course-")) / name)


def check(name: str, mine: Callable[..., Any], keep: str | Path | None = None) -> None:
    """Test your function or class by an exercise of the workshop, and print what `course check` would print.

    `mine` runs in this process, for 30 seconds at most. If it is right, its text is put into the package in the folder
    `keep`. Raises `UserError` for an unknown name.

    >>> check("most_frequent_pair", lambda counts: min(counts, key=lambda pair: (counts[pair], pair)))
    most_frequent_pair: mistake. This is the pair with the smallest count: change the sign. See course/01-text-to-ids.
    """
    if not callable(mine):
        raise UserError(
            f"check({name!r}, …) needs your function, not {type(mine).__name__}: give it without parentheses"
        )
    from glassformer.apps.course.workshop.checking import judged  # imports torch
    from glassformer.apps.course.workshop.exercises import exercise_of

    verdict = judged(exercise_of(name), mine)
    show(str(verdict))
    if keep is not None and verdict.is_right:
        from glassformer.apps.course.workshop.folder import keep_part

        show(keep_part(Path(keep), name, mine))


def part(name: str, folder: str | Path = "mycourse") -> Any:
    """Return your own function or class from the folder of the workshop, or its solution if you have not written it.

    >>> part("softmax", "nowhere").__module__
    'glassformer.apps.course.mytransformer.train'
    """
    from glassformer.apps.course.workshop.folder import own_part

    return own_part(Path(folder), name)


def case(name: str, number: int = 1) -> tuple[Any, ...]:
    """Return the arguments of test `number` of an exercise, as a check counts the tests ("In test 3 of 5").

    >>> case("most_frequent_pair")
    ({('l', 'o'): 7, ('o', 'w'): 7, ('e', 'r'): 2},)
    """
    from glassformer.apps.course.workshop.tables import require_exercise

    require_exercise(name)
    from glassformer.apps.course.workshop.exercises import exercise_of  # imports torch

    found = exercise_of(name).cases()
    if not 1 <= number <= len(found):
        raise UserError(f"{name} has the tests 1 to {len(found)}, and no test {number}")
    return found[number - 1]


@dataclass(frozen=True)
class Note:
    """A paragraph of Markdown as the result of a cell; it can contain computed numbers.

    >>> Note(f"The table has **{3815 * 32:,}** numbers.").text
    'The table has **122,080** numbers.'
    """

    text: str

    def _repr_markdown_(self) -> str:
        return self.text
