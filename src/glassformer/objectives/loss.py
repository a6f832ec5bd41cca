"""Base of the objectives: they make batches from examples, and compute losses as sums over the targets."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.data.batching import NOT_SCORED, Batch, Example
from glassformer.nn.kernels.cross_entropy import cross_entropy_by_rows
from glassformer.nn.kernels.linear import is_transformed

MIN_LOGITS = 1 << 18
"""Number of logits from which `cross_entropy_by_rows` is faster than `F.cross_entropy`."""
Forward = Callable[..., Tensor]
"""A network, possibly compiled or wrapped: takes the fields of a batch as keywords and returns logits."""


@dataclass(frozen=True)
class LossSums:
    """Sums, not means, over the targets of a batch, so that sums of micro-batches and of processes can be added."""

    total: Tensor
    """The loss to minimise, including label smoothing and class weights; differentiable."""
    nats: Tensor
    """The negative log-likelihood without label smoothing and class weights, in nats; detached."""
    n_targets: int


def token_cross_entropy(
    logits: Tensor, labels: Tensor, n_targets: int, label_smoothing: float = 0.0, class_weights: Sequence[float] = ()
) -> LossSums:
    """Sum -log softmax(logits)[label] over all scored labels, in fp32 or higher precision for logits of every dtype.

    `logits` (…, V), `labels` (…) with -100 = not scored. With smoothing ε, the target is (1-ε) · one-hot + ε/V (Szegedy
    2016, section 7). `class_weights` (V,) multiply -log p of each class, as `weight` of `torch.nn.CrossEntropyLoss`.
    `nats` excludes the smoothing and the weights. `cross_entropy_by_rows` gives the result of the `F.cross_entropy`
    below it up to rounding, in less time and memory, so that a reader may skip it.

    >>> sums = token_cross_entropy(torch.zeros(1, 3, 4), torch.tensor([[2, 0, -100]]), n_targets=2)
    >>> round(sums.nats.item() / sums.n_targets, 4)  # ln 4
    1.3863
    """
    flat, labels = logits.flatten(0, -2), labels.flatten()  # (N, V), (N,)
    if flat.numel() >= MIN_LOGITS and not class_weights and not is_transformed():
        total, nats = cross_entropy_by_rows(flat, labels, NOT_SCORED, label_smoothing)
        return LossSums(total, nats, n_targets)
    flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
    nats = F.cross_entropy(flat, labels, ignore_index=NOT_SCORED, reduction="sum")
    total = nats
    if label_smoothing or class_weights:
        weights = flat.new_tensor(class_weights) if class_weights else None
        total = F.cross_entropy(
            flat, labels, weights, ignore_index=NOT_SCORED, reduction="sum", label_smoothing=label_smoothing
        )
    return LossSums(total, nats.detach(), n_targets)


def scored_log_p(model: Forward, batch: Batch) -> Tensor:
    """Return log p of every label, in fp32 or higher precision, and 0 where there is no label: (B, T).

    `batch.loss_positions` are the positions with labels.
    """
    assert batch.loss_positions is not None
    logits = model(**batch.model_inputs())  # (N, V)
    logits, labels = logits.to(torch.promote_types(logits.dtype, torch.float32)), batch.labels.flatten()
    losses = F.cross_entropy(logits, labels[batch.loss_positions], reduction="none")
    return losses.new_zeros(len(labels)).scatter(0, batch.loss_positions, -losses).view_as(batch.labels)


class Objective(ABC):
    """Training objective: makes batches from examples and computes their loss, for the training loop."""

    label_smoothing: float = 0.0
    """Probability spread over the vocabulary in `LossSums.total`."""
    is_density: bool = False
    """True if a likelihood is a density, for example of numbers. Then exp(loss) is no perplexity."""
    couples_rows: bool = False
    """True if the loss of a row depends on the other rows. Then a batch is never computed in parts."""

    @abstractmethod
    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch: ...

    @abstractmethod
    def loss(self, model: Forward, batch: Batch) -> LossSums: ...

    def divisor(self, batch: Batch) -> float:
        """Return the sum of the weights of a batch's targets, by which the summed loss of a step is divided."""
        return batch.n_targets


class TokenObjective(Objective):
    """Objective whose loss is the cross-entropy of all labels of a batch."""

    class_weights: Sequence[float] = ()
    """Weight of each class in the loss to minimise; () = all are 1."""

    def loss(self, model: Forward, batch: Batch) -> LossSums:
        """Return the summed cross-entropy of a batch from `collate`."""
        logits, labels = model(**batch.model_inputs()), batch.labels_of_logits  # (…, V) and (…)
        return token_cross_entropy(logits, labels, batch.n_targets, self.label_smoothing, self.class_weights)

    def divisor(self, batch: Batch) -> float:
        if not self.class_weights:
            return batch.n_targets
        labels = batch.labels[batch.labels != NOT_SCORED]
        return float(torch.tensor(self.class_weights, dtype=torch.float64)[labels].sum())
