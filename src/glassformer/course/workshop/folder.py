"""The reader's folder: one file of stubs per chapter, and the check of its content."""

import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from glassformer.course.workshop.checking import Verdict, judged
from glassformer.course.workshop.exercise import Exercise, stubs
from glassformer.course.workshop.registry import every_exercise, exercise_of
from glassformer.errors import UserError
from glassformer.files import write_text

PROGRESS = "progress.json"
MARKS = {"right": "✓", "slow": "✓", "empty": "·"}
"""Mark of a state on the map; all other states have ✗."""


def start(folder: Path) -> list[Path]:
    """Write the stubs of the chapters that have no file yet, and return their paths.

    Raises `UserError` if all files exist.
    """
    sources = {}
    for exercise in every_exercise().values():
        module = sys.modules[exercise.solution.__module__]
        sources[folder / f"{exercise.file}.py"] = stubs(inspect.getsource(module))
    new = {path: source for path, source in sources.items() if not path.exists()}
    if not new:
        raise UserError(f"{folder} has all files already: choose another folder, or delete a file to begin it again")
    folder.mkdir(parents=True, exist_ok=True)
    for path, source in new.items():
        write_text(path, source)
    return list(new)


@dataclass(frozen=True)
class Progress:
    """The verdicts of a check, and the states of all exercises after it."""

    verdicts: tuple[Verdict, ...]
    states: dict[str, str]
    names: tuple[str, ...] = ()
    """The functions that were asked for; () for all."""

    @property
    def n_right(self) -> int:
        return sum(state in ("right", "slow") for state in self.states.values())

    def __str__(self) -> str:
        """Return what is wrong, and a map of the course."""
        lines = [str(one) for one in self.verdicts if self.names or one.state not in ("empty", "right")]
        lines += [""] * bool(lines)
        by_file: dict[str, list[str]] = {}
        for exercise in every_exercise().values():
            mark = MARKS.get(self.states.get(exercise.name, "empty"), "✗")
            by_file.setdefault(exercise.file, []).append(f"{mark} {exercise.name}")
        lines += [f"{file:<18}{'  '.join(names)}" for file, names in by_file.items()]
        return "\n".join([*lines, f"{self.n_right} of {len(every_exercise())} are right"])


def check(folder: Path, names: Sequence[str] = ()) -> Progress:
    """Check all exercises of a folder, or those of the given names; keep the states in `progress.json`."""
    if not any((folder / f"{file}.py").is_file() for file in {exercise.file for exercise in every_exercise().values()}):
        raise UserError(f"{folder} has no file of the workshop; glassformer course start {folder} writes the stubs")
    chosen = [exercise_of(name) for name in names] or list(every_exercise().values())
    verdicts = []
    with importable(folder):
        modules = {exercise.file: _loaded(folder, exercise) for exercise in chosen}
        for exercise in chosen:
            verdicts.append(judged(exercise, getattr(modules[exercise.file], exercise.name, None)))
    states = _known_states(folder) | {verdict.name: verdict.state for verdict in verdicts}
    write_text(folder / PROGRESS, json.dumps(states, indent=1) + "\n")
    return Progress(tuple(verdicts), states, tuple(names))


def _loaded(folder: Path, exercise: Exercise) -> ModuleType:
    """Import the reader's file of an exercise, if there is one."""
    path = folder / f"{exercise.file}.py"
    module = ModuleType(exercise.file)
    if not path.is_file():
        return module
    spec = importlib.util.spec_from_file_location(exercise.file, path)
    assert spec is not None and spec.loader is not None
    if exercise.file in sys.modules:  # another file has imported it
        return sys.modules[exercise.file]
    module = sys.modules[exercise.file] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        place = f"{error.filename}, line {error.lineno}"
        raise UserError(f"{place}: {error.msg}; correct it, and check again") from error
    except Exception as error:
        raise UserError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let the reader's files import one another."""
    files = {exercise.file for exercise in every_exercise().values()}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in files:  # the next check reads them again
            sys.modules.pop(name, None)


def _known_states(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / PROGRESS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    known = every_exercise()
    return {name: state for name, state in found.items() if name in known} if isinstance(found, dict) else {}
