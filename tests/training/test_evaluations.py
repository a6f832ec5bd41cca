"""Evaluations in a run: learning rates, dropout, the moving average, and the watched metric."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config.run import CausalConfig
from glassformer.config.train import (
    AdamWConfig,
    ConstantSchedule,
    EarlyStopping,
    LinearSchedule,
    PlateauSchedule,
    TrainConfig,
)
from glassformer.data.batching import Batch, Example
from glassformer.evaluation.loss import LossReport
from glassformer.evaluation.metrics import METRICS
from glassformer.objectives.causal import CausalObjective
from glassformer.store import checkpoint
from glassformer.tasks.batches import TrainingData, few_targets
from glassformer.training.averaging import ExponentialAverage
from glassformer.training.evaluations import Evaluations
from glassformer.training.host import Host
from glassformer.training.step import Pending, StepResult
from glassformer.training.trainer_state import TrainerState, read_progress
from runs import MODEL, label_run, metrics, pair_run, tiny_run, write_text

PEAK = 1e-3
FALLING, RISING = [5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0]
HALVED = PlateauSchedule(warmup_steps=0, patience=0, ratio=0.5)


def rates(folder: Path) -> list[float]:
    """Return the learning rate of every step, as a share of the peak."""
    return [line["learning_rate"] / PEAK for line in metrics(folder) if "learning_rate" in line]


def trained_with(
    monkeypatch: pytest.MonkeyPatch, folder: Path, train: Sequence[float], valid: Sequence[float], **settings: Any
) -> Path:
    """Train for five steps with an evaluation after each, and replace the measured losses by these."""

    def measured(evaluations: Evaluations, step: int, *_: Any) -> Any:
        losses = {"train": train[step - 1], "valid": valid[step - 1]}
        return {split: LossReport(x, 1 / x, None, 1) for split, x in losses.items()}, {}

    monkeypatch.setattr(Evaluations, "measure", measured)
    defaults = {"max_steps": 5, "eval_every": 1, "log_every": 1, "optimizer": AdamWConfig(learning_rate=PEAK)}
    api.train(tiny_run(write_text(folder), **(defaults | settings)), folder / "run")
    return folder / "run"


@pytest.mark.parametrize(("valid", "best"), [(FALLING, 5), (RISING, 1)])
def test_the_best_step_and_the_plateau_follow_the_validation_loss(
    valid: list[float], best: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = RISING if valid is FALLING else FALLING
    folder = trained_with(monkeypatch, tmp_path, train, valid, schedule=HALVED)
    assert read_progress(checkpoint.path_of(folder, 5)).best_step == best
    assert rates(folder) == pytest.approx([1, 1, 1, 1, 1] if valid is FALLING else [1, 1, 0.5, 0.25, 0.125])


@pytest.mark.parametrize(("rises", "expected"), [(True, [1, 1, 1, 1, 1]), (False, [1, 1, 0.5, 0.25, 0.125])])
def test_the_plateau_watches_its_metric_in_its_direction(
    rises: bool, expected: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss falls, and the metric, named perplexity, is its reciprocal and rises."""
    monkeypatch.setitem(METRICS, "perplexity", replace(METRICS["perplexity"], higher_is_better=rises))
    schedule = replace(HALVED, metric="perplexity")
    assert rates(trained_with(monkeypatch, tmp_path, FALLING, FALLING, schedule=schedule)) == pytest.approx(expected)


@pytest.mark.parametrize(("metric", "best"), [("accuracy", 5), ("rmse", 1)])
def test_the_direction_of_a_score_is_known(metric: str, best: int) -> None:
    """The score rises."""
    config = TrainConfig(early_stopping=EarlyStopping(metric, 9))
    data: Any = None
    evaluations = Evaluations(config, nn.Identity(), data, Host(torch.device("cpu")), None)
    progress = TrainerState()
    for progress.step, score in enumerate(RISING, 1):
        evaluations.conclude(progress, {"valid": LossReport(1.0, None, None, 1)}, {metric: score})
    assert progress.best_step == best


def test_the_plateau_and_early_stopping_may_watch_different_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopping = EarlyStopping("perplexity", patience=9)
    folder = trained_with(monkeypatch, tmp_path, FALLING, FALLING, schedule=HALVED, early_stopping=stopping)
    assert read_progress(checkpoint.path_of(folder, 5)).best_step == 1
    assert rates(folder) == pytest.approx([1, 1, 1, 1, 1])


def test_the_plateau_watches_a_score_of_generated_targets(tmp_path: Path) -> None:
    """No target is right in 20 steps: the score stays at 0 while the loss falls."""
    schedule = replace(HALVED, metric="exact_match")
    settings = {"optimizer": AdamWConfig(learning_rate=PEAK), "eval_every": 4, "log_every": 4}
    api.train(pair_run(tmp_path, schedule=schedule, **settings), tmp_path / "run")
    losses = [line["eval/valid_loss"] for line in metrics(tmp_path / "run") if "eval/valid_loss" in line]
    assert losses == sorted(losses, reverse=True)
    assert [line["eval/valid_exact_match"] for line in metrics(tmp_path / "run") if "eval/valid_loss" in line] == [
        0
    ] * 5
    assert rates(tmp_path / "run") == pytest.approx([1, 1, 0.5, 0.25, 0.125])


