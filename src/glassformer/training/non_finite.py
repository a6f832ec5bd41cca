"""NaN and Inf in losses, gradients and weights: how fp16 avoids them, what is raised, and which batch is kept."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glassformer.data.batching import Batch
from glassformer.store.tensors import save_tensors

PREFIX = "bad-batch-"
"""The beginning of the name of a file that holds a batch with a loss of NaN or Inf."""
MAX_SKIPPED, MAX_ROLLBACKS, MAX_KEPT = 10, 5, 10
"""Bad steps in a row, and returns to a checkpoint, after which a run is given up; batches that are kept."""
GROWTH_INTERVAL = 2000
SMALLEST_SCALE = 2.0**-10


@dataclass
class LossScale:
    """The factor that keeps small gradients within fp16 (Micikevicius 2018, section 3.2).

    Halved by a gradient that runs over, doubled after `GROWTH_INTERVAL` steps without.
    """

    factor: float = 65536.0
    n_good_steps: int = 0

    def update(self, is_finite: bool) -> None:
        self.n_good_steps = self.n_good_steps + 1 if is_finite else 0
        if not is_finite:
            self.factor /= 2
        elif self.n_good_steps == GROWTH_INTERVAL:
            self.factor, self.n_good_steps = 2 * self.factor, 0


class NonFinite(Exception):
    """NaN or Inf: in a loss or gradient, before the weights were changed; or in the weights themselves."""

    def __init__(self, what: str, micro_batch: int | None = None, *, is_of_step: bool = True) -> None:
        super().__init__(what)
        self.is_of_step = is_of_step
        """Whether a step can be left out; else the weights themselves are lost."""
        self.micro_batch = micro_batch
        """The micro-batch of this process with that loss, from 0; None for a gradient alone, or for another process."""


def answer(bad: NonFinite, policy: str, n_skipped: int, n_rollbacks: int) -> Literal["skip", "rollback", "stop"]:
    """What a run does after NaN or Inf: by `train.on_nonfinite` and by what it has tried already.

    >>> bad = NonFinite("the loss is nan")
    >>> answer(bad, "skip", 0, 0), answer(bad, "skip", MAX_SKIPPED, 0), answer(bad, "rollback", 0, 0)
    ('skip', 'stop', 'rollback')
    """
    if policy == "skip" and bad.is_of_step and n_skipped < MAX_SKIPPED:
        return "skip"
    return "rollback" if policy == "rollback" and n_rollbacks < MAX_ROLLBACKS else "stop"


def keep_batch(batch: Batch, folder: Path, step: int) -> str:
    """Keeps a batch in a run's folder, one of the first `MAX_KEPT`, and says where in brackets."""
    if len(list(folder.glob(f"{PREFIX}*"))) >= MAX_KEPT:
        return ""
    path = folder / f"{PREFIX}step-{step}.safetensors"
    temporary = path.with_name(f".{path.name}.tmp")
    save_tensors({name: x.contiguous() for name, x in batch.tensors().items()}, temporary)
    os.replace(temporary, path)
    return f" (its batch is kept in {path})"
