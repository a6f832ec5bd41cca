"""Objectives for labelled texts: classification, regression and tagging."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.data.batching import Batch, Example, pad, padded
from glassformer.objectives.loss import Forward, LossSums, Objective, TokenObjective


def balanced_weights(counts: Sequence[int]) -> tuple[float, ...]:
    """Return the weight n / (k · n_c) of each of k classes, if n_c of the n labels are in the class.

    >>> balanced_weights([1, 4])
    (2.5, 0.625)
    """
    return tuple(sum(counts) / (len(counts) * n) for n in counts)


@dataclass(frozen=True)
class ClassificationObjective(TokenObjective):
    """Classification objective: maximise Σ log p(label | text); examples already contain their special tokens."""

    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] = ()

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
        """Make a batch of rows of ids with one label each.

        >>> rows = [Example(np.array([5, 6]), label=1), Example(np.array([7]), label=0)]
        >>> batch = ClassificationObjective().collate(rows, np.random.default_rng(0))
        >>> batch.token_ids.tolist(), batch.labels.tolist()
        ([[5, 6], [7, 0]], [1, 0])
        """
        return _batch(examples, torch.tensor(_each(examples, "label"), dtype=torch.long), len(examples))


@dataclass(frozen=True)
class RegressionObjective(Objective):
    """Regression: maximise Σ log N(number | output, std²). A text has ½ (error / std)² + ln std + ½ ln 2π nats."""

    std: float = 1.0
    is_density = True

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
        """Make a batch of rows of ids with one number each."""
        return _batch(examples, torch.tensor(_each(examples, "label"), dtype=torch.float32), len(examples))

    def loss(self, model: Forward, batch: Batch) -> LossSums:
        """Return the summed negative log-likelihood of a batch from `collate`."""
        outputs = model(**batch.model_inputs()).squeeze(1).float()  # (B,)
        errors = (outputs - batch.labels) / self.std
        total = (errors**2 + math.log(2 * math.pi * self.std**2)).sum() / 2
        return LossSums(total, total.detach(), batch.n_targets)


@dataclass(frozen=True)
class MultiLabelObjective(Objective):
    """Multi-label classification: maximise Σ log p(label set | text), where labels are independent given the text."""

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
        """Make a batch of rows of ids with one 0 or 1 per label."""
        return _batch(examples, torch.from_numpy(np.stack(_each(examples, "label_set"))), len(examples))

    def loss(self, model: Forward, batch: Batch) -> LossSums:
        """Return the summed binary cross-entropy of all labels, in nats; the divisor is the number of texts."""
        logits = model(**batch.model_inputs()).float()  # (B, n_labels)
        total = F.binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")
        return LossSums(total, total.detach(), batch.n_targets)


@dataclass(frozen=True)
class TaggingObjective(TokenObjective):
    """Tagging objective: maximise Σ log p(tag | text) over the first token of every word."""

    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] = ()

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
        """Make a batch of rows of ids with one tag per id, -100 for a token that is not the first of a word.

        >>> rows = [Example(np.array([5, 6, 7]), labels=np.array([1, -100, 0]))]
        >>> batch = TaggingObjective().collate(rows, np.random.default_rng(0))
        >>> batch.labels.tolist(), batch.n_targets
        ([[1, -100, 0]], 2)
        """
        labels, _ = pad(_each(examples, "labels"), -100)
        return _batch(examples, labels, int((labels != -100).sum()))


def _batch(examples: Sequence[Example], labels: Tensor, n_targets: int) -> Batch:
    token_ids, mask = padded([e.token_ids for e in examples])
    types = [e.token_types for e in examples if e.token_types is not None]
    token_types, _ = padded(types) if types else (None, None)
    return Batch(
        token_ids=token_ids,
        attention_mask=mask,
        labels=labels,
        n_targets=n_targets,
        token_types=token_types,
    )


def _each(examples: Sequence[Example], name: str) -> list[Any]:
    """Return a field of all examples."""
    values = [getattr(example, name) for example in examples]
    if any(value is None for value in values):
        raise ValueError(f"example.{name} is missing: give one to every example")
    return values
