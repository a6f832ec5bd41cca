"""Helpers of the course's notebooks: interactive pictures, text with computed numbers, sizes of short runs."""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from glassformer.course.widgets import Widget, widget

__all__ = ["Note", "Widget", "new_folder", "steps", "widget"]

SHORT = "GLASSFORMER_COURSE"
"""Environment variable: with the value "short", trainings are only long enough to run every line of a chapter."""


def steps(full: int, short: int = 20) -> int:
    """Return a number of steps or examples: `full` for a reader, `short` when only the code is tested.

    >>> steps(600) in (600, 20)
    True
    """
    return short if is_short() else full


def is_short() -> bool:
    """Return True if trainings are shortened, so that statements about their results are not true."""
    return os.environ.get(SHORT) == "short"


def new_folder(name: str) -> str:
    """Return the path of a folder that does not exist yet, for a run that a notebook may repeat."""
    return str(Path(tempfile.mkdtemp(prefix="glassformer-course-")) / name)


@dataclass(frozen=True)
class Note:
    """A paragraph of Markdown as the result of a cell: the way to write a computed number into a sentence.

    >>> Note(f"The table has **{3815 * 32:,}** numbers.").text
    'The table has **122,080** numbers.'
    """

    text: str

    def _repr_markdown_(self) -> str:
        return self.text
