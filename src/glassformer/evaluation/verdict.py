"""The verdict on variants of a run: better than the baseline, worse, or not known.

A variant and the baseline run with the same seeds. The difference of seed s is d_s = variant - baseline: what the seed
gives to both (data order, first weights) is subtracted. With n seeds, the mean d̄ and the standard deviation σ of the
differences (divided by n - 1), the standard error is σ / √n, and

    t = d̄ / (σ / √n),  p = P(|T| ≥ |t|), where T has Student's distribution with n - 1 degrees of freedom

(the paired t-test, Student 1908). If all differences are equal, σ does not describe further seeds; then p = 2^(1 - n),
the probability that n signs are equal (the sign test). For m variants, p is corrected by Holm (1979): the smallest p is
multiplied by m, the next by m - 1, and so on, and no corrected p is smaller than one before it. A variant is better or
worse if its corrected p is at most the level, by default 0.05: without any difference, the probability of one wrong
verdict or more in a whole table is at most the level. This holds for differences with a normal distribution. For a
score with few values, such as the accuracy on 50 texts, the level is approximate.

Whoever looks again after each further seed has more chances to be wrong. With k looks, p is multiplied by k too, so
that the probability of a wrong verdict at any of them stays at most the level (Bonferroni).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

LEVEL = 0.05
"""Probability of a wrong verdict in a table without any difference."""
MOST_SEEDS = 100
"""Largest number of seeds that `seeds_to_decide` looks at."""


@dataclass(frozen=True)
class Verdict:
    """The result of the paired test of a variant."""

    word: Literal["better", "worse", "not known"]
    n: int
    """Number of paired seeds."""
    difference: float
    """Mean of variant - baseline over the seeds, in the unit of the metric."""
    error: float | None
    """Standard error of the difference; None for fewer than two seeds."""
    p: float
    """Corrected p of the paired t-test."""
    more: int | None = None
    """If not known: about how many more seeds decide it, with the same mean and deviation; None for too many."""
    is_early: bool = False
    """True: judged in the middle of the runs, which were stopped there."""

    def __str__(self) -> str:
        if self.word != "not known":
            return f"{self.word}, stopped in the middle" if self.is_early else self.word
        if self.n < 2:
            return "not known: two seeds are needed at least"
        if self.more is None:
            return f"not known: over {MOST_SEEDS} seeds would be needed"
        return f"not known: about {self.more} more {'seed' if self.more == 1 else 'seeds'} would decide it"


def verdicts(
    baseline: Mapping[int, float],
    variants: Mapping[str, Mapping[int, float]],
    *,
    higher_is_better: bool,
    n_looks: int = 1,
) -> dict[str, Verdict]:
    """Return the verdict on each variant; a value belongs to a seed, and only seeds that both have are compared.

    With several looks at a table that grows, p is also multiplied by their number.

    >>> baseline = {0: 2.01, 1: 1.98, 2: 2.03}
    >>> found = verdicts(baseline, {"wider": {0: 1.91, 1: 1.89, 2: 1.93}}, higher_is_better=False)["wider"]
    >>> found.word, round(found.difference, 3), round(found.p, 4)
    ('better', -0.097, 0.0012)
    """
    pairs = {
        name: [values[seed] - baseline[seed] for seed in sorted(values) if seed in baseline]
        for name, values in variants.items()
    }
    tested = {name: p_value(of_seeds) for name, of_seeds in pairs.items() if of_seeds}
    corrected = {name: min(1.0, n_looks * p) for name, p in holm(tested).items()}
    order = sorted(tested, key=lambda name: tested[name])
    found = {}
    for name, of_seeds in pairs.items():
        n = len(of_seeds)
        mean, deviation = mean_and_deviation(of_seeds)
        error = deviation / math.sqrt(n) if n > 1 else None
        p = corrected.get(name, 1.0)
        if p <= LEVEL:
            word: Literal["better", "worse"] = "better" if (mean > 0) == higher_is_better else "worse"
            found[name] = Verdict(word, n, mean, error, p)
        else:
            n_tests = len(order) - order.index(name) if name in tested else 1
            found[name] = Verdict("not known", n, mean, error, p, seeds_to_decide(of_seeds, LEVEL / n_tests / n_looks))
    return found


def p_value(differences: Sequence[float]) -> float:
    """Return p of the paired t-test of the differences, one per seed; 1 for a single seed.

    >>> round(p_value([-0.10, -0.09, -0.10]), 4)
    0.0012
    """
    n = len(differences)
    if n < 2 or not any(differences):
        return 1.0
    return _paired(*mean_and_deviation(differences), n)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and the standard deviation with n - 1; NaN for too few values.

    >>> mean_and_deviation([1.0, 2.0, 3.0])
    (2.0, 1.0)
    """
    n = len(values)
    mean = math.fsum(values) / n if n else math.nan
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1)) if n > 1 else math.nan


