"""Numbers over a set of texts: mean, standard deviation and quartiles, beside a baseline of the same texts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

N_ERRORS = 3.0
"""A number is beyond its baseline if the mean difference is larger than this many standard errors."""
MIN_TEXTS = 5
"""With fewer texts, the standard error itself is too uncertain, and nothing is beyond a baseline."""
Name = TypeVar("Name")


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation and quartiles of a number over n texts.

    >>> spread([1.0, 2.0, 6.0]).mean
    3.0
    """

    n: int
    mean: float
    deviation: float
    """Standard deviation of a sample, divided by n − 1; NaN for one text."""
    quartiles: tuple[float, float, float]
    """25 %, 50 % and 75 % of the texts have at most this number, linear between two texts."""


@dataclass(frozen=True)
class Beside:
    """A number over a set of texts beside its baseline: the mean of the same number of the other parts.

    >>> beside_others({"a": [3.0] * 5, "b": [1.0] * 5, "c": [2.0] * 5})["a"].baseline
    1.5
    """

    own: Spread
    baseline: float
    """Mean over texts and over the other parts; NaN without another part."""
    is_beyond: bool
    """True if the number is larger than the baseline of the same text by more than `N_ERRORS` standard errors."""


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of one number per text.

    >>> spread([1.0, 2.0, 3.0, 6.0])
    Spread(n=4, mean=3.0, deviation=2.160246899469287, quartiles=(1.75, 2.5, 3.75))
    """
    x = torch.tensor(values, dtype=torch.float64)
    deviation = float(x.std()) if len(x) > 1 else math.nan
    low, middle, high = torch.quantile(x, torch.tensor([0.25, 0.5, 0.75], dtype=x.dtype)).tolist()
    return Spread(len(x), float(x.mean()), deviation, (low, middle, high))


def beside_others(values: Mapping[Name, Sequence[float]]) -> dict[Name, Beside]:
    """Return each part beside the mean of the other parts; `values` has one number per text for each part.

    The difference own − mean of the others is taken text by text, so what a text does to all parts drops out. A part is
    beyond if the mean of these differences is larger than `N_ERRORS` standard errors (deviation / √n), from
    `MIN_TEXTS` texts.

    >>> found = beside_others({"a": [1.0, 1.1, 1.2, 1.0, 1.1], "b": [0.0, 0.2, 0.1, 0.0, 0.3], "c": [0.1] * 5})
    >>> [(name, one.is_beyond) for name, one in found.items()]
    [('a', True), ('b', False), ('c', False)]
    """
    x = torch.tensor(list(values.values()), dtype=torch.float64)  # (parts, texts)
    others = (x.sum(dim=0) - x) / (len(x) - 1)  # NaN for a single part
    differences = x - others
    found: dict[Name, Beside] = {}
    for name, own, baseline, difference in zip(values, x, others, differences, strict=True):
        error = float(difference.std()) / math.sqrt(len(difference)) if len(difference) >= MIN_TEXTS else math.inf
        is_beyond = float(difference.mean()) > N_ERRORS * error
        found[name] = Beside(spread(own.tolist()), float(baseline.mean()), is_beyond)
    return found
