"""The reader's folder: one file of stubs per chapter, and the check of its content."""

import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from glassformer.apps.course.workshop.assembling import Definition, definitions
from glassformer.apps.course.workshop.checking import Verdict, judged, told
from glassformer.apps.course.workshop.exercise import Exercise, stubs, unreadable
from glassformer.apps.course.workshop.exercises import every_exercise
from glassformer.apps.course.workshop.lineage_checks import EVERY_LINEAGE, Lineage, judged_lineage
from glassformer.apps.course.workshop.solutions import LINEAGES_FILE, require_checked
from glassformer.apps.course.workshop.solutions import names as solution_names
from glassformer.common.errors import UserError
from glassformer.common.files import write_text

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
    """The verdicts of a check, and the states of all functions and models after the check."""

    verdicts: tuple[Verdict, ...]
    states: dict[str, str]
    names: tuple[str, ...] = ()
    """The names that the user asked to check; () for all."""

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
    """Return everything that a check covers: the functions, and the models that join them."""
    return [*every_exercise().values(), *EVERY_LINEAGE]


def check(folder: Path, names: Sequence[str] = ()) -> Progress:
    """Check a whole folder, or only the functions, models or files in `names`; store the states in `progress.json`."""
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
                verdicts.append(_of_the_reader(folder, judged_lineage(part, module)))
            else:
                verdicts.append(judged(part, getattr(module, part.name, None)))
    texts = _texts(folder)
    states = _known_states(folder, texts) | {verdict.name: verdict.state for verdict in verdicts}
    kept = {name: {"state": state, "text": texts.get(name, "")} for name, state in states.items()}
    write_text(folder / PROGRESS, json.dumps(kept, indent=1) + "\n")
    return Progress(tuple(verdicts), states, tuple(names))


def _loaded(folder: Path, file: str) -> ModuleType | str:
    """Import a file of the reader, or return why it cannot be imported; without the file, return an empty module."""
    path = folder / f"{file}.py"
    if not path.is_file():
        return ModuleType(file)
    if file in sys.modules:  # another file has imported it
        return sys.modules[file]
    spec = importlib.util.spec_from_file_location(file, path, loader=AsWritten(file, str(path.absolute())))
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


class AsWritten(SourceFileLoader):
    """Loader that never uses bytecode, which counts as current after an edit of equal size within one second."""

    def path_stats(self, path: str | bytes) -> NoReturn:
        raise OSError  # so bytecode is neither read nor written


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let the reader's files import one another."""
    files = {part.file for part in every_part()}
    sys.path.insert(0, str(folder))
    sys.path_importer_cache[str(folder)] = FileFinder(str(folder), (AsWritten, [".py"]))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.path_importer_cache.pop(str(folder), None)
        for name in files:  # the next check reads them again
            sys.modules.pop(name, None)


def _of_the_reader(folder: Path, verdict: Verdict) -> Verdict:
    """Return the verdict of a model. A model that runs with functions of the solutions counts as not written yet."""
    if not verdict.is_right:
        return verdict
    used = _definitions(folder / f"{LINEAGES_FILE}.py")
    borrowed = [name for name, file in solution_names().items() if name in used and _is_stub(folder, file, name)]
    if not borrowed:
        return verdict
    sentence = f"It runs with functions of the solutions: write {', '.join(borrowed[:3])}, and assemble again."
    return Verdict(verdict.name, "empty", sentence)


def _is_stub(folder: Path, file: str, name: str) -> bool:
    own = _definitions(folder / f"{file}.py").get(name)
    return own is None or own[-1].is_stub


def _texts(folder: Path) -> dict[str, str]:
    """Return a digest of the text on which each part depends: a function's own text, or the models' whole file."""
    parts = every_part()
    files = {part.file: _definitions(folder / f"{part.file}.py") for part in parts}
    texts: dict[str, str] = {}
    for part in parts:
        own = files[part.file]
        used = [own.get(part.name, [])] if isinstance(part, Exercise) else list(own.values())
        text = "\n".join(one.text for statements in used for one in statements)
        texts[part.name] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return texts


def _definitions(path: Path) -> dict[str, list[Definition]]:
    """Return the statements of a file of the reader by name; nothing for a missing or unreadable file."""
    try:
        return definitions(path.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}


def _known_states(folder: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the stored states of the functions and models whose text has not changed since their check."""
    try:
        found = json.loads((folder / PROGRESS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    kept = found.items() if isinstance(found, dict) else ()
    return {name: one["state"] for name, one in kept if isinstance(one, dict) and one.get("text") == texts.get(name)}
