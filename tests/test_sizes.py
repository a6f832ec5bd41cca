"""The size of the project. A change that makes a number larger changes its limit here, and its commit states why."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import glassformer
from glassformer.apps.cli.arguments import Group, Signature, all_flags
from glassformer.apps.cli.main import VERBS
from test_imports import FLOORS

PACKAGE = Path(glassformer.__file__).parent
ROOT = PACKAGE.parents[1]
LIMITS = {
    "lines of Python": 67_760,
    "lines of Python in the core": 43_490,
    "lines of JavaScript, CSS and HTML": 15_555,
    "files of Python": 356,
    "files of Python under 60 lines": 43,
    "keys of a run": 244,
    "options of verbs": 235,
    "verbs and sub-verbs": 45,
    "rooms, and files beside them": 26,
    "floors": 12,
    "calls of isinstance": 724,
    "conditional expressions": 1_027,
    "words of documents, without tables of results": 134_130,
}


@cache
def sources() -> dict[Path, str]:
    """Return the texts of the package by their paths."""
    found = (path for kind in ("py", "js", "css", "html") for path in PACKAGE.rglob(f"*.{kind}"))
    return {path: path.read_text("utf-8") for path in found}


def nodes() -> Iterator[ast.AST]:
    """Yield the nodes of all modules."""
    for path, text in sources().items():
        if path.suffix == ".py":
            yield from ast.walk(ast.parse(text))


def words() -> int:
    """Count the words of the documents, without the tables that `benchmarks/run.py --page` writes."""
    texts = (path.read_text("utf-8") for path in documents())
    return sum(len(re.sub(r"<!-- results of .*?<!-- end of ", "", text, flags=re.DOTALL).split()) for text in texts)


def documents() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"))
    yield from (path for path in (ROOT / "docs").rglob("*.md") if not {"_build", "generated"} & set(path.parts))


def counts() -> dict[str, int]:
    """Return the present size by the names of `LIMITS`."""
    lines = {path: len(text.splitlines()) for path, text in sources().items()}
    python = {path: n for path, n in lines.items() if path.suffix == ".py"}
    mains = [import_module(f"glassformer.apps.cli.{verb}").main for verb in VERBS]
    functions = [function for main in mains for function in (main.functions if isinstance(main, Group) else [main])]
    asked = [node for node in nodes() if isinstance(node, ast.IfExp | ast.Call)]
    return {
        "lines of Python": sum(python.values()),
        "lines of Python in the core": sum(n for path, n in python.items() if "apps" not in path.parts),
        "lines of JavaScript, CSS and HTML": sum(lines.values()) - sum(python.values()),
        "files of Python": len(python),
        "files of Python under 60 lines": sum(n < 60 for n in python.values()),
        "keys of a run": len({entry.key for entry in all_flags()}),
        "options of verbs": sum(len(Signature.of(function, "").options) for function in functions),
        "verbs and sub-verbs": len(functions),
        "rooms, and files beside them": sum(map(len, FLOORS)),
        "floors": len(FLOORS),
        "calls of isinstance": sum(getattr(getattr(node, "func", None), "id", "") == "isinstance" for node in asked),
        "conditional expressions": sum(isinstance(node, ast.IfExp) for node in asked),
        "words of documents, without tables of results": words(),
    }


def test_every_number_is_within_its_limit() -> None:
    found = counts()
    assert found.keys() == LIMITS.keys()
    larger = {name: f"{n:,}, limit {LIMITS[name]:,}" for name, n in found.items() if n > LIMITS[name]}
    assert not larger, larger


def test_the_limits_are_near_the_numbers() -> None:
    """Lower a limit after a change that makes its number smaller: otherwise it holds nothing."""
    loose = {name: n for name, n in counts().items() if n < 0.97 * LIMITS[name]}
    assert not loose, loose
