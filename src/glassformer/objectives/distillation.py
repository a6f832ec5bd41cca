"""Knowledge distillation: a trained model teaches another model its probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.data.batching import NOT_SCORED, Batch, Example
from glassformer.nn.kernels.cross_entropy import divergence_by_rows
from glassformer.nn.kernels.linear import is_transformed
from glassformer.objectives.loss import MIN_LOGITS, Forward, LossSums, Objective


@dataclass(frozen=True)
class Distillation(Objective):
    """Distillation objective (Hinton 2015, section 2): (1 - α) · loss of `objective` + α · T² · KL(teacher ‖ student).

    Both networks read the same inputs, and the divergence is summed over the scored positions. The probabilities are
    softmax(logits / T). The gradient of the divergence is proportional to 1 / T²; the factor T² makes up for this. The
    reported nats are the nats of `objective`.
    """

    objective: Objective
    """The objective without a teacher. Its loss is a cross-entropy of one forward pass."""
    teacher: Forward
    """A network in evaluation mode; no gradient reaches it."""
    weight: float = 0.5
    """α, the weight of the divergence in the loss."""
    temperature: float = 2.0
    """T, the temperature. With a higher temperature, less probable tokens count more."""

    def __post_init__(self) -> None:
        for name in ("label_smoothing", "couples_rows"):
            object.__setattr__(self, name, getattr(self.objective, name))

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
        """Make a batch as `objective` does."""
        return self.objective.collate(examples, rng)

    def loss(self, model: Forward, batch: Batch) -> LossSums:
        """Return the summed loss of a batch from `collate`."""
        inputs = batch.model_inputs()
        student = model(**inputs)  # (…, V)
        with torch.no_grad():
            teacher = self.teacher(**inputs)
        own = self.objective.loss(lambda **_: student, batch)
        taught = self.temperature**2 * divergence(teacher, student, batch.labels_of_logits, self.temperature)
        return replace(own, total=(1 - self.weight) * own.total + self.weight * taught)


def divergence(teacher: Tensor, student: Tensor, labels: Tensor, temperature: float = 1.0) -> Tensor:
    """Sum KL(p ‖ q) = Σ p · (log p - log q) over the scored positions, in nats, with p, q = softmax(logits / T).

    `teacher` (…, V) and `student` (…, V) are logits, `labels` (…) has -100 where a position is not scored. If one
    network has additional logits, for ids without a token, they do not count. The sum is in fp32 or higher precision.
    `divergence_by_rows` gives the result of the lines below it up to rounding, in less memory, so that a reader may
    skip it.

    >>> certain, uniform = torch.tensor([[0.0, -1e9]]), torch.zeros(1, 2)
    >>> round(divergence(certain, uniform, torch.tensor([0])).item(), 4)  # ln 2
    0.6931
    """
    n = min(teacher.shape[-1], student.shape[-1])
    teacher, student = (x[..., :n].flatten(0, -2) for x in (teacher, student))
    counts = labels.flatten() != NOT_SCORED
    if student.numel() >= MIN_LOGITS and not is_transformed():
        return divergence_by_rows(teacher, student, counts, temperature)
    dtype = torch.promote_types(student.dtype, torch.float32)
    log_p, log_q = (F.log_softmax(x.to(dtype) / temperature, dim=1) for x in (teacher, student))
    of_rows = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(dim=1)
    return of_rows.where(counts, 0.0).sum()
