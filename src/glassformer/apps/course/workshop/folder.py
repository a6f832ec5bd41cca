"""The reader's folder: the package `mytransformer` as stubs, and the check of its content."""

import hashlib
import importlib
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

from glassformer.apps.course.workshop.checking import Verdict, judged, told
from glassformer.apps.course.workshop.exercise import UNWRITTEN, Exercise, definition_of, stubs, unreadable
from glassformer.apps.course.workshop.exercises import every_exercise, exercise_of
from glassformer.apps.course.workshop.tables import PACKAGE, SOLUTIONS, require_checked
from glassformer.common.errors import UserError
from glassformer.common.files import write_text

PROGRESS = "progress.json"
MARKS = {"right": "✓", "slow": "✓", "empty": "·"}
"""Mark of a state on the map; all other states have ✗."""


def start(folder: Path) -> list[Path]:
    """Write the files of the reader's package that do not exist yet, and return their paths.

    Raises `UserError` if all files exist.
    """
    exercises = every_exercise().values()
    new = []
    for solution in sorted(SOLUTIONS.glob("*.py")):
        path = folder / PACKAGE / solution.name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            names = [exercise.name for exercise in exercises if exercise.file == solution.name]
            write_text(path, stubs(solution.read_text("utf-8"), names))
            new.append(path)
    if not new:
        raise UserError(f"{folder} has all files already: choose another folder, or delete a file to begin it again")
    return new


@dataclass(frozen=True)
class Progress:
    """The verdicts of a check, and the states of all exercises after the check."""

    verdicts: tuple[Verdict, ...]
    states: dict[str, str]
    names: tuple[str, ...] = ()
    """The names that the user asked to check; () for all."""

    @property
    def n_right(self) -> int:
        return sum(state in ("right", "slow") for state in self.states.values())

    @property
    def is_right(self) -> bool:
        """True if all that was asked for is right."""
        return all(verdict.is_right for verdict in self.verdicts)

    def as_json(self) -> dict[str, Any]:
        """Return the verdicts and the number of exercises that are right, for other programs."""
        return {"right": self.n_right, "exercises": len(every_exercise()), "verdicts": list(map(asdict, self.verdicts))}

    def __str__(self) -> str:
        """Return what is wrong and, after a check of everything, a map of the course by chapter."""
        lines = [str(one) for one in self.verdicts if self.names or one.state not in ("empty", "right")]
        if not self.names:
            lines += [""] * bool(lines)
            by_chapter: dict[int, list[str]] = {}
            for exercise in every_exercise().values():
                mark = MARKS.get(self.states.get(exercise.name, "empty"), "✗")
                by_chapter.setdefault(exercise.chapter, []).append(f"{mark} {exercise.name}")
            lines += [f"chapter {chapter:<4}{'  '.join(names)}" for chapter, names in by_chapter.items()]
        return "\n".join([*lines, f"{self.n_right} of {len(every_exercise())} are right"])


def check(folder: Path, names: Sequence[str] = (), *, is_kept: bool = True) -> Progress:
    """Check a whole folder, or the exercises, files or chapters in `names`.

    With `is_kept`, the states are stored in `progress.json`.
    """
    for name in names:
        require_checked(name)
    if not (folder / PACKAGE).is_dir():
        raise UserError(f"{folder} has no folder {PACKAGE}; glassformer course start {folder} writes it")
    exercises = every_exercise().values()
    chosen = [one for one in exercises if one.is_named(names)]
    if not chosen:
        raise UserError(f"no exercise belongs to chapter {', '.join(names)}")
    verdicts = []
    texts = _texts(folder)
    with importable(folder):
        modules = {exercise.module: _loaded(folder, exercise.module) for exercise in exercises}
        for exercise in chosen:
            verdict = _judged(exercise, modules)
            is_loaded = not isinstance(modules[exercise.module], str)
            if verdict.state == "wrong" and is_loaded and (cause := _cause(exercise, texts, modules)):
                verdict = Verdict(verdict.name, verdict.state, f"{verdict.sentence} {cause}", verdict.section)
            verdicts.append(verdict)
    digests = {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in texts.items()}
    states = _known_states(folder, digests) | {verdict.name: verdict.state for verdict in verdicts}
    kept = {name: {"state": state, "text": digests[name]} for name, state in states.items()}
    if is_kept:
        write_text(folder / PROGRESS, json.dumps(kept, indent=1) + "\n")
    return Progress(tuple(verdicts), states, tuple(names))


