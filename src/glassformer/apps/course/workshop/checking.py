"""Compare what the reader wrote with the solution, and name the mistake if it is known."""

import copy
import ctypes
import inspect
import math
import numbers
import re
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, permutations
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from glassformer.apps.course.workshop.changes import changes, in_line
from glassformer.apps.course.workshop.exercise import OTHER_NAMES, UNWRITTEN, Exercise, Use, variant

TOLERANCE = 1e-4
Function = Callable[..., Any]
R = TypeVar("R")
State = Literal["right", "slow", "mistake", "wrong", "endless", "empty"]
SLOW_RATIO, SLOW_SECONDS = 20, 1.0
"""A right function is slow if its tests take `SLOW_SECONDS`, and `SLOW_RATIO` times as long as the solution's."""
LIMIT_SECONDS = 30.0
SEARCH_SECONDS, SECONDS_OF_A_CHANGE = 5.0, 0.5
"""Time limit of the search for a mistake that is not in a table, and of the tests of one change of a fast solution."""
SHOWN_TESTS = 3
"""Number of further tests that fail and are described."""


# Results, and their first difference


@dataclass(frozen=True)
class Result:
    """The result of one call: a value and gradients, or an error."""

    value: Any = None
    gradients: tuple[Tensor, ...] = ()
    """Gradients of the sum of the sines of all values, for each tensor of floating-point numbers."""
    error: BaseException | None = None
    changed: str = ""
    """The argument that the function changed, such as "argument 1"; empty if it changed none of them."""


def result_of(function: Function, arguments: Sequence[Any], has_gradient: bool) -> Result:
    """Return the result of a function for copies of the arguments."""
    given, leaves = copy.deepcopy(list(arguments)), []
    if has_gradient:
        leaves = [x.requires_grad_() for x in tensors_in(given) if x.is_floating_point()]
    try:
        with torch.set_grad_enabled(has_gradient or any(isinstance(x, Use) for x in given)):
            value = function(*given)
            gradients = gradients_of(value, leaves)
    except (Exception, SystemExit) as error:
        return Result(error=error)
    for number, (now, before) in enumerate(zip(given, arguments, strict=True), 1):
        if isinstance(now, (Tensor, list, dict, tuple)) and difference(now, before):
            return Result(value, gradients, changed=f"argument {number}")
    return Result(value, gradients)


def tensors_in(x: Any) -> list[Tensor]:
    """Return the tensors of nested lists, tuples and dicts."""
    match x:
        case Tensor():
            return [x]
        case Mapping():
            x = x.values()
        case list() | tuple():
            pass
        case _:
            return []
    return [tensor for value in x for tensor in tensors_in(value)]