def decimals(error: float) -> int:
    """Return the number of decimals that shows two digits of a standard error, at most 6.

    >>> decimals(0.0123), decimals(1.7), decimals(44.0)
    (3, 1, 0)
    """
    return min(6, max(0, 1 - math.floor(math.log10(error)))) if error > 0 else 4


def _paired(mean: float, deviation: float, n: int) -> float:
    """Return p of n differences with this mean, not 0, and this standard deviation."""
    if deviation <= 1e-12 * abs(mean):  # equal differences, up to rounding
        return 2.0 ** (1 - n)
    return beyond(mean / (deviation / math.sqrt(n)), n - 1)


def beyond(t: float, freedom: int) -> float:
    """Return P(|T| ≥ |t|) for Student's distribution with `freedom` degrees of freedom.

    It is the finite sum of Abramowitz and Stegun (1964), 26.7.3 and 26.7.4, with θ = arctan(t / √freedom).

    >>> round(beyond(4.3027, 2), 4), round(beyond(2.5706, 5), 4)
    (0.05, 0.05)
    """
    theta = math.atan2(abs(t), math.sqrt(freedom))
    cosine, is_odd = math.cos(theta), freedom % 2
    term, total = (cosine, 0.0) if is_odd else (1.0, 1.0)
    for k in range(2 - is_odd, freedom - is_odd, 2):  # terms of the sum, in powers of cos θ
        if is_odd:
            total += term
            term *= (k + 1) / (k + 2) * cosine**2
        else:
            term *= (k - 1) / k * cosine**2
            total += term
    inside = 2 / math.pi * (theta + math.sin(theta) * total) if is_odd else math.sin(theta) * total
    return min(1.0, max(0.0, 1 - inside))


def interval(error: float, n: int) -> float:
    """Return half the width of the interval around a mean difference that holds the true one in 95 % of all cases.

    It is t · `error`, with P(|T| ≥ t) = `LEVEL` for n - 1 degrees of freedom, and is not corrected for other variants.

    >>> round(interval(0.01, 3), 4)
    0.043
    """
    low, high = 0.0, 1.0
    while beyond(high, n - 1) > LEVEL:
        high *= 2
    for _ in range(50):  # halve the range that holds t
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle, n - 1) > LEVEL else (low, middle)
    return high * error


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Return p corrected for the number of tests (Holm 1979).

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    corrected, largest = {}, 0.0
    for place, name in enumerate(sorted(p, key=lambda name: p[name])):
        largest = max(largest, min(1.0, (len(p) - place) * p[name]))
        corrected[name] = largest
    return corrected


def seeds_to_decide(differences: Sequence[float], level: float) -> int | None:
    """Return how many more seeds would give p ≤ `level` if mean and standard deviation stayed; None for too many.

    >>> seeds_to_decide([-0.10, -0.02, -0.07], 0.05)
    2
    """
    n = len(differences)
    if n < 2 or not any(differences):
        return None
    mean, deviation = mean_and_deviation(differences)
    totals = range(n + 1, MOST_SEEDS + 1)
    return next((total - n for total in totals if _paired(mean, deviation, total) <= level), None)
