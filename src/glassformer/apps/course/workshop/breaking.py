"""Working models with one planted fault each, for readers who look for it with tests of their own.

A fault in `tables/planted.faults` has the heading `# attention.py`, a paragraph with the symptom, the lines of the
solution after "-", those that replace them after "+", and a paragraph with its story.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from glassformer.apps.course.workshop.tables import PACKAGE, SOLUTIONS, TABLES
from glassformer.common.errors import UserError
from glassformer.common.files import write_text

FAULT = re.compile(
    r"# (?P<file>\w+\.py)\n\n(?P<symptom>.+)\n\n(?P<old>(?:- ?.*\n)+)(?P<new>(?:\+ ?.*\n)*)\n(?P<story>.+)\n"
)


@dataclass(frozen=True)
class Fault:
    """A change of one file of the solutions that makes a model worse without an error."""

    file: str
    symptom: str
    old: str
    new: str
    story: str


def every_fault() -> list[Fault]:
    """Return the faults, in their order."""
    found = [match.groupdict() for match in FAULT.finditer((TABLES / "planted.faults").read_text("utf-8"))]
    return [Fault(x["file"], x["symptom"], _code(x["old"]), _code(x["new"]), x["story"]) for x in found]


def _code(lines: str) -> str:
    return "\n".join(line[2:] for line in lines.splitlines())


def fault_of(number: int) -> Fault:
    """Return a fault by its number, from 1."""
    faults = every_fault()
    if not 1 <= number <= len(faults):
        raise UserError(f"the broken models have the numbers 1 to {len(faults)}, not {number}")
    return faults[number - 1]


def write_broken(number: int, folder: Path) -> Path:
    """Write the whole package with one planted fault to a folder, and return its path."""
    fault, package = fault_of(number), folder / PACKAGE
    if package.exists():
        raise UserError(f"{package} exists and is not replaced: choose another folder")
    package.mkdir(parents=True)
    for path in sorted(SOLUTIONS.glob("*.py")):
        text = path.read_text("utf-8")
        if path.name == fault.file:
            if text.count(fault.old) != 1:
                raise ValueError(f"{path.name} contains {fault.old!r} {text.count(fault.old)} times")
            text = text.replace(fault.old, fault.new)
        write_text(package / path.name, text)
    return package
