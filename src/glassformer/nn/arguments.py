"""Checks of the arguments of layers, so that a wrong one is an error of the constructor, not of the forward pass."""

import math
from collections.abc import Collection
from typing import Any


def one_of(name: str, value: Any, names: Collection[str]) -> Any:
    """Return a name that is in `names`; raise `ValueError` for another value.

    >>> one_of("pooling", "mean", ("first", "mean"))
    'mean'
    """
    if not (isinstance(value, str) and value in names):
        raise ValueError(f"{name}: expected one of {', '.join(names)}, got {value!r:.60}")
    return value


def number(name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, whole: bool = False) -> Any:
    """Return a number between `low` and `high`; raise `TypeError` for another type, `ValueError` for another number.

    >>> number("dropout", 0.5, 0, 1)
    0.5
    """
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise TypeError(f"{name}: expected {'a whole number' if whole else 'a number'}, got {value!r:.60}")
    if not low <= value <= high:
        raise ValueError(f"{name}: expected a number from {low} to {high}, got {value}")
    return value


def function(name: str, value: Any) -> Any:
    """Return a function; raise `TypeError` for another type.

    >>> function("qk_norm", abs)(-1)
    1
    """
    if not callable(value):
        raise TypeError(f"{name}: expected a function, got {value!r:.60}")
    return value