def own_part(folder: Path, name: str) -> Any:
    """Return what the reader wrote under the name of an exercise; the solution if it is a stub or not there."""
    exercise = exercise_of(name)
    text = _texts(folder)[name]
    if not text or f'raise NotImplementedError("{UNWRITTEN}")' in text:
        return exercise.solution
    with importable(folder):
        module = _loaded(folder, exercise.module)
    if isinstance(module, str):
        raise UserError(module)
    return getattr(module, name)


def keep_part(folder: Path, name: str, mine: Any) -> str:
    """Put the text of a function or class of a notebook into the reader's package; return a sentence about it."""
    exercise = exercise_of(name)
    path = folder / PACKAGE / exercise.file
    if not path.exists():
        start(folder)
    text, new = path.read_text("utf-8"), textwrap.dedent(inspect.getsource(mine)).rstrip("\n")
    old = definition_of(text, name)
    if old == new:
        return f"{path} has it already."
    if old and f'raise NotImplementedError("{UNWRITTEN}")' not in old:
        return f"{path} has another {name}, which stays: delete it there to take this one."
    write_text(path, text.replace(old, new) if old else f"{text}\n\n{new}\n")
    verdict = check(folder, [name]).verdicts[0]
    return f"{path} has it." if verdict.is_right else f"{path} has it, and there it is not right: {verdict.sentence}"


def _judged(exercise: Exercise, modules: Mapping[str, Any]) -> Verdict:
    module = modules[exercise.module]
    if isinstance(module, str):
        return Verdict(exercise.name, "wrong", module)
    return judged(exercise, getattr(module, exercise.name, None))


def _cause(exercise: Exercise, texts: Mapping[str, str], modules: Mapping[str, Any]) -> str:
    """Return a sentence about the first exercise that this one uses and that is not right."""
    used = set(re.findall(r"\w+", texts[exercise.name])) - {exercise.name}
    for name, other in every_exercise().items():
        if name in used and not (verdict := _judged(other, modules)).is_right:
            return f"It uses {name}, which is not right yet ({verdict.state}): begin there."
    return ""


def _loaded(folder: Path, module: str) -> Any:
    """Import a module of the reader, or return why it cannot be imported; without the file, return None."""
    path = folder / PACKAGE / f"{module}.py"
    if not path.is_file():
        return None
    try:
        return importlib.import_module(f"{PACKAGE}.{module}")
    except (Exception, SystemExit) as error:
        if isinstance(error, SyntaxError):
            return f"{unreadable(path, error)}; correct it, and check again."
        return f"{path.name} cannot be imported: {told(error, PACKAGE)}"


class AsWritten(SourceFileLoader):
    """Loader that never uses bytecode, which counts as current after an edit of equal size within one second."""

    def path_stats(self, path: str | bytes) -> NoReturn:
        raise OSError  # so bytecode is neither read nor written


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let `import mytransformer` find the reader's package, with its newest text."""
    places = [str(folder.absolute()), str(folder.absolute() / PACKAGE)]
    sys.path.insert(0, places[0])
    for place in places:
        sys.path_importer_cache[place] = FileFinder(place, (AsWritten, [".py"]))
    _forget()
    try:
        yield
    finally:
        sys.path.remove(places[0])
        for place in places:
            sys.path_importer_cache.pop(place, None)
        _forget()  # the next check reads them again


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def _texts(folder: Path) -> dict[str, str]:
    """Return the text of each exercise in the reader's files; "" if it is not there or the file is not readable."""
    texts = {}
    for exercise in every_exercise().values():
        try:
            texts[exercise.name] = definition_of((folder / PACKAGE / exercise.file).read_text("utf-8"), exercise.name)
        except (OSError, SyntaxError, ValueError):
            texts[exercise.name] = ""
    return texts


def _known_states(folder: Path, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the stored states of the exercises whose text has not changed since their check."""
    try:
        found = json.loads((folder / PROGRESS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    kept = found.items() if isinstance(found, dict) else ()
    return {name: one["state"] for name, one in kept if isinstance(one, dict) and one.get("text") == texts.get(name)}
