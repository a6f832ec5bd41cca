"""Preference learning: DPO and IPO, which compare the model with its initial weights, the reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.data.batching import NOT_SCORED, Batch, Example
from glassformer.objectives.causal import answer_rows
from glassformer.objectives.loss import Forward, LossSums, scored_log_p


@dataclass(frozen=True, kw_only=True, eq=False)
class PreferenceBatch(Batch):
    """A batch of preferences; a row has the chosen answer as document 0 and the rejected one as document 1."""

    reference: Tensor  # (B,) `log_ratios` of the reference


@dataclass(frozen=True)
class PreferenceObjective:
    """Raise the probability of a chosen answer, relative to a rejected one, above that of the reference.

    With h = log π(chosen)/π(rejected) - log π_ref(chosen)/π_ref(rejected), the loss of a preference is -log σ(β h)
    for DPO (Rafailov 2023, equation 7). For IPO it is (h - 1/(2β))² (Azar 2023, equation 17), with log probabilities
    per token of each answer, as in TRL. A row holds both answers, so a batch can be computed in parts.
    """

    kind: Literal["dpo", "ipo"] = "dpo"
    beta: float = 0.1
    label_smoothing: float = 0.0
    is_density: bool = True

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> PreferenceBatch:
        """Make a batch of examples whose `label` is the log ratio of the reference; a preference is one target."""
        reference = torch.tensor([example.label for example in examples], dtype=torch.float32)
        return PreferenceBatch(**answer_rows(examples).tensors(), n_targets=len(examples), reference=reference)

    def log_ratios(self, model: Forward, batch: Batch) -> Tensor:
        """Return log π(chosen) - log π(rejected) of each row, (B,)."""
        log_p = scored_log_p(model, batch)
        chosen, rejected = (self._of_answer(log_p, batch, document) for document in (0, 1))
        return chosen - rejected

    def _of_answer(self, log_p: Tensor, batch: Batch, document: int) -> Tensor:
        """Return the log probability of one answer of each row; for IPO, its mean over the tokens."""
        is_its = (batch.document_ids == document) & (batch.labels != NOT_SCORED)
        total = (log_p * is_its).sum(dim=1)
        return total / is_its.sum(dim=1) if self.kind == "ipo" else total

    def loss(self, model: Forward, batch: Batch) -> LossSums:
        """Return the summed loss of the preferences of a batch from `collate`."""
        assert isinstance(batch, PreferenceBatch)
        h = self.log_ratios(model, batch) - batch.reference
        losses = -F.logsigmoid(self.beta * h) if self.kind == "dpo" else (h - 1 / (2 * self.beta)).square()
        total = losses.sum()
        return LossSums(total, total.detach(), batch.n_rows)
