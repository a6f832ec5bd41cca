"""Learning from preferences (DPO, IPO) and from rewards (GRPO); the reference is the model before this training.

In group relative policy optimization (GRPO), a sampled answer is compared with the other answers to the same prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.data.batching import NOT_SCORED, Batch, Example
from glassformer.objectives.causal import answer_rows
from glassformer.objectives.loss import Forward, LossSums, Objective, scored_log_p

EPSILON = 1e-4
"""Added to the standard deviation of a group, as in TRL, so that equal rewards give the advantage 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PreferenceBatch(Batch):
    """A batch of preferences; a row has the chosen answer as document 0 and the rejected one as document 1."""

    reference: Tensor  # (B,) `log_ratios` of the reference


@dataclass(frozen=True)
class PreferenceObjective(Objective):
    """Make the chosen answer more probable, relative to the rejected answer, than it is for the reference.

    With h = log π(chosen)/π(rejected) - log π_ref(chosen)/π_ref(rejected), the loss of a preference is -log σ(β h)
    for DPO (Rafailov 2023, equation 7). For IPO it is (h - 1/(2β))² (Azar 2023, equation 17), with log probabilities
    per token of each answer, as in TRL. A row holds both answers, so a batch can be computed in parts.
    """

    kind: Literal["dpo", "ipo"] = "dpo"
    beta: float = 0.1
    is_density = True

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> PreferenceBatch:
        """Make a batch of examples whose `label` is the log ratio of the reference; each preference is one target."""
        reference = torch.tensor([example.label for example in examples], dtype=torch.float32)
        return PreferenceBatch(**answer_rows(examples).tensors(), n_targets=len(examples), reference=reference)

    def log_ratios(self, model: Forward, batch: Batch) -> Tensor:
        """Return log π(chosen) - log π(rejected) of each row, (B,)."""
        log_p = scored_log_p(model, batch)  # (B, T)
        chosen, rejected = (self._of_answer(log_p, batch, document) for document in (0, 1))
        return chosen - rejected

    def _of_answer(self, log_p: Tensor, batch: Batch, document: int) -> Tensor:
        """Return the log probability of one answer of each row; for IPO, its mean over the tokens."""
        is_its = (batch.document_ids == document) & (batch.labels != NOT_SCORED)  # (B, T)
        total = (log_p * is_its).sum(dim=1)
        return total / is_its.sum(dim=1) if self.kind == "ipo" else total

    def loss(self, model: Forward, batch: Batch) -> LossSums:
        """Return the summed loss of the preferences of a batch from `collate`."""
        assert isinstance(batch, PreferenceBatch)
        h = self.log_ratios(model, batch) - batch.reference  # (B,)
        losses = -F.logsigmoid(self.beta * h) if self.kind == "dpo" else (h - 1 / (2 * self.beta)).square()
        total = losses.sum()
        return LossSums(total, total.detach(), batch.n_rows)


@dataclass(frozen=True, eq=False)
class Rollout(Example):
    """A prompt and a sampled answer; the tokens of the answer are the labels."""

    text: str = ""
    """Text of the answer."""
    reward: float = 0.0
    advantage: float = 0.0
    old_log_p: np.ndarray | None = None
    """Log probability of each label by the model that wrote the answer, 0 at other positions; None = the model now."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyBatch(Batch):
    """A batch of rollouts."""

    rewards: Tensor  # (B,)
    advantages: Tensor  # (B,)
    old_log_p: Tensor | None = None  # (B, T)


def advantages(rewards: np.ndarray, is_divided: bool = True) -> np.ndarray:
    """Return the rewards (n_prompts, group) minus the mean of each group, divided by the group's standard deviation.

    Without `is_divided`, the differences are not divided (Shao 2024, section 4.1.2).

    >>> advantages(np.array([[0.0, 1.0], [3.0, 3.0]])).round(3).tolist()
    [[-0.707, 0.707], [0.0, 0.0]]
    """
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    return centred / (rewards.std(axis=1, ddof=1, keepdims=True) + EPSILON) if is_divided else centred


@dataclass(frozen=True)
class GroupPolicyObjective(Objective):
    """Maximise reward, and stay near the reference (Shao 2024, equations 3 and 4, with the reward of whole answers).

    With r = π/π_old, where π_old wrote the answer, a token adds min(r A, clip(r, 1 - ε, 1 + ε) A) - β KL. If a step
    samples with the weights that it updates, r is 1: clipping has no effect, and the gradient of the ratio equals the
    gradient of log π. The reported loss is β KL - reward, the quantity that is minimised on average.
    """

    reference: Forward
    beta: float = 0.04
    length: int | None = None
    """The constant by which the loss of an answer is divided (Dr. GRPO; Liu 2025); None = the number of tokens of the
    answer."""
    clip: float = 0.2
    is_density = True

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> PolicyBatch:
        """Make a batch of rollouts; each answer is one target."""
        rollouts = cast(Sequence[Rollout], examples)
        rows, old = answer_rows(rollouts), None
        if all(rollout.old_log_p is not None for rollout in rollouts):
            old = torch.zeros(rows.labels.shape)  # (B, T)
            for row, rollout in zip(old, rollouts, strict=True):
                row[: len(rollout.old_log_p)] = torch.from_numpy(rollout.old_log_p)  # type: ignore[arg-type]
        return PolicyBatch(
            **rows.tensors(),
            old_log_p=old,
            n_targets=len(rollouts),
            rewards=torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float32),
            advantages=torch.tensor([rollout.advantage for rollout in rollouts], dtype=torch.float32),
        )

    def loss(self, model: Forward, batch: Batch) -> LossSums:
        """Return the summed loss of the answers of a batch from `collate`."""
        assert isinstance(batch, PolicyBatch)
        log_p, is_scored = scored_log_p(model, batch), batch.labels != NOT_SCORED  # (B, T)
        kl = self.divergences(log_p, batch)  # (B, T)
        old = log_p.detach() if batch.old_log_p is None else batch.old_log_p
        ratios, gains = (log_p - old).exp(), batch.advantages[:, None]
        gained = torch.minimum(ratios * gains, ratios.clamp(1 - self.clip, 1 + self.clip) * gains)
        of_tokens = (gained - self.beta * kl) * is_scored
        n_tokens = is_scored.sum(dim=1)  # (B,)
        total = -(of_tokens.sum(dim=1) / (self.length or n_tokens)).sum()
        nats = (self.beta * kl.detach().sum(dim=1) / n_tokens - batch.rewards).sum()
        return LossSums(total, nats, batch.n_rows)

    def divergences(self, log_p: Tensor, batch: Batch) -> Tensor:
        """Return the estimate of the KL divergence from the reference at each token, and 0 at other positions (B, T).

        The estimator π_ref/π - log π_ref/π - 1 is never negative (Shao 2024, equation 4; k3 of Schulman 2020).
        """
        with torch.no_grad():
            log_ratio = scored_log_p(self.reference, batch)
        log_ratio = log_ratio - log_p
        return log_ratio.expm1() - log_ratio
