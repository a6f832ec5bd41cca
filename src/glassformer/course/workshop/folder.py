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

from glassformer.course.workshop.checking import Verdict, judged, told
from glassformer.course.workshop.exercise import Exercise, stubs, unreadable
from glassformer.course.workshop.lineage_checks import EVERY_LINEAGE, Lineage, judged_lineage
from glassformer.course.workshop.registry import every_exercise
from glassformer.course.workshop.solutions import require_checked
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
    """The verdicts of a check, and the states of all functions and models after it."""

    verdicts: tuple[Verdict, ...]
    states: dict[str, str]
    names: tuple[str, ...] = ()
    """The names that were asked for; () for all."""

    @property
    def n_right(self) -> int:
        return sum(state in ("right", "slow") for state in self.states.values())

    def __str__(self) -> str:
        """Return what is wrong, and a map of the course."""
        lines = [str(one) for one in self.verdicts if self.names or one.state not in ("empty", "right")]
        lines += [""] * bool(lines)
        by_file: dict[str, list[str]] = {}
        for part in every_part():
            mark = MARKS.get(self.states.get(part.name, "empty"), "✗")
            by_file.setdefault(part.file, []).append(f"{mark} {part.name}")
        lines += [f"{file:<18}{'  '.join(names)}" for file, names in by_file.items()]
        return "\n".join([*lines, f"{self.n_right} of {len(every_part())} are right"])


def every_part() -> list[Exercise | Lineage]:
    """Return all that is checked: the functions, and the models that join them."""
    return [*every_exercise().values(), *EVERY_LINEAGE]


def check(folder: Path, names: Sequence[str] = ()) -> Progress:
    """Check all of a folder, or what is named: functions, models or files; keep the states in `progress.json`."""
    for name in names:
        require_checked(name)
    parts = every_part()
    if not any((folder / f"{part.file}.py").is_file() for part in parts):
        raise UserError(f"{folder} has no file of the workshop; glassformer course start {folder} writes the stubs")
    chosen = [part for part in parts if not names or part.name in names or part.file in names]
    verdicts = []
    with importable(folder):
        modules = {part.file: _loaded(folder, part.file) for part in chosen}
        for part in chosen:
            module = modules[part.file]
            if isinstance(module, str):
                verdicts.append(Verdict(part.name, "wrong", module))
            elif isinstance(part, Lineage):
                verdicts.append(judged_lineage(part, module))
            else:
                verdicts.append(judged(part, getattr(module, part.name, None)))
    states = _known_states(folder) | {verdict.name: verdict.state for verdict in verdicts}
    write_text(folder / PROGRESS, json.dumps(states, indent=1) + "\n")
    return Progress(tuple(verdicts), states, tuple(names))


def _loaded(folder: Path, file: str) -> ModuleType | str:
    """Import a file of the reader, or return why it cannot be imported; without the file, return an empty module."""
    path = folder / f"{file}.py"
    if not path.is_file():
        return ModuleType(file)
    if file in sys.modules:  # another file has imported it
        return sys.modules[file]
    spec = importlib.util.spec_from_file_location(file, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[file] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(file, None)  # the files that import it fail too
        if isinstance(error, SyntaxError):
            return f"{unreadable(path, error)}; correct it, and check again."
        return f"{path.name} cannot be imported: {told(error, str(module.__file__))}"
    return module


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let the reader's files import one another."""
    files = {part.file for part in every_part()}
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
    known = {part.name for part in every_part()}
    return {name: state for name, state in found.items() if name in known} if isinstance(found, dict) else {}
