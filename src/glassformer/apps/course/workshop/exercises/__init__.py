"""All exercises of the workshop, in the order of the chapters, with the known mistakes of each function.

The mistakes are a table per chapter, a text beside the exercises:

    # causal_mask

    The mask has True where a query may NOT attend: here, True means that it may.
    see course/05-attention#masks
    pitfall 6
    - .tril()
    + .triu(1)

A heading names the function. Empty lines separate its mistakes, which are tried in this order. A mistake has a sentence
in one line. The section that explains it ("see") and the number of its pitfall are optional. "-" begins the lines of an
excerpt of the solution, and "+" the lines that replace the excerpt; without "+", the excerpt is removed. An empty last
line means that the excerpt includes the end of the line before it. No line ends with a space.
"""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from glassformer.apps.course.workshop.exercise import Exercise, Mistake
from glassformer.apps.course.workshop.exercises import lineages, recurrent, transformer
from glassformer.apps.course.workshop.solutions import names, require_exercise


@cache
def every_exercise() -> dict[str, Exercise]:
    """Return the exercises by name, with their known mistakes."""
    known: dict[str, tuple[Mistake, ...]] = {}
    for file in dict.fromkeys(names().values()):
        known |= mistakes_in(Path(__file__).with_name(f"{file}.mistakes"))
    exercises = [*recurrent.EXERCISES, *transformer.EXERCISES, *lineages.EXERCISES]
    return {exercise.name: replace(exercise, mistakes=known[exercise.name]) for exercise in exercises}


def exercise_of(name: str) -> Exercise:
    """Return the exercise of a name; raise `UserError` for an unknown name."""
    require_exercise(name)
    return every_exercise()[name]


MISTAKE = re.compile(
    r"(?P<sentence>(?!see |pitfall |[-+#\s]).+\S)\n(?:see (?P<section>\S+)\n)?(?:pitfall (?P<pitfall>\d+)\n)?"
    r"(?P<old>(?:-(?: .*\S)?\n)+)(?P<new>(?:\+(?: .*\S)?\n)*)"
)


def mistakes_in(table: Path) -> dict[str, tuple[Mistake, ...]]:
    """Return the mistakes of each function of a table, in their order; raise `ValueError` for a malformed table."""
    found: dict[str, tuple[Mistake, ...]] = {}
    name, number = "", 1
    for block in table.read_text("utf-8").removesuffix("\n").split("\n\n"):
        if re.fullmatch(r"# \w+", block) and block[2:] not in found:
            name = block[2:]
            found[name] = ()
        elif name and (match := MISTAKE.fullmatch(block + "\n")):
            old, new = _code(match["old"]), _code(match["new"])
            mistake = Mistake(match["sentence"], old, new, match["section"] or "", int(match["pitfall"] or 0))
            found[name] += (mistake,)
        else:
            raise ValueError(
                f"{table.name}, line {number}: this is neither the heading of a new function, such as '# causal_mask', "
                "nor a mistake of one: a sentence, 'see' with a section and 'pitfall' with a number where they are "
                "stated, lines of code after '-', and lines after '+'; no line ends with a space"
            )
        number += block.count("\n") + 2
    return found


def _code(lines: str) -> str:
    """Return lines of code without their marks.

    >>> _code("- a = 1\\n-     b = 2\\n")
    'a = 1\\n    b = 2'
    """
    return "\n".join(line[2:] for line in lines.removesuffix("\n").split("\n"))
