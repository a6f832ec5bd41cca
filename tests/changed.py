"""Run the tests whose imports hold a file that differs from the base of the change: `make test CHANGED=1`.

python tests/changed.py [PYTEST OPTIONS …]

The base is the commit that the variable BASE names, or the newest common commit with main: with the branch of the
remote, or the local one. On main itself no base is known, and all tests run.

A test imports what its file and its fixtures import, and what these import in turn, lazy imports included. A module
that a file names in a text is imported too; in the source this counts inside one package only, as in the tables of
verbs and of tasks. A test that starts a process or reads all sources needs every module. A file of the source that is
not Python belongs to the modules of its folder, and a file outside of the source to the tests that name its folder.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS, SOURCE = ROOT / "tests", ROOT / "src"
PACKAGE = SOURCE / "glassformer"
FOR_ALL = {ROOT / name for name in ("pyproject.toml", "constraints.txt", "tests/conftest.py", "tests/processors.py")}
"""Files that every test needs."""
NEEDS_ALL = re.compile(r"\bsubprocess\b|\benvironment\b|\.rglob\(")
"""Signs that a test starts a process, or reads all sources."""


@cache
def modules() -> dict[str, Path]:
    """Return the modules of the package and of the tests by their dotted names."""
    found = {}
    for folder in (SOURCE, TESTS):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@cache
def public_names() -> dict[str, str]:
    """Return the modules that define the names of `glassformer`, which are imported on first use."""
    tree = tree_of(PACKAGE / "__init__.py")
    lazy = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {f"glassformer.{alias.name}": f"{node.module}.{alias.name}" for node in lazy for alias in node.names}


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield the dotted names that a tree imports, and those in its texts; a name that ends with a dot is a package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (f"text {name}" for name in re.findall(r"\bglassformer(?:\.\w+)+\.?", node.value))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}" if node.value.id == "glassformer" else ""


def imported(tree: ast.AST, path: Path) -> Iterator[Path]:
    """Yield the files that a tree inside a file imports."""
    for given in names_in(tree):
        name = given.removeprefix("text ")
        if name.endswith("."):
            yield from (file for module, file in modules().items() if module.startswith(name))
        name = public_names().get(name, name).rstrip(".")
        while name and name not in modules():
            name = name.rpartition(".")[0]
        is_far = (
            given.startswith("text ")
            and path.is_relative_to(SOURCE)
            and modules().get(name, path).parent != path.parent
        )
        if name and not is_far:
            yield modules()[name]


@cache
def direct(path: Path) -> frozenset[Path]:
    """Return the files that a file imports; `glassformer/__init__.py` imports on first use, see `public_names`."""
    return frozenset() if path == PACKAGE / "__init__.py" else frozenset(imported(tree_of(path), path))


def closure(start: Iterable[Path]) -> set[Path]:
    """Return files, the files that they import, and so on."""
    found, todo = set[Path](), list(start)
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += direct(path)
    return found


def asked(tree: ast.AST) -> set[str]:
    """Return the names of fixtures that a tree may ask for: its arguments, and its texts as in `usefixtures`."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return texts | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def fixtures(test: Path) -> Iterator[tuple[ast.FunctionDef, Path]]:
    """Yield the fixtures that a test asks for, directly or through another fixture, with their files."""
    files = [folder / "conftest.py" for folder in test.parents if (folder / "conftest.py").exists()]
    known = {
        node.name: (node, path) for path in files for node in tree_of(path).body if isinstance(node, ast.FunctionDef)
    }
    todo, seen = asked(tree_of(test)), set[str]()
    while wanted := (todo & known.keys()) - seen:
        for name in wanted:
            yield known[name]
            todo |= asked(known[name][0])
        seen |= wanted


@cache
def needs(test: Path) -> frozenset[Path]:
    """Return all files that a test file depends on."""
    start, near = {test}, test.with_name("conftest.py")
    if near.exists() and near not in FOR_ALL:
        start.add(near)
    for fixture, path in fixtures(test):
        start |= {path, *imported(fixture, path)} - FOR_ALL
    if NEEDS_ALL.search(test.read_text("utf-8")):
        start |= set(PACKAGE.rglob("*.py"))
    return frozenset(closure(start))


def git(*words: str) -> list[str]:
    """Return the lines that git prints; nothing if it fails."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def base() -> str | None:
    """Return the commit before the change, or None if it is unknown."""
    [head] = git("rev-parse", "HEAD") or [""]
    if given := os.environ.get("BASE"):
        if found := git("rev-parse", "--verify", "--quiet", f"{given}^{{commit}}"):
            return found[0]
        sys.exit(f"BASE={given} is no commit of this repository")
    for branch in ("origin/main", "main"):
        for commit in git("merge-base", "HEAD", branch):
            if commit != head or git("status", "--porcelain"):
                return commit
    return None


def changed_files(since: str) -> set[Path]:
    """Return the files that differ from a commit, uncommitted and new ones included."""
    names = git("diff", "--name-only", since) + git("ls-files", "--others", "--exclude-standard")
    return {ROOT / name for name in names}


def with_modules(changed: set[Path]) -> set[Path]:
    """Add the modules that changed files of the source belong to: those of the nearest folder that has modules."""
    found = set(changed)
    for path in changed:
        if path.is_relative_to(PACKAGE) and path.suffix != ".py":
            found |= set(next(files for folder in path.parents if (files := list(folder.glob("*.py")))))
    return found


@cache
def all_tests() -> tuple[Path, ...]:
    """Return the test files, and the source files with doctests."""
    doctests = [path for path in sorted(SOURCE.rglob("*.py")) if ">>>" in path.read_text("utf-8")]
    return (*sorted(TESTS.rglob("test_*.py")), *doctests)


def steps_to(test: Path, files: set[Path]) -> int:
    """Return how many imports lead from a test to the nearest of the files; a large number where no import does."""
    found, n = {test}, 0
    seen = set(found)
    while found and not found & files:
        found = {path for near in found for path in direct(near)} - seen
        seen |= found
        n += 1
    return n if found else len(modules())


def touched(changed: set[Path], tests: Sequence[Path]) -> Sequence[Path]:
    """Return the files of tests that depend on changed files, those with the nearest changed file first."""
    if changed & FOR_ALL:
        return tests
    files = with_modules(changed)
    outside = {path.relative_to(ROOT).parts[0] for path in changed if not path.is_relative_to(SOURCE)} - {"tests"}
    named = re.compile("|".join(map(re.escape, outside)) or "(?!)")
    found = [path for path in tests if needs(path) & files or named.search(path.read_text("utf-8"))]
    return sorted(found, key=lambda path: steps_to(path, files))


def main(options: list[str]) -> int:
    """Run the tests that depend on changed files; return the exit code of pytest."""
    since = base()
    if since is None:
        print("this is main itself, and the variable BASE names no commit before the change: all tests run", flush=True)
        return int(pytest.main(options))
    changed = changed_files(since)
    files = touched(changed, all_tests())
    print(
        f"{len(changed)} files differ from {since[:10]}; {len(files)} files have tests that depend on them", flush=True
    )
    return int(pytest.main([*options, *map(str, files)])) if files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
