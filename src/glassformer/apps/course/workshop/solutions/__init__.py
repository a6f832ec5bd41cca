"""The solutions of the workshop, one module per chapter. Without function bodies, they are the reader's stubs."""

import ast
from collections.abc import Collection
from pathlib import Path

from glassformer.common.errors import UserError, did_you_mean

LINEAGES = ("bahdanau", "luong", "transformer", "bart", "bert", "gpt")
"""Names of the models that the reader's functions form."""
LINEAGES_FILE = "lineages"


def names() -> dict[str, str]:
    """Return the module of each function, in the order of the chapters, without importing the modules and so torch."""
    found: dict[str, str] = {}
    for path in sorted(Path(__file__).parent.glob("ch*.py")):
        functions = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)]
        found |= {function.name: path.stem for function in functions}
    return found


def solution_path(file: str) -> Path:
    """Return the path of the solution of a reader's file."""
    return Path(__file__).parent / f"{file}.py"


def require_exercise(name: str) -> None:
    """Raise `UserError` if the workshop has no function of this name."""
    _require(name, names())


def require_checked(name: str) -> None:
    """Raise `UserError` if no function, model or file has this name."""
    known = names()
    _require(name, [*known, *LINEAGES, LINEAGES_FILE, *dict.fromkeys(known.values())])


def _require(name: str, known: Collection[str]) -> None:
    if name not in known:
        raise UserError(f"the workshop has no exercise {name!r}; {did_you_mean(name, known, 'exercises are')}")
