"""The result of a function for given arguments, and the first difference between two such results."""

import copy
import math
import numbers
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from glassformer.apps.course.workshop.exercise import Function

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Result:
    """The result of one call: a value and gradients, or an error."""

    value: Any = None
    gradients: tuple[Tensor, ...] = ()
    """Gradients of the sum of the sines of all values, for each tensor of floating-point numbers."""
    error: BaseException | None = None
    changed: str = ""
    """The argument that the function changed, described."""


def result_of(function: Function, arguments: Sequence[Any], has_gradient: bool) -> Result:
    """Call a function with copies of the arguments."""
    given, leaves = copy.deepcopy(list(arguments)), []
    if has_gradient:
        leaves = [x.requires_grad_() for x in tensors_in(given) if x.is_floating_point()]
    try:
        with torch.set_grad_enabled(has_gradient):
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
    if isinstance(x, Tensor):
        return [x]
    inner = x.values() if isinstance(x, Mapping) else x if isinstance(x, (list, tuple)) else ()
    return [tensor for value in inner for tensor in tensors_in(value)]


def gradients_of(value: Any, leaves: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of Σ sin(value) with respect to the leaves; 0 where the value does not depend on them.

    No gradients are returned for a value with NaN: which of them are NaN depends on how the function is written.
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
        return f"it raises {type(found.error).__name__} ({found.error}), where {kind} is expected ({expected.error})"
    if found.error is not None:
        return f"it raises {type(found.error).__name__}: {found.error}"
    if where := difference(found.value, expected.value):
        return where
    for place, (own, right) in enumerate(zip(found.gradients, expected.gradients, strict=False), 1):
        if where := difference(own, right):
            return f"in the gradient of tensor {place}: {where}"
    if found.changed != expected.changed:
        return f"the function changes {found.changed or 'nothing'}: work on a copy of what it is given"
    return ""


def difference(found: Any, expected: Any) -> str:
    """Return where two values differ first; empty if they are equal, numbers within 1e-4.

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
        number = float(found)
        if math.isclose(number, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (
            math.isnan(number) and math.isnan(expected)
        ):
            return ""
        return f"{number:.6g} instead of {expected:.6g}"
    if isinstance(found, Tensor):
        return f"a tensor instead of the number or text {described(expected)}"
    return "" if found == expected else f"{described(found)} instead of {described(expected)}"


def inside(key: Any, where: str) -> str:
    """Return a difference in one part of a value as one of the whole value."""
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
    """Return how two different values are related as a whole, as a sentence; empty if nothing is seen.

    >>> relation(torch.tensor([1.0, -2.0]), torch.tensor([2.0, -4.0]))
    'Every number is 0.5 times the right one.'
    """
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
    if callable(x):
        return "a function of the test"
    text = repr(x)
    if tensors_in(x):
        parts = [f"{key!r}: {described(x[key])}" for key in x] if isinstance(x, Mapping) else [described(y) for y in x]
        text = text[0] + ", ".join(parts) + text[-1]
    return text if len(text) <= 60 else f"{text[:57]}…"
