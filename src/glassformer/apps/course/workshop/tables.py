"""The tables of the workshop: every exercise with its hints and its known mistakes, as texts in `tables/`.

    # causal_mask

    hint `tril` keeps the lower triangle of a matrix.

    The mask has True where a query may NOT attend: here, True means that it may.
    see course/05-attention#masks
    pitfall 6
    - .tril()
    + .triu(1)

A heading names the exercise, a function or a class. Hints follow, one after the other from general to precise. Empty
lines separate its mistakes, which are tried in this order. A mistake has a sentence in one line. The section that
explains it ("see") and the number of its pitfall are optional. "-" begins the lines of an excerpt of the solution, and
"+" the lines that replace the excerpt; without "+", the excerpt is removed. An empty last line means that the excerpt
includes the end of the line before it. No line ends with a space.

    only a cache; a cache and padding: shape
    With a cache, the positions or the mask of the new tokens are wrong.

A sign is a sentence about a class in which only the uses with these titles fail, and with the stated beginnings of
their differences. It names the mistake where no change of the solution gives the reader's results. This module does not
import torch.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from glassformer.common.errors import UserError, nearest_name, suggestion

TABLES = Path(__file__).with_name("tables")
SOLUTIONS = Path(__file__).parents[1] / "mytransformer"
PACKAGE = SOLUTIONS.name


@dataclass(frozen=True)
class Mistake:
    """A change of the solution that makes a known mistake."""

    sentence: str
    """The sentence that names the mistake and its correction."""
    old: str
    """The excerpt of the solution that the mistake replaces. It occurs once in the solution."""
    new: str
    """The code that replaces the excerpt."""
    section: str = ""
    """The section of the documentation that explains the mistake. Default: the section of the pitfall or exercise."""
    pitfall: int = 0
    """The number of the mistake in docs/pitfalls.md; 0 if it is not listed there."""


@dataclass(frozen=True)
class Sign:
    """A sentence about a fault by which only some uses fail."""

    fails: tuple[str, ...]
    """Titles of uses, some with ": " and the beginning of the difference."""
    sentence: str

    def fits(self, differences: Mapping[str, str]) -> bool:
        """Return True if all uses that fail, given by title, are among these."""
        stated = [(title, begin) for title, _, begin in (one.partition(": ") for one in self.fails)]
        return all(
            any(title == one and where.startswith(begin) for one, begin in stated)
            for title, where in differences.items()
        )


@dataclass(frozen=True)
class Known:
    """The entry of an exercise in a table."""

    module: str
    hints: tuple[str, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    signs: tuple[Sign, ...] = ()


@cache
def every_table() -> dict[str, Known]:
    """Return what is known of each exercise, by its name."""
    return {name: known for path in sorted(TABLES.glob("*.mistakes")) for name, known in read(path).items()}


def require_exercise(name: str) -> None:
    """Raise `UserError` if the workshop has no exercise of this name."""
    _require(name, every_table())


def require_checked(name: str) -> None:
    """Raise `UserError` if a name is no exercise, file or number of a chapter."""
    known = every_table()
    if not re.fullmatch(r"\d+b?", name):
        _require(name, [*known, *dict.fromkeys(f"{one.module}.py" for one in known.values())])


def _require(name: str, known: Collection[str]) -> None:
    if name not in known:
        near = suggestion(nearest_name(name, known), ": glassformer course check DIR lists all")
        raise UserError(f"the workshop has no exercise {name!r}{near}")


MISTAKE = re.compile(
    r"(?P<sentence>(?!(?:see|pitfall|hint|only) |[-+#\s]).+\S)\n"
    r"(?:see (?P<section>\S+)\n)?(?:pitfall (?P<pitfall>\d+)\n)?"
    r"(?P<old>(?:-(?: .*\S)?\n)+)(?P<new>(?:\+(?: .*\S)?\n)*)"
)


def read(table: Path) -> dict[str, Known]:
    """Return the entry of each exercise in a table, in its order; raise `ValueError` for a malformed table."""
    found: dict[str, Known] = {}
    name, number = "", 1
    for block in table.read_text("utf-8").removesuffix("\n").split("\n\n"):
        one = found.get(name, Known(table.stem))
        if re.fullmatch(r"# \w+", block) and block[2:] not in found:
            name = block[2:]
            found[name] = Known(table.stem)
        elif name and re.fullmatch(r"hint .*\S", block) and not one.mistakes:
            found[name] = replace(one, hints=(*one.hints, block[5:]))
        elif name and (match := re.fullmatch(r"only (.*\S)\n(.*\S)", block)):
            found[name] = replace(one, signs=(*one.signs, Sign(tuple(match[1].split("; ")), match[2])))
        elif name and (match := MISTAKE.fullmatch(block + "\n")):
            old, new = _code(match["old"]), _code(match["new"])
            mistake = Mistake(match["sentence"], old, new, match["section"] or "", int(match["pitfall"] or 0))
            found[name] = replace(one, mistakes=(*one.mistakes, mistake))
        else:
            raise ValueError(
                f"{table.name}, line {number}: this is neither the heading of a new exercise, such as '# causal_mask', "
                "nor a hint before its mistakes, nor a sign ('only' with titles, and a sentence), nor a mistake: a "
                "sentence, 'see' with a section and 'pitfall' with a number where they are stated, lines of code after "
                "'-', and lines after '+'; no line ends with a space"
            )
        number += block.count("\n") + 2
    return found


def _code(lines: str) -> str:
    """Return lines of code without their marks.

    >>> _code("- a = 1\\n-     b = 2\\n")
    'a = 1\\n    b = 2'
    """
    return "\n".join(line[2:] for line in lines.removesuffix("\n").split("\n"))
