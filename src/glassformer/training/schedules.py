"""How the learning rate changes: every schedule is a factor in [0, 1] of the peak rate.

A factor depends on the number of the step alone (0 is the first), so resuming needs nothing else; only
`Plateau` looks at the validation metric and has a state.
"""

import math
from collections.abc import Mapping
from typing import Any

from glassformer.config import train as settings


def schedule_factor(config: settings.ScheduleConfig, step: int, max_steps: int) -> float:
    """The factor of the peak rate at `step` of a run of `max_steps`.

    Of a plateau schedule this is the warm-up; the loop multiplies it by `Plateau.factor`.

    >>> config = settings.LinearSchedule(warmup_steps=1, final_ratio=0.0)
    >>> [schedule_factor(config, step, max_steps=5) for step in range(6)]
    [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    match config:
        case settings.ConstantSchedule(warmup_steps=warmup_steps) | settings.PlateauSchedule(warmup_steps=warmup_steps):
            return warm_up(step, warmup_steps)
        case settings.CosineSchedule():
            return cosine(step, config.warmup_steps, config.decay_steps or max_steps, config.final_ratio)
        case settings.LinearSchedule():
            return linear(step, config.warmup_steps, config.decay_steps or max_steps, config.final_ratio)
        case settings.InverseSqrtSchedule():
            return inverse_sqrt(step, config.warmup_steps)
        case settings.WarmupStableDecaySchedule():
            decay_steps = round(config.decay_fraction * max_steps)
            return warmup_stable_decay(step, config.warmup_steps, decay_steps, config.final_ratio, max_steps)


def warm_up(step: int, warmup_steps: int) -> float:
    """Linear growth that reaches 1 at `warmup_steps` and never starts at 0, where a step would be wasted.

    >>> [warm_up(step, 3) for step in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return min(1.0, (step + 1) / (warmup_steps + 1))


def cosine(step: int, warmup_steps: int, decay_steps: int, final_ratio: float) -> float:
    """Warm-up, then half a cosine from 1 to `final_ratio` at `decay_steps`, then constant (as nanoGPT does).

    >>> [round(cosine(step, 0, 4, 0.1), 3) for step in range(6)]
    [1.0, 0.868, 0.55, 0.232, 0.1, 0.1]
    """
    share = 0.5 * (1.0 + math.cos(math.pi * _progress(step, warmup_steps, decay_steps)))
    return warm_up(step, warmup_steps) * (final_ratio + (1.0 - final_ratio) * share)


def linear(step: int, warmup_steps: int, decay_steps: int, final_ratio: float) -> float:
    """Warm-up, then a straight line from 1 to `final_ratio` at `decay_steps`, constant after.

    >>> [linear(step, 0, 4, 0.0) for step in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    share = 1.0 - _progress(step, warmup_steps, decay_steps)
    return warm_up(step, warmup_steps) * (final_ratio + (1.0 - final_ratio) * share)


def inverse_sqrt(step: int, warmup_steps: int) -> float:
    """Equation 3 of Vaswani 2017, d_model^-½ · min(n^-½, n · w^-1½), divided by its peak (d_model · w)^-½.

    The paper counts steps n from 1. Its own rates, the "Noam" schedule, are those of a peak rate of
    (d_model · w)^-½:

    >>> d_model, w, n = 512, 4000, 12345
    >>> noam = d_model**-0.5 * min(n**-0.5, n * w**-1.5)
    >>> math.isclose(noam, (d_model * w) ** -0.5 * inverse_sqrt(n - 1, w))
    True
    """
    n, w = step + 1, max(1, warmup_steps)
    return min(n / w, math.sqrt(w / n))


def warmup_stable_decay(step: int, warmup_steps: int, decay_steps: int, final_ratio: float, max_steps: int) -> float:
    """Warm-up, the peak rate, and a straight line to `final_ratio` in the last `decay_steps` (Hu 2024, 4).

    >>> [round(warmup_stable_decay(step, 1, 4, 0.2, max_steps=8), 2) for step in range(9)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
    """
    share = 1.0 - _progress(step, max_steps - decay_steps, max_steps)
    return warm_up(step, warmup_steps) * (final_ratio + (1.0 - final_ratio) * share)


def _progress(step: int, first: int, last: int) -> float:
    """From 0 at `first` to 1 at `last`; 0 before, 1 after."""
    if step <= first:
        return 0.0
    return 1.0 if step >= last else (step - first) / (last - first)


class Plateau:
    """Lowers the rate when a metric stops falling: the rule of `torch.optim.lr_scheduler.ReduceLROnPlateau`.

    A metric is better when it is below the best one seen; a metric that should grow is observed with its sign
    changed. After more than `patience` evaluations in a row without a better one, `factor` is multiplied by
    `ratio` (never below `min_ratio`) and the count starts again.

    >>> plateau = Plateau(patience=1, ratio=0.5, min_ratio=0.1)
    >>> [plateau.observe(metric) for metric in (3.0, 2.0, 2.0, 2.5, 1.9, 2.0)]
    [1.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    """

    def __init__(self, patience: int, ratio: float, min_ratio: float) -> None:
        self.patience, self.ratio, self.min_ratio = patience, ratio, min_ratio
        self.factor = 1.0
        self._best: float | None = None
        self._n_worse = 0

    def observe(self, metric: float) -> float:
        """Takes in the metric of one evaluation and gives the factor from now on; NaN is never better."""
        if metric < (math.inf if self._best is None else self._best):
            self._best, self._n_worse = metric, 0
        else:
            self._n_worse += 1
        if self._n_worse > self.patience:
            self.factor = max(self.factor * self.ratio, self.min_ratio)
            self._n_worse = 0
        return self.factor

    def state(self) -> dict[str, float | int | None]:
        """What a checkpoint must keep, as plain JSON values."""
        return {"factor": self.factor, "best": self._best, "n_worse": self._n_worse}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self.factor, self._best, self._n_worse = state["factor"], state["best"], state["n_worse"]
