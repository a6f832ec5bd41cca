"""The loss of a student equals the formula of Hinton (2015), and no gradient reaches its teacher."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from configs import BERT, GPT, PAPER, TINY, random_ids, random_model
from glassformer.config.recurrent import ModelConfig
from glassformer.config.transformer import SequenceHead
from glassformer.data.batching import NOT_SCORED, Batch, Example
from glassformer.models.devices import Fit
from glassformer.objectives import distillation
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.classification import ClassificationObjective
from glassformer.objectives.distillation import Distillation, divergence
from glassformer.objectives.loss import Objective, TokenObjective
from glassformer.objectives.noise import MaskedObjective
from glassformer.objectives.seq2seq import DenoisingObjective, Seq2SeqObjective
from glassformer.tokenization.frames import Frame
from glassformer.tokenization.vocabulary import WordBoundaries
from runs import step_of
from tolerances import F64, assert_close, near

VOCAB = 19
ROWS = [random_ids(VOCAB, n, seed=n).numpy() for n in (9, 5, 7)]
PAIRS = Seq2SeqObjective(1, Frame(after=(2,)), Frame(after=(2,)), label_smoothing=0.1)


def reversed_text(ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    return ids[::-1].copy(), ids


CASES: dict[str, tuple[ModelConfig, TokenObjective]] = {
    "decoder": (GPT, CausalObjective()),
    "encoder-decoder": (PAPER, PAIRS),
    "denoising": (PAPER, DenoisingObjective(reversed_text, PAIRS)),
    "recurrent": (TINY, PAIRS),
    "masks": (BERT, MaskedObjective(3, WordBoundaries(*[np.zeros(VOCAB, dtype=bool)] * 4), mask_prob=0.3)),
    "classes": (replace(BERT, head=SequenceHead(n_labels=4)), ClassificationObjective(label_smoothing=0.1)),
}


def made(name: str, rows: Sequence[np.ndarray] = ROWS) -> tuple[Any, Any, Objective, Batch]:
    """Return a student, another network as its teacher, their objective and a batch with padding."""
    config, objective = CASES[name]
    student, teacher = (random_model(config, seed) for seed in (1, 2))
    examples = [Example(row, source_ids=row[1:], label=i) for i, row in enumerate(rows)]
    return student, teacher, objective, objective.collate(examples, np.random.default_rng(0))


def by_hand(teacher: Tensor, student: Tensor, batch: Batch, temperature: float) -> Tensor:
    """Return Σ p · ln(p / q) of the scored positions, one position at a time, from the definition of the softmax."""
    labels = batch.labels.flatten()
    if batch.loss_positions is not None:
        labels = labels[batch.loss_positions]
    total = torch.zeros((), dtype=torch.float64)
    for t, s, label in zip(teacher.flatten(0, -2), student.flatten(0, -2), labels.tolist(), strict=True):
        if label != NOT_SCORED:
            p, q = (torch.exp(x / temperature) / torch.exp(x / temperature).sum() for x in (t, s))
            total = total + (p * torch.log(p / q)).sum()
    return total


def gradients(network: nn.Module, loss: Tensor) -> list[Tensor]:
    trained = [p for p in network.parameters() if p.requires_grad]
    return [torch.zeros(()) if x is None else x for x in torch.autograd.grad(loss, trained, allow_unused=True)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("by_rows", [False, True])
def test_loss_and_gradient_equal_the_formula(name: str, by_rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if by_rows:
        monkeypatch.setattr(distillation, "MIN_LOGITS", 1)
    student, teacher, objective, batch = made(name)
    sums = Distillation(objective, teacher, weight=0.3, temperature=1.7).loss(student, batch)
    own = objective.loss(student, batch)
    logits, theirs = student(**batch.model_inputs()), teacher(**batch.model_inputs()).detach()
    expected = 0.7 * own.total + 0.3 * 1.7**2 * by_hand(theirs, logits, batch, 1.7)
    assert_close(sums.total, expected)
    assert (sums.nats.item(), sums.n_targets) == (own.nats.item(), own.n_targets), "the reported loss is that of labels"
    assert_close(gradients(student, sums.total), gradients(student, expected))


@pytest.mark.parametrize("name", CASES)
def test_weight_zero_is_plain_training_and_the_teacher_gets_no_gradient(name: str) -> None:
    student, teacher, objective, batch = made(name)
    plain = objective.loss(student, batch).total
    taught = Distillation(objective, teacher, weight=0.0).loss(student, batch).total
    assert taught.item() == plain.item()
    found, wanted = gradients(student, taught), gradients(student, plain)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True)), "equal bits"
    Distillation(objective, teacher).loss(student, batch).total.backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert any(p.grad is not None and p.grad.any() for p in student.parameters())


def test_an_equal_student_has_no_divergence_and_unused_logits_do_not_count() -> None:
    logits, labels = 3 * torch.randn(2, 3, 5, dtype=torch.float64), torch.tensor([[1, NOT_SCORED, 0], [2, 2, 4]])
    other = torch.randn(2, 3, 5, dtype=torch.float64)
    assert divergence(logits, logits, labels).item() == near(0, dtype=F64)
    padded = torch.cat([other, torch.full((2, 3, 2), 50.0)], dim=-1)
    assert divergence(logits, padded, labels).item() == divergence(logits, other, labels).item() > 0.1
    assert divergence(padded, logits, labels).item() == divergence(other, logits, labels).item() > 0.1


@pytest.mark.parametrize("name", ["decoder", "encoder-decoder", "masks", "recurrent"])
def test_micro_batches_and_parts_give_the_gradient_of_the_whole_batch(name: str) -> None:
    """Two micro-batches of unequal numbers of targets, and single rows as after an out-of-memory error."""

    def gradient(n_parts: int, *groups: Sequence[Example]) -> list[Tensor]:
        step = step_of(student, torch.optim.SGD(student.parameters(), lr=0.0), taught)
        step.fit = Fit(n_parts)
        step.backward(batches(*groups))
        return [p.grad.clone() for p in student.parameters() if p.grad is not None]

    def batches(*groups: Sequence[Example]) -> list[Batch]:
        found = [taught.collate(group, np.random.default_rng(0)) for group in groups]
        if len(groups) > 1 and found[0].loss_positions is not None:  # the same masks for both
            whole = taught.collate([e for group in groups for e in group], np.random.default_rng(0))
            return [whole.rows(range(2)), whole.rows(range(2, 3))]
        return found

    student, teacher, objective, _ = made(name)
    taught = Distillation(objective, teacher, weight=0.6, temperature=3.0)
    examples = [Example(row, source_ids=row[1:]) for row in ROWS]
    whole = gradient(1, examples)
    for other in (gradient(3, examples), gradient(1, examples[:2], examples[2:])):
        assert_close(other, whole)
