"""NaN and Inf in losses, gradients and weights: the fp16 loss scale, the exception and the saved batch."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from glassformer.data.batching import Batch

PREFIX = "bad-batch-"
"""Prefix of the files that hold a batch with a loss of NaN or Inf."""
MAX_SKIPPED, MAX_ROLLBACKS, MAX_KEPT = 10, 5, 10
"""Limits per run. `MAX_SKIPPED`: consecutive skipped steps. `MAX_ROLLBACKS`: rollbacks. `MAX_KEPT`: saved batches."""
GROWTH_INTERVAL = 2000
SMALLEST_SCALE = 2.0**-10


@dataclass
class LossScale:
    """The factor that keeps small gradients within the range of fp16 (Micikevicius 2018, section 3.2).

    The factor is halved if a gradient overflows, and doubled after `GROWTH_INTERVAL` steps without overflow.
    """

    factor: float = 65536.0
    n_good_steps: int = 0

    def update(self, is_finite: bool) -> None:
        self.n_good_steps += 1
        if not is_finite:
            self.factor /= 2
            self.n_good_steps = 0
        elif self.n_good_steps == GROWTH_INTERVAL:
            self.factor *= 2
            self.n_good_steps = 0


class NonFinite(Exception):
    """NaN or Inf in the loss or the gradient of a step, before its update; or in weights or evaluations, after it."""

    def __init__(self, what: str, step: int, batch: "Batch | None" = None, *, is_of_step: bool = True) -> None:
        super().__init__(f"{what} in step {step}")
        self.step = step
        self.batch = batch
        """This process's micro-batch with the bad loss; None if only the gradient or another process is affected."""
        self.is_of_step = is_of_step
        """True if the step can be skipped; False if the weights themselves are bad."""


Decision = Literal["skip", "rollback", "stop"]


def decision(bad: NonFinite, policy: str, n_skipped: int, n_rollbacks: int) -> Decision:
    """Return the response to NaN or Inf, from `train.on_nonfinite` and the number of earlier attempts.

    >>> bad = NonFinite("the loss is nan", 7)
    >>> decision(bad, "skip", 0, 0), decision(bad, "skip", MAX_SKIPPED, 0), decision(bad, "rollback", 0, 0)
    ('skip', 'stop', 'rollback')
    """
    if policy == "skip" and bad.is_of_step and n_skipped < MAX_SKIPPED:
        return "skip"
    return "rollback" if policy == "rollback" and n_rollbacks < MAX_ROLLBACKS else "stop"


def keep_batch(batch: "Batch", folder: Path, step: int) -> str:
    """Save a batch in the run folder (at most `MAX_KEPT` batches); return a note in brackets with its path."""
    from glassformer.store.tensors import save_tensors

    if len(list(folder.glob(f"{PREFIX}*"))) >= MAX_KEPT:
        return ""
    path = folder / f"{PREFIX}step-{step}.safetensors"
    temporary = path.with_name(f".{path.name}.tmp")
    save_tensors(batch.tensors(), temporary)
    os.replace(temporary, path)
    return f" (its batch is saved in {path})"
