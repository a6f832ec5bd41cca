"""Learning rate schedules: each is a factor in [0, 1] of the peak learning rate.

A factor depends only on the number of the step (0 is the first) and on settings, such as `max_steps`. So a resumed run
needs no other state. Only `Plateau` reads the validation metric and has a state.
"""

import math
from dataclasses import dataclass

from glassformer.config import train as settings

DECAY_PART = 0.2
"""Fraction of the steps in which the rate falls in the schedule warm-up, stable, decay (Hu 2024, section 4: about a
tenth suffices)."""


def schedule_factor(config: settings.ScheduleConfig, step: int, max_steps: int) -> float:
    """Return the factor of the peak learning rate at `step` of a run of `max_steps`.

    For a plateau schedule this is the factor of the warm-up; the loop multiplies it by `PlateauState.factor`.

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
            decay_steps = round(DECAY_PART * max_steps)
            return warmup_stable_decay(step, config.warmup_steps, decay_steps, config.final_ratio, max_steps)


def warm_up(step: int, warmup_steps: int) -> float:
    """Return a factor that grows linearly to 1 at `warmup_steps`; it starts above 0, so that no step is wasted.

    >>> [warm_up(step, 3) for step in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return min(1.0, (step + 1) / (warmup_steps + 1))


def cosine(step: int, warmup_steps: int, decay_steps: int, final_ratio: float) -> float:
    """Warm up, then follow half a cosine from 1 to `final_ratio` at `decay_steps`, then stay constant (as nanoGPT).

    >>> [round(cosine(step, 0, 4, 0.1), 3) for step in range(6)]
    [1.0, 0.868, 0.55, 0.232, 0.1, 0.1]
    """
    share = 0.5 * (1.0 + math.cos(math.pi * _progress(step, warmup_steps, decay_steps)))
    return warm_up(step, warmup_steps) * (final_ratio + (1.0 - final_ratio) * share)


def linear(step: int, warmup_steps: int, decay_steps: int, final_ratio: float) -> float:
    """Warm up, then follow a straight line from 1 to `final_ratio` at `decay_steps`, then stay constant.

    >>> [linear(step, 0, 4, 0.0) for step in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    share = 1.0 - _progress(step, warmup_steps, decay_steps)
    return warm_up(step, warmup_steps) * (final_ratio + (1.0 - final_ratio) * share)


def inverse_sqrt(step: int, warmup_steps: int) -> float:
    """Return equation 3 of Vaswani 2017, d_model^-½ · min(n^-½, n · w^-1½), divided by its peak (d_model · w)^-½.

    The paper counts steps n from 1. Its learning rates, the "Noam" schedule, result from a peak learning rate of
    (d_model · w)^-½:

    >>> d_model, w, n = 512, 4000, 12345
    >>> noam = d_model**-0.5 * min(n**-0.5, n * w**-1.5)
    >>> math.isclose(noam, (d_model * w) ** -0.5 * inverse_sqrt(n - 1, w))
    True
    """
    n, w = step + 1, max(1, warmup_steps)
    return min(n / w, math.sqrt(w / n))


def warmup_stable_decay(step: int, warmup_steps: int, decay_steps: int, final_ratio: float, max_steps: int) -> float:
    """Warm up, stay at the peak, then follow a line to `final_ratio` in the last `decay_steps` (Hu 2024, 4).

    >>> [round(warmup_stable_decay(step, 1, 4, 0.2, max_steps=8), 2) for step in range(9)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2]
    """
    share = 1.0 - _progress(step, max_steps - decay_steps, max_steps)
    return warm_up(step, warmup_steps) * (final_ratio + (1.0 - final_ratio) * share)


def _progress(step: int, first: int, last: int) -> float:
    """Return 0 up to `first`, 1 from `last` on, and a linear value between them."""
    if step <= first:
        return 0.0
    return 1.0 if step >= last else (step - first) / (last - first)


@dataclass
class PlateauState:
    """The state of a `Plateau` in a checkpoint."""

    factor: float
    """Factor of the learning rate."""
    best: float | None
    n_worse: int


class Plateau:
    """The rule of `torch.optim.lr_scheduler.ReduceLROnPlateau`: lower the rate when a metric stops falling.

    A metric is better if it is below the best metric so far. A metric that should grow is passed with its sign changed.
    After more than `patience` evaluations in a row without improvement, the factor is multiplied by `ratio` (but never
    below `min_ratio`), and the count restarts.

    >>> plateau = Plateau(patience=1, ratio=0.5)
    >>> [plateau.observe(metric) for metric in (3.0, 2.0, 2.0, 2.5, 1.9, 2.0)]
    [1.0, 1.0, 1.0, 0.5, 0.5, 0.5]
    """

    def __init__(self, patience: int, ratio: float, min_ratio: float = 0.01) -> None:
        self.patience, self.ratio, self.min_ratio = patience, ratio, min_ratio
        self.state = PlateauState(1.0, None, 0)

    def observe(self, metric: float) -> float:
        """Record the metric of one evaluation; return the factor for the next steps. NaN is never better."""
        state = self.state
        if metric < math.inf and (state.best is None or metric < state.best):
            state.best, state.n_worse = metric, 0
        else:
            state.n_worse += 1
        if state.n_worse > self.patience:
            state.factor = max(state.factor * self.ratio, self.min_ratio)
            state.n_worse = 0
        return state.factor