def gradients_of(value: Any, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of Σ sin(value) with respect to the leaves; 0 for a leaf on which the value does not depend.

    For a value with NaN, return no gradients: two right functions may give NaN in different gradients.
    """
    found = [x for x in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(x, Tensor)]
    if not leaves or any(x.isnan().any() for x in found):
        return ()
    total = sum(x.sin().sum() for x in found if x.requires_grad)
    if not isinstance(total, Tensor):
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    gradients = torch.autograd.grad(total, list(leaves), allow_unused=True)
    return tuple(
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    )


def different(found: Result, expected: Result) -> str:
    """Return the first difference of two results as a sentence without its full stop; empty if they are equal."""
    if expected.error is not None:
        kind = type(expected.error).__name__
        if found.error is None:
            return f"there is no error, where {kind} is expected ({expected.error})"
        if isinstance(found.error, type(expected.error)):
            numbers = re.findall(r"\d+", str(expected.error)) if isinstance(expected.error, ValueError) else []
            missing = [number for number in numbers if number not in str(found.error)]
            return f"the message of the {kind} does not name {missing[0]}" if missing else ""
        return f"it raises {type(found.error).__name__} ({message_of(found.error)}), where {kind} is expected"
    if found.error is not None:
        return f"it raises {type(found.error).__name__}: {message_of(found.error)}"
    if where := difference(found.value, expected.value):
        return where
    for place, (own, right) in enumerate(zip(found.gradients, expected.gradients, strict=False), 1):
        if where := difference(own, right):
            return f"in the gradient of tensor {place}: {where}"
    if found.changed != expected.changed:
        return f"the function changes {found.changed or 'nothing'}: work on a copy of what it is given"
    return ""


def difference(found: Any, expected: Any) -> str:
    """Return where two values differ first; empty if they are equal. Numbers within 1e-4 count as equal.

    >>> difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
    'at [1]: 2 instead of 3'
    >>> difference([1, 2], [1, 2, 3])
    'length 2 instead of 3'
    """
    if isinstance(expected, Tensor):
        return tensor_difference(found, expected)
    # Collections: the first difference inside of them
    if isinstance(expected, Mapping):
        if not isinstance(found, type(expected)):
            return f"{described(found)} instead of a {type(expected).__name__}"
        for key in [*expected, *found]:
            if key not in found:
                return f"the key {key!r} is missing"
            if key not in expected:
                return f"the key {key!r} should not be there"
            if where := difference(found[key], expected[key]):
                return inside(key, where)
        return ""
    if isinstance(expected, (list, tuple)):
        if not isinstance(found, (list, tuple)) or (isinstance(expected, tuple) and isinstance(found, list)):
            return f"{described(found)} instead of a {type(expected).__name__}"
        if len(found) != len(expected):
            return f"length {len(found)} instead of {len(expected)}"
        for place, (own, right) in enumerate(zip(found, expected, strict=True)):
            if where := difference(own, right):
                return inside(place, where)
        return ""
    if getattr(found, "shape", ()):  # a tensor or an array
        return f"{described(found)} instead of {described(expected)}"
    # Numbers: a tensor of one number counts as one
    if isinstance(expected, float) and isinstance(found, (numbers.Real, Tensor)) and not isinstance(found, bool):
        number = float(found.detach() if isinstance(found, Tensor) else found)
        if math.isclose(number, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (
            math.isnan(number) and math.isnan(expected)
        ):
            return ""
        return f"{number:.6g} instead of {expected:.6g}"
    if isinstance(found, Tensor):
        return f"a tensor instead of the number or text {described(expected)}"
    if expected is True and found is False:
        return "it is not so"
    if isinstance(found, str) and isinstance(expected, str) and len(found + expected) > 80 and found != expected:
        place = next((n for n, (own, right) in enumerate(zip(found, expected, strict=False)) if own != right), -1)
        place = place if place >= 0 else min(len(found), len(expected))
        return f"from character {place} on: {found[place : place + 20]!r} instead of {expected[place : place + 20]!r}"
    return "" if found == expected else f"{described(found)} instead of {described(expected)}"


def inside(key: Any, where: str) -> str:
    """Return a difference in the part `key` of a value as a difference of the whole value."""
    return f"at [{key!r}]{where[3:]}" if where.startswith("at [") else f"at [{key!r}]: {where}"


def tensor_difference(found: Any, expected: Tensor) -> str:
    """Return where a tensor differs first: in kind, shape or a number."""
    if not isinstance(found, Tensor):
        return f"{described(found)} instead of a tensor"
    if found.shape != expected.shape:
        return f"shape {tuple(found.shape)} instead of {tuple(expected.shape)}"
    if kind_of(found) != kind_of(expected):
        return f"dtype {found.dtype} instead of {expected.dtype}"
    own, right = (x.detach().double() for x in (found, expected))
    wrong = ~torch.isclose(own, right, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    if not wrong.any():
        return ""
    place = wrong.nonzero()[0].tolist()
    where = f"at {place}: " if place else ""
    return f"{where}{own[tuple(place)].item():.6g} instead of {right[tuple(place)].item():.6g}"


def relation(found: Any, expected: Any) -> str:
    """Return how two different values are related as a whole, as a sentence; empty if no relation is found.

    >>> relation(torch.tensor([1.0, -2.0]), torch.tensor([2.0, -4.0]))
    'Every number is 0.5 times the right one.'
    """
    # Several results: another order, or the first one that differs
    if isinstance(found, tuple) and isinstance(expected, tuple) and len(found) == len(expected):
        if not difference(found[::-1], expected):
            return "The results are right, but in reverse order."
        parts = zip(found, expected, strict=True)
        return next((relation(own, right) for own, right in parts if difference(own, right)), "")
    if not all(isinstance(x, (float, Tensor)) for x in (found, expected)):
        return ""
    own, right = (torch.as_tensor(x).detach().double() for x in (found, expected))
    if not difference(own, right):
        return ""
    # One tensor: exchanged axes, another sign, or a factor
    for first, second in combinations(range(own.dim()), 2):
        if not difference(own.transpose(first, second), right):
            return f"The axes {first} and {second} are exchanged."
    if own.shape != right.shape or not (own.isfinite() & right.isfinite()).all():
        return ""
    factor = (own * right).sum() / right.square().sum()
    if not difference(own, -right):
        return "Only the sign is wrong."
    if right.numel() > 1 and factor.abs() > TOLERANCE and not difference(own / factor, right):
        return f"Every number is {factor:.4g} times the right one."
    return ""


def kind_of(x: Tensor) -> str:
    """Return "float" for every type of floating-point numbers, and else the name of the type."""
    return "float" if x.is_floating_point() else str(x.dtype)


def described(x: Any) -> str:
    """Return a value in few words: the numbers of a small tensor, else its shape."""
    if isinstance(x, Tensor):
        numbers = str([round(number, 4) for number in x.flatten().tolist()]) if x.dim() == 1 else str(x.tolist())
        return numbers if x.numel() <= 6 and len(numbers) <= 60 else f"a tensor of shape {tuple(x.shape)}"
    if isinstance(x, Use):
        return x.title
    if callable(x):
        return "a function of the test"
    text = repr(x)
    if tensors_in(x):
        parts = [f"{key!r}: {described(x[key])}" for key in x] if isinstance(x, Mapping) else [described(y) for y in x]
        text = text[0] + ", ".join(parts) + text[-1]
    return text if len(text) <= 60 else f"{text[:57]}…"


# Verdicts


@dataclass(frozen=True)
class Verdict:
    """The state of one exercise."""

    name: str
    state: State
    sentence: str = ""
    """The finding, or advice on what to do."""
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


def judged(exercise: Exercise, mine: Any, limit: float = LIMIT_SECONDS) -> Verdict:
    """Test a function, for at most `limit` seconds."""
    if mine is None:
        return Verdict(exercise.name, "empty", f"{exercise.file} has no {exercise.name}.")
    _, expected, own_seconds = results_of_solution(exercise)
    watched = Watched(exercise.own_work)

    def run() -> tuple[list[Result], float]:
        with watched if exercise.own_work else nullcontext():
            return _results(exercise, mine, exercise.cases())  # no earlier call can have changed these

    OTHER_NAMES.discard(exercise.name)
    answer = within(limit, exercise.name, run)
    if answer is None:
        sentence = f"It did not end within {limit:g} seconds: look for a loop whose condition never changes."
        return Verdict(exercise.name, "endless", sentence)
    found, seconds = answer
    has_other_names = exercise.name in OTHER_NAMES  # before changed solutions are tested, which may have them too
    if not any(differences := [different(one, other) for one, other in zip(found, expected, strict=True)]):
        if watched.called:
            sentence = f"It is right, and it calls torch's {watched.called}: here, write that yourself."
            return Verdict(exercise.name, "wrong", sentence)
        if seconds > max(SLOW_SECONDS, SLOW_RATIO * own_seconds):
            sentence = f"It is right, and its tests take {seconds:.1f} s, where the solution takes {own_seconds:.2g} s."
            return Verdict(exercise.name, "slow", sentence)
        return Verdict(exercise.name, "right")
    verdict = _of_wrong(exercise, mine, found, differences)
    if has_other_names and verdict.state == "wrong":
        more = "Its weights have other names than the docstring states; they were matched by shape and order."
        verdict = replace(verdict, sentence=f"{verdict.sentence} {more}")
    return verdict


def within(limit: float, name: str, work_of: Callable[[], R]) -> R | None:
    """Return the result of a function, which runs in a thread that is interrupted after `limit` seconds; then None."""
    answers: SimpleQueue[R | BaseException] = SimpleQueue()

    def work() -> None:
        try:
            answers.put(work_of())
        except BaseException as error:
            answers.put(error)

    thread = Thread(target=work, name=f"check of {name}", daemon=True)
    thread.start()
    try:
        answer = answers.get(timeout=limit)
    except Empty:
        assert thread.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(KeyboardInterrupt))
        return None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _of_wrong(exercise: Exercise, mine: Any, found: Sequence[Result], differences: Sequence[str]) -> Verdict:
    """Return the verdict of a function or class of which a test fails."""
    cases, expected, _ = results_of_solution(exercise)
    # The first test that fails: what is not written yet, or a known mistake
    number = next(number for number, where in enumerate(differences) if where)
    error = found[number].error
    if isinstance(error, NotImplementedError) and str(error) == UNWRITTEN:
        stub = _stub_of(error)
        if stub == exercise.name:
            return Verdict(exercise.name, "empty", "It is not written yet.")
        return Verdict(exercise.name, "wrong", f"It calls {stub}, which is not written yet.")
    if known := _recognised(exercise, found):
        return known
    failing = {_title(case): where for case, where in zip(cases, differences, strict=True) if where}
    if sign := next((one for one in exercise.known.signs if one.fits(failing)), None):
        sentence = f"{sign.sentence} {_test(cases, number)}: {differences[number]}."
        return Verdict(exercise.name, "mistake", sentence, exercise.section)
    # An unknown mistake: what differs, and for which arguments; and all other tests that fail
    sentences = [f"{_test(cases, number)}: {differences[number]}."]
    if error is None and expected[number].error is None:
        sentences += also(found[number], expected[number], differences[number])
    if not isinstance(cases[number][0], Use):
        sentences.append(f"Given: {', '.join(described(x) for x in cases[number])}.")
    if error is not None:
        sentences.append(place_of(error, getattr(inspect.unwrap(mine), "__module__", None) or "").lstrip())
    others = [other for other, where in enumerate(differences) if where and other != number]
    for other in others[:SHOWN_TESTS]:
        where = "the same" if differences[other] == differences[number] else differences[other]
        sentences.append(f"{_test(cases, other)}: {where}.")
    if len(others) > SHOWN_TESTS:
        sentences.append(f"{len(others) - SHOWN_TESTS} more tests fail.")
    return Verdict(exercise.name, "wrong", " ".join(filter(None, sentences)))


def _test(cases: Sequence[tuple[Any, ...]], number: int) -> str:
    """Return the name of a test: the title of a use, or its number."""
    title = _title(cases[number])
    return f"With “{title}”" if title else f"In test {number + 1} of {len(cases)}"


def _title(case: tuple[Any, ...]) -> str:
    """Return the title of a use; "" for the arguments of a function."""
    return case[0].title if case and isinstance(case[0], Use) else ""


def _stub_of(error: BaseException) -> str:
    """Return the name of the function or class whose stub raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = trace.tb_frame.f_code.co_qualname if trace is not None else ""
    return name.rpartition("<locals>.")[2].partition(".")[0]


class Watched(TorchFunctionMode):
    """Note a call of one of torch's functions in `names`."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names, self.called = names, ""

    def __torch_function__(self, function: Any, types: Any, given: Any = (), more: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in self.names:
            self.called = self.called or name
        return function(*given, **(more or {}))


def also(found: Result, expected: Result, difference: str) -> list[str]:
    """Return what else is wrong, besides the first difference, as sentences."""
    sentences = []
    if seen := relation(found.value, expected.value):
        sentences.append(seen)
    if found.changed and found.changed not in difference:
        sentences.append(f"The function also changes {found.changed}.")
    return sentences


def results_of_solution(exercise: Exercise) -> tuple[Sequence[tuple[Any, ...]], list[Result], float]:
    """Return the tests of an exercise, the results of its solution, and their seconds; each is computed once."""
    key = (exercise.name, exercise.solution, variant())
    if key not in _EXPECTED:
        cases = exercise.cases()
        _EXPECTED[key] = (cases, *_results(exercise, exercise.solution, cases))
    return _EXPECTED[key]


_EXPECTED: dict[Any, tuple[Sequence[tuple[Any, ...]], list[Result], float]] = {}


def _results(exercise: Exercise, mine: Any, cases: Sequence[tuple[Any, ...]]) -> tuple[list[Result], float]:
    began, function = time.thread_time(), exercise.tested(mine)
    results = [result_of(function, arguments, exercise.has_gradient) for arguments in cases]
    return results, time.thread_time() - began


def _recognised(exercise: Exercise, found: Sequence[Result]) -> Verdict | None:
    """Return the mistake that gives the results `found` in every test.

    Known mistakes come first, then small changes of the solution, then pairs of known mistakes, as long as there is
    time. Errors are compared by their type, so a function with an error in every test has no known mistake.
    """
    if all(result.error for result in found):
        return None
    cases = exercise.cases()

    def gives(changed: Any) -> bool:
        tested = exercise.tested(changed)
        results = (result_of(tested, arguments, exercise.has_gradient) for arguments in cases)
        return not any(different(one, other) for one, other in zip(found, results, strict=True))

    known = [exercise.explained(mistake) for mistake in exercise.mistakes]
    for mistake in known:
        if gives(exercise.with_mistakes(mistake)):
            return Verdict(exercise.name, "mistake", mistake.sentence, mistake.section)
    until = time.monotonic() + SEARCH_SECONDS
    limit = SECONDS_OF_A_CHANGE + 3 * results_of_solution(exercise)[2]
    for change in changes(exercise.source()):
        if time.monotonic() > until:
            return None
        if within(limit, exercise.name, partial(gives, exercise.changed(change.source))):
            sentence = f"Your results are those of the solution {change}."
            return Verdict(exercise.name, "mistake", sentence, exercise.section)
    for first, second in permutations(known, 2):
        if time.monotonic() > until:
            return None
        try:
            function = exercise.with_mistakes(first, second)
        except ValueError:  # the first mistake replaces the code that the second one changes
            continue
        if gives(function):
            sections = " and ".join(dict.fromkeys((first.section, second.section)))
            return Verdict(exercise.name, "mistake", f"{first.sentence} And: {second.sentence}", sections)
    return None


def told(error: BaseException, module: str) -> str:
    """Return the type and message of an error in one line, and the last line of the reader's package in it."""
    return f"{type(error).__name__}: {message_of(error)}.{place_of(error, module)}"


def message_of(error: BaseException) -> str:
    """Return the message of an error as a part of a sentence, in one line."""
    return in_line(str(error), 200).rstrip(".")


def place_of(error: BaseException, module: str) -> str:
    """Return the last line of the reader's package in the traceback of an error."""
    package, lines, trace = module.partition(".")[0], "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] == package:
            line = traceback.extract_tb(trace, limit=1)[0]
            lines = f" {Path(line.filename).name}, line {line.lineno}: {line.line}"
        trace = trace.tb_next
    return lines
