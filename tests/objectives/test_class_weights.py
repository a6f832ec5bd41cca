"""Weights of classes in the loss, and the metric that selects the best step where classes are unbalanced."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from configs import random_model
from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config.run import ClassificationConfig, LabelData, TaggingConfig
from glassformer.config.train import UNBALANCED, EarlyStopping, PlateauSchedule
from glassformer.config.transformer import BalanceLoss, Experts, SequenceHead
from glassformer.data.batching import Batch, Example
from glassformer.data.labels import LabelCorpus
from glassformer.objectives.classification import ClassificationObjective, TaggingObjective, balanced_weights
from glassformer.objectives.loss import TokenObjective
from glassformer.tasks.labels import CLASSIFICATION, LabelRunData
from runs import ENCODER, Recording, label_run, step_of, unbalanced_run
from tolerances import F64, NETWORK, assert_close, near

N_CLASSES = 3
WEIGHTS = (0.25, 1.5, 40.0)


class Bag(nn.Module):
    """A tiny network in double precision: logits of each row, the mean of its tokens, or of each token."""

    def __init__(self, of_tokens: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.of_tokens = nn.Embedding(20, N_CLASSES, dtype=torch.float64), of_tokens

    def forward(self, token_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x: Tensor = self.table(token_ids)  # (B, T, classes)
        if self.of_tokens:
            return x
        mask = torch.ones_like(token_ids) if attention_mask is None else attention_mask
        return (x * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)


def batches_of(objective: TokenObjective, *boundaries: int) -> list[Batch]:
    """Return 12 rows in micro-batches: one class is frequent, and one occurs once."""
    rng = np.random.default_rng(1)
    rows = []
    for label in [0] * 8 + [1] * 3 + [2]:
        ids = rng.integers(20, size=rng.integers(2, 6))
        tags = np.where(np.arange(len(ids)) % 2, -100, label)
        rows.append(Example(ids, label=label, labels=tags))
    rows = [rows[i] for i in rng.permutation(len(rows))]
    collate: Any = objective.collate  # type: ignore[attr-defined]
    return [collate(rows[a:b], rng) for a, b in pairwise((0, *boundaries, len(rows)))]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("boundaries", [(), (5,), (1, 2, 9)])
@pytest.mark.parametrize("of_tokens", [False, True])
def test_a_step_has_the_gradient_of_a_weighted_mean_over_all_micro_batches(
    of_tokens: bool, boundaries: tuple[int, ...], smoothing: float
) -> None:
    objective = (TaggingObjective if of_tokens else ClassificationObjective)(smoothing, WEIGHTS)
    network, reference = Bag(of_tokens), Bag(of_tokens)
    step = step_of(network, torch.optim.SGD(network.parameters(), lr=0.1), objective)
    step.backward(batches_of(objective, *boundaries))

    [batch] = batches_of(objective)
    logits = reference(**batch.model_inputs()).flatten(0, -2)
    loss = nn.CrossEntropyLoss(torch.tensor(WEIGHTS, dtype=torch.float64), label_smoothing=smoothing)
    loss(logits, batch.labels.flatten()).backward()
    assert_close(network.table.weight.grad, reference.table.weight.grad)
    plain = nn.CrossEntropyLoss(reduction="sum")(logits, batch.labels.flatten())
    assert step.nats.sum().item() == near(plain.item(), dtype=F64)  # the reported loss has no weights
    assert step.n_targets == batch.n_targets


@pytest.mark.parametrize("seed", range(5))
def test_balanced_weights_are_those_of_sklearn(seed: int) -> None:
    from sklearn.utils.class_weight import compute_class_weight

    rng = np.random.default_rng(seed)
    k = int(rng.integers(2, 9))
    labels = np.concatenate([np.arange(k), rng.choice(k, size=300, p=rng.dirichlet(np.full(k, 0.3)))])
    counts = np.bincount(labels, minlength=k)
    expected = compute_class_weight("balanced", classes=np.arange(k), y=labels)
    assert balanced_weights(counts.tolist()) == near(expected, dtype=F64)


def test_weights_leave_the_auxiliary_loss_of_experts_unchanged() -> None:
    model = replace(ENCODER, vocab_size=20, experts=Experts(4, 2, balance=BalanceLoss(0.3)))
    model = replace(model, head=SequenceHead(n_labels=N_CLASSES))
    gradients, losses = [], []
    for weights in ((), (7.0, 7.0, 7.0)):
        objective, network = ClassificationObjective(0.0, weights), random_model(model, seed=3)
        step = step_of(network, torch.optim.SGD(network.parameters(), lr=0.1), objective)
        step.backward(batches_of(objective, 5))
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
        [result] = step.update()
        losses.append(result.figures["auxiliary_loss"])
    assert losses[0] == near(losses[1], terms=NETWORK)
    assert_close(*gradients, terms=NETWORK)


def test_reported_losses_have_no_weights(tmp_path: Path) -> None:
    run = unbalanced_run(tmp_path, max_steps=20, select="last")
    run = replace(run, objective=replace(run.objective, label_smoothing=0.1))  # type: ignore[type-var]
    reporter = Recording()
    trained = api.train(run, tmp_path / "run", reporter=reporter)
    [data] = [message for message in reporter.messages if message.startswith("data ")]
    counts = LabelCorpus(run.data).counts  # type: ignore[arg-type]
    weights = balanced_weights(list(counts.values()))
    assert data.endswith(f"2 classes with weights from {min(weights):.3g} to {max(weights):.3g} in the loss of a step")
    last = max(reporter.evaluations)
    report = api.load(trained.folder, device="cpu").evaluate(loss_only=True)
    for name, value in report.to_dict().items():
        in_training = reporter.evaluations[last]["valid"].to_dict()[name]
        assert in_training == (None if value is None else near(value, terms=NETWORK)), name


def test_weights_change_what_is_learned(tmp_path: Path) -> None:
    found = []
    for kind in ("none", "balanced"):
        run = replace(unbalanced_run(tmp_path), objective=ClassificationConfig(class_weights=kind))  # type: ignore[arg-type]
        model = api.load(api.train(run, tmp_path / kind).folder, device="cpu")
        found.append(model.classify("the red tree")["cat"])
    assert found[1] > found[0]  # the rare class gets more probability in a model that has learned little else


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"outputs": "regression", "label_field": "number"}, "class_weights does not apply to regression"),
        ({"outputs": "multi_label"}, "class_weights does not apply to multi_label"),
    ],
)
def test_weights_need_classes(tmp_path: Path, data: dict[str, str], message: str) -> None:
    run = unbalanced_run(tmp_path)
    with pytest.raises(UserError, match=message):
        api.train(replace(run, data=replace(run.data, **data)), tmp_path / "run")  # type: ignore[arg-type]


# The metric that selects


def write_counts(folder: Path, counts: Sequence[int], outputs: str) -> Path:
    """Write records in which class i occurs counts[i] times."""
    path = folder / "records.jsonl"
    labels = [f"class {i}" for i, n in enumerate(counts) for _ in range(n)]
    rows = [{"text": f"words of {i} {label}", "label": label} for i, label in enumerate(labels)]
    values: list[dict[str, Any]] = list(rows)
    if outputs == "multi_label":
        values = [row | {"label": [row["label"]]} for row in rows]
    elif outputs == "tags":
        values = [row | {"text": [row["text"]], "label": [row["label"]]} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in values))
    return path


@pytest.mark.parametrize("outputs", ["classes", "multi_label", "tags"])
@pytest.mark.parametrize("counts", [(40, 40), (50, 10), (51, 10), (90, 10), (30, 200, 31)])
def test_the_note_and_the_selection_have_one_rule(tmp_path: Path, counts: tuple[int, ...], outputs: Any) -> None:
    """The sentence "prefer macro F1", the selection of own data and the data report agree for every kind of label."""
    data = LabelData(path=str(write_counts(tmp_path, counts, outputs)), outputs=outputs, valid_fraction=0.05)
    opened = LabelRunData(CLASSIFICATION, replace(label_run(tmp_path), data=data))
    in_training = list(opened.corpus.counts.values())
    is_unbalanced = max(in_training) > UNBALANCED * min(in_training)
    metric, reason = opened.metric()
    assert metric == ("macro_f1" if is_unbalanced else "accuracy")
    assert any("prefer macro F1" in note for note in opened.corpus.news()) == is_unbalanced == bool(reason)


@pytest.mark.parametrize(("given", "expected"), [("auto", "macro_f1"), ("accuracy", "accuracy"), ("loss", "loss")])
def test_the_first_lines_name_the_metric_and_the_run_keeps_it(tmp_path: Path, given: str, expected: str) -> None:
    run = unbalanced_run(tmp_path, max_steps=2, eval_every=1, early_stopping=EarlyStopping(given, patience=9))
    reporter = Recording()
    trained = api.train(run, tmp_path / "run", reporter=reporter)
    [line] = [message for message in reporter.messages if message.startswith("select ")]
    reason = ": the classes are unbalanced, " if given == "auto" else ""
    assert line.startswith(f"select best validation {expected}{reason}")
    assert line.endswith(" : 1 (more than 5 : 1)") == (given == "auto")
    assert trained.run.train.early_stopping == EarlyStopping(expected, patience=9)
    assert api.load(trained.folder).run.train.early_stopping == EarlyStopping(expected, patience=9)


@pytest.mark.parametrize("outputs", ["regression", "tags"])
def test_auto_suits_every_kind_of_label(tmp_path: Path, outputs: str) -> None:
    run = label_run(tmp_path, outputs, max_steps=1, early_stopping=EarlyStopping("auto"))
    stopping = api.train(run, tmp_path / "run").run.train.early_stopping
    assert stopping is not None and stopping.metric == ("loss" if outputs == "regression" else "macro_f1")


def test_tags_have_weights_too(tmp_path: Path) -> None:
    run = replace(label_run(tmp_path, "tags", max_steps=2), objective=TaggingConfig(class_weights="balanced"))
    reporter = Recording()
    api.train(run, tmp_path / "run", reporter=reporter)
    assert any(" tags with weights from " in message for message in reporter.messages)


def test_a_schedule_may_watch_auto_alone(tmp_path: Path) -> None:
    run = unbalanced_run(tmp_path, max_steps=2, eval_every=1, schedule=PlateauSchedule(metric="auto"))
    reporter = Recording()
    schedule = api.train(run, tmp_path / "run", reporter=reporter).run.train.schedule
    assert isinstance(schedule, PlateauSchedule) and schedule.metric == "macro_f1"
    assert "select best validation loss" in reporter.messages
