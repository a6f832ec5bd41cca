"""What the training loop asks of a task."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from glassformer.data.batching import Batch, Example
from glassformer.objectives.loss import LossSums

Forward = Callable[..., Tensor]
"""A network, or a compiled or wrapped one: fields of a batch as keywords in, logits out."""


class Objective(Protocol):
    """A task: how examples become a batch, and what its loss is. The loop knows nothing else of it.

    One with `is_density = True` has a loss whose exponential is no perplexity, such as that of numbers.
    """

    @property
    def label_smoothing(self) -> float:
        """Probability spread over the vocabulary in `LossSums.total`."""

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch: ...

    def loss(self, model: Forward, batch: Batch) -> LossSums: ...
