"""What the loop is given: what is trained on what, and how it is measured."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

from glassformer.data.batching import Example, Sampler
from glassformer.errors import UserError
from glassformer.evaluation.loss import LossReport
from glassformer.objectives.objective import Objective


@dataclass(frozen=True)
class Task:
    """What is trained on what; `evaluations` gives fresh batches of each split and the bytes of its text."""

    objective: Objective
    sampler: Sampler
    evaluations: dict[str, Callable[[], Iterable[Sequence[Example]]]]
    n_bytes: dict[str, int | None]
    sample: Callable[[], str] | None = None
    """Text that the model writes now, shown at each evaluation."""
    score: Callable[[], dict[str, float]] | None = None
    """Scores of the model's outputs now, such as BLEU; taken at each evaluation, so given only when they are wanted."""
    has_one_shape: bool = False
    """Every batch of training has as many rows and tokens as the first, and no padding."""


def require_metric(name: str, task: Task) -> None:
    """`UserError` before the first step, for what the first evaluation could not find."""
    missing = set() if task.n_bytes["valid"] else {"bits_per_byte"}
    missing |= set() if task.objective.label_smoothing else {"smoothed_loss"}
    known = [f.name for f in fields(LossReport) if f.name not in missing]
    if name not in known:
        raise UserError(f"train.early_stopping.metric is {name!r}, which is unknown here; there are {', '.join(known)}")
