"""Compare what the reader wrote with the solution, and name the mistake if it is known."""

import ctypes
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Literal

from glassformer.apps.course.workshop.comparing import Result, described, different, relation, result_of
from glassformer.apps.course.workshop.exercise import UNWRITTEN, Exercise, Function

State = Literal["right", "slow", "mistake", "wrong", "endless", "empty"]
SLOW_RATIO, SLOW_SECONDS = 20, 1.0
"""A right function is slow if its tests take this many times as long as the solution, and at least these seconds."""
LIMIT_SECONDS = 30.0


@dataclass(frozen=True)
class Verdict:
    """The state of one exercise."""

    name: str
    state: State
    sentence: str = ""
    """The finding, or the thing to do."""
    section: str = ""
    """The page that explains a known mistake."""

    @property
    def is_written(self) -> bool:
        return self.state != "empty"

    @property
    def is_right(self) -> bool:
        return self.state in ("right", "slow")

    def __str__(self) -> str:
        more = f" See {self.section}." if self.section else ""
        return f"{self.name}: {self.state}. {self.sentence}{more}".rstrip()


def judged(exercise: Exercise, mine: Function | None, limit: float = LIMIT_SECONDS) -> Verdict:
    """Test a function, for at most `limit` seconds."""
    return within(limit, exercise.name, lambda: _judged(exercise, mine))


def within(limit: float, name: str, judge: Callable[[], Verdict]) -> Verdict:
    """Return the verdict of `judge`; it runs in a thread, which is interrupted after `limit` seconds."""
    answers: SimpleQueue[Verdict | BaseException] = SimpleQueue()

    def work() -> None:
        try:
            answers.put(judge())
        except BaseException as error:
            answers.put(error)

    thread = Thread(target=work, name=f"check of {name}", daemon=True)
    thread.start()
    try:
        verdict = answers.get(timeout=limit)
    except Empty:
        assert thread.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
        sentence = f"It did not end within {limit:g} seconds: look for a loop whose condition never changes."
        return Verdict(name, "endless", sentence)
    if isinstance(verdict, BaseException):
        raise verdict
    return verdict


def _judged(exercise: Exercise, mine: Function | None) -> Verdict:
    if mine is None:
        return Verdict(exercise.name, "empty", f"{exercise.file}.py has no function {exercise.name}.")
    # Compare the results with those of the solution
    cases = exercise.cases()
    expected, own_seconds = _results(exercise, exercise.solution, cases)
    found, seconds = _results(exercise, mine, cases)
    differences = [different(one, other) for one, other in zip(found, expected, strict=True)]
    if not any(differences):
        if seconds > max(SLOW_SECONDS, SLOW_RATIO * own_seconds):
            sentence = f"It is right, and its tests take {seconds:.1f} s, where the solution takes {own_seconds:.2g} s."
            return Verdict(exercise.name, "slow", sentence)
        return Verdict(exercise.name, "right")
    # The first test that fails: a function that is not written yet, or a known mistake
    number = next(number for number, where in enumerate(differences) if where)
    error = found[number].error
    if isinstance(error, NotImplementedError) and str(error) == UNWRITTEN:
        stub = traceback.extract_tb(error.__traceback__)[-1].name
        if stub == exercise.name:
            return Verdict(exercise.name, "empty", "It is not written yet.")
        return Verdict(exercise.name, "wrong", f"It calls {stub}, which is not written yet.")
    if known := _recognised(exercise, found, cases):
        return known
    # An unknown mistake: what differs, and for which arguments
    sentences = [f"In test {number + 1} of {len(cases)}: {differences[number]}."]
    if error is None and expected[number].error is None:
        sentences += also(found[number], expected[number], differences[number])
    sentences.append(f"Given: {', '.join(described(x) for x in cases[number])}.")
    sentence = " ".join(sentences)
    if error is not None:
        sentence += place_of(error, getattr(getattr(mine, "__code__", None), "co_filename", ""))
    return Verdict(exercise.name, "wrong", sentence)


def also(found: Result, expected: Result, difference: str) -> list[str]:
    """Return what is seen besides the first difference, as sentences."""
    sentences = []
    if seen := relation(found.value, expected.value):
        sentences.append(seen)
    if found.changed and found.changed not in difference:
        sentences.append(f"The function also changes {found.changed}.")
    return sentences


def _results(exercise: Exercise, function: Function, cases: Sequence[tuple[Any, ...]]) -> tuple[list[Result], float]:
    began = time.thread_time()
    results = [result_of(function, arguments, exercise.has_gradient) for arguments in cases]
    return results, time.thread_time() - began


def _recognised(exercise: Exercise, found: Sequence[Result], cases: Sequence[tuple[Any, ...]]) -> Verdict | None:
    """Return the known mistake, or the two of them, whose results are those found in every test.

    Errors are compared by their type, so a function with an error in every test has no known mistake.
    """
    if all(result.error for result in found):
        return None
    known = [exercise.explained(mistake) for mistake in exercise.mistakes]
    for group in (*((one,) for one in known), *permutations(known, 2)):
        try:
            function = exercise.with_mistakes(*group)
        except ValueError:  # the first one replaces what the second one changes
            continue
        results = (result_of(function, arguments, exercise.has_gradient) for arguments in cases)
        if not any(different(one, other) for one, other in zip(found, results, strict=True)):
            sentences = " And: ".join(mistake.sentence for mistake in group)
            sections = " and ".join(dict.fromkeys(mistake.section for mistake in group))
            return Verdict(exercise.name, "mistake", sentences, sections)
    return None


def told(error: BaseException, file: str) -> str:
    """Return the type and message of an error in one line, and the last line of the reader's file that it passed."""
    message = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {message}.{place_of(error, file)}"


def place_of(error: BaseException, file: str) -> str:
    """Return the last line of the reader's file that an error passed."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" Line {own[-1].lineno}: {own[-1].line}" if own else ""