@pytest.mark.parametrize(
    ("make", "schedule", "words"),
    [
        (pair_run, {"metric": "wer"}, "train.schedule.metric: 'wer' is not available for sentences"),
        (
            pair_run,
            {"metric": "bits_per_byte"},
            "train.schedule.metric: 'bits_per_byte' is not available for sentences",
        ),
        (label_run, {"metric": "span_f1"}, "train.schedule.metric: 'span_f1' is not available for classes"),
    ],
)
def test_a_plateau_of_an_unknown_metric_is_refused_before_the_first_step(
    make: Any, schedule: dict[str, Any], words: str, tmp_path: Path
) -> None:
    stopping = EarlyStopping("bleu") if make is pair_run else None
    with pytest.raises(UserError, match=words):
        api.train(make(tmp_path, schedule=replace(HALVED, **schedule), early_stopping=stopping), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_evaluate_gives_the_trainers_loss_in_every_precision(precision: str, tmp_path: Path) -> None:
    outcome = api.train(tiny_run(write_text(tmp_path), max_steps=5, precision=precision), tmp_path / "run")
    assert api.load(outcome.folder).evaluate() == outcome.reports["valid"]


def test_the_rate_of_each_step_follows_the_schedule(tmp_path: Path) -> None:
    settings = {"schedule": LinearSchedule(warmup_steps=2, final_ratio=0.0), "log_every": 1, "max_steps": 6}
    run = tiny_run(write_text(tmp_path), optimizer=AdamWConfig(learning_rate=PEAK), **settings)
    api.train(run, tmp_path / "run")
    # The factor of step n, counted from 0, is (n + 1) / 3 in the warm-up and 1 - (n - 2) / 4 after it.
    assert rates(tmp_path / "run") == pytest.approx([1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25])


def test_the_logged_training_loss_has_no_label_smoothing(tmp_path: Path) -> None:
    """Before the first update both runs have the same weights, so their cross-entropy is the same."""
    first = {}
    for smoothing in (0.0, 0.3):
        run = tiny_run(write_text(tmp_path), max_steps=1)
        api.train(replace(run, objective=CausalConfig(smoothing)), tmp_path / f"{smoothing}")
        first[smoothing] = next(line for line in metrics(tmp_path / f"{smoothing}") if "train/loss" in line)
    assert first[0.0]["train/loss"] == first[0.3]["train/loss"]
    assert first[0.0]["gradient_norm"] != first[0.3]["gradient_norm"], "label smoothing has no effect"


def test_each_micro_batch_has_a_different_dropout_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    loss = CausalObjective.loss

    def recorded(self: CausalObjective, model: Any, batch: Batch) -> Any:
        if model.training:
            seeds.append(torch.initial_seed())
        return loss(self, model, batch)

    monkeypatch.setattr(CausalObjective, "loss", recorded)
    model = replace(MODEL, residual_dropout=0.1)
    for number, seed in enumerate((1, 2, 1)):
        run = tiny_run(write_text(tmp_path), model=model, max_steps=3, grad_accumulation=2, seed=seed)
        api.train(run, tmp_path / f"{number}")
    assert len(seeds) == 18 and seeds[:6] == seeds[12:]
    assert len(set(seeds)) == 12


def test_a_skipped_step_does_not_change_the_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an overflow of an fp16 gradient, the weights and their average are unchanged."""
    updates: list[int] = []
    read, update = Pending.read, ExponentialAverage.update

    def not_taken(pending: Pending) -> StepResult:
        not_taken.n += 1  # type: ignore[attr-defined]
        return replace(read(pending), is_taken=not_taken.n % 2 == 0)  # type: ignore[attr-defined]

    def counted(average: ExponentialAverage) -> None:
        updates.append(not_taken.n)  # type: ignore[attr-defined]
        update(average)

    not_taken.n = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(Pending, "read", not_taken)
    monkeypatch.setattr(ExponentialAverage, "update", counted)
    settings = {"max_steps": 6, "ema_decay": 0.9, "schedule": ConstantSchedule()}
    api.train(tiny_run(write_text(tmp_path), **settings), tmp_path / "run")
    assert updates == [2, 4, 6]


@pytest.mark.parametrize(("n_targets", "n_batches", "is_reported"), [(1, 999, True), (1, 1000, False), (300, 3, True)])
def test_few_validation_targets_are_reported(n_targets: int, n_batches: int, is_reported: bool) -> None:
    """The number of targets counts, not that of tokens: a masked row has few targets."""

    class Few(CausalObjective):
        def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
            return replace(super().collate(examples, rng), n_targets=n_targets)

    batches = [[Example(np.arange(1200))] for _ in range(n_batches)]
    task = TrainingData(Few(), None, {"valid": lambda: batches}, {"valid": None})  # type: ignore[arg-type]
    messages = few_targets(task)
    assert [f"has only {n_targets * n_batches:,} targets" in sentence for sentence in messages] == (
        [True] if is_reported else []
    )
