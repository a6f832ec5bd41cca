"""An objective: how examples become a batch, and its loss as sums, which are divided once by all their targets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.data.batching import Batch, Example

NOT_SCORED = -100
"""The label of a position that is no target."""
Forward = Callable[..., Tensor]
"""A network, or a compiled or wrapped one: fields of a batch as keywords in, logits out."""


@dataclass(frozen=True)
class LossSums:
    """Sums over the targets of a batch, never means: sums of micro-batches and of ranks add up."""

    total: Tensor
    """What is minimised, label smoothing included; differentiable."""
    nats: Tensor
    """The plain negative log-likelihood, in nats; detached."""
    n_targets: int


def token_cross_entropy(logits: Tensor, labels: Tensor, n_targets: int, label_smoothing: float = 0.0) -> LossSums:
    """-Σ log softmax(logits)[label] over all labels that are scored, in fp32 at the least, whatever the logits are.

    `logits` (…, V), `labels` (…) with -100 = not scored. With smoothing ε the target is (1-ε) · one-hot + ε/V
    (Szegedy 2016, section 7); `nats` leaves it out.

    >>> sums = token_cross_entropy(torch.zeros(1, 3, 4), torch.tensor([[2, 0, -100]]), n_targets=2)
    >>> round(sums.nats.item() / sums.n_targets, 4)  # ln 4
    1.3863
    """
    flat, labels = logits.flatten(0, -2), labels.flatten()
    flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
    nats = F.cross_entropy(flat, labels, ignore_index=NOT_SCORED, reduction="sum")
    total = nats
    if label_smoothing:
        total = F.cross_entropy(flat, labels, ignore_index=NOT_SCORED, reduction="sum", label_smoothing=label_smoothing)
    return LossSums(total, nats.detach(), n_targets)


class Objective(Protocol):
    """A task: how examples become a batch, and what its loss is. The loop knows nothing else of it.

    One with `is_density = True` has a loss whose exponential is no perplexity, such as that of numbers.
    """

    @property
    def label_smoothing(self) -> float:
        """Probability spread over the vocabulary in `LossSums.total`."""

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch: ...

    def loss(self, model: Forward, batch: Batch) -> LossSums: ...


class TokenObjective:
    """An objective whose loss is the cross-entropy of all labels of a batch."""

    label_smoothing: float

    def loss(self, model: Forward, batch: Batch) -> LossSums:
        """The summed cross-entropy of a batch that `collate` made."""
        return token_cross_entropy(model(**batch.model_inputs()), batch.labels, batch.n_targets, self.label_smoothing)
