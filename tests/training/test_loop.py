"""The loop: evaluations, checkpoints, published weights and messages."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from glassformer import api
from glassformer.common.errors import Interrupted, UserError
from glassformer.config.run import MaskedConfig
from glassformer.config.train import AdamWConfig, EarlyStopping
from glassformer.config.transformer import TokenHead
from glassformer.data.batching import Batch, Example, Windows
from glassformer.objectives.noise import MaskedObjective
from glassformer.store import checkpoint
from glassformer.store.model_directory import read_model
from runs import MODEL, Recording, metrics, signal_at, text_run_of, tiny_run, write_text
from tolerances import near

ROUGH = AdamWConfig(learning_rate=0.5)


def test_the_best_weights_are_published_and_the_last_are_kept(tmp_path: Path) -> None:
    reporter = Recording()
    run = tiny_run(write_text(tmp_path), optimizer=ROUGH, eval_every=2, keep_checkpoints=1)
    api.train(run, tmp_path / "run", reporter)
    losses = {step: reports["valid"].loss for step, reports in reporter.evaluations.items()}
    best = min(losses, key=losses.__getitem__)
    assert best != 20, "the high rate must make the last step worse"
    assert read_model(tmp_path / "run").manifest.step == best
    assert checkpoint.steps(tmp_path / "run") == [best, 20]
    assert api.load(tmp_path / "run").evaluate().loss == losses[best]
    assert api.load(tmp_path / "run", step=20).evaluate().loss == losses[20]


def test_select_last_publishes_the_last_weights(tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path), optimizer=ROUGH, eval_every=2, keep_checkpoints=1, select="last")
    outcome = api.train(run, tmp_path / "run")
    assert read_model(tmp_path / "run").manifest.step == 20
    assert api.load(tmp_path / "run").evaluate() == outcome.reports["valid"]


def test_the_average_is_evaluated_and_published(tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path), ema_decay=0.5, select="last")
    outcome = api.train(run, tmp_path / "run")
    state = checkpoint.path_of(tmp_path / "run", 20)
    average, model = checkpoint.load_state(state).average, read_model(tmp_path / "run").network
    assert average is not None
    for name, parameter in model.named_parameters():
        assert torch.equal(average[f"average/{name}"], parameter), name
    assert api.load(tmp_path / "run").evaluate() == outcome.reports["valid"]


def test_evaluation_and_logging_do_not_change_training(tmp_path: Path) -> None:
    """Pitfall 21 for a whole run: the final weights do not depend on the number of evaluations."""
    text = write_text(tmp_path)
    model = replace(MODEL, residual_dropout=0.3)
    weights = []
    for name, every in (("often", 1), ("once", 20)):
        run = tiny_run(text, model=model, eval_every=every, log_every=every, select="last")
        api.train(run, tmp_path / name)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_every_micro_batch_of_a_run_is_different(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    batch = Windows.batch

    def watched(sampler: Windows, step: int) -> list[Example]:
        drawn.append(step)
        return batch(sampler, step)

    monkeypatch.setattr(Windows, "batch", watched)
    api.train(tiny_run(write_text(tmp_path), max_steps=4, grad_accumulation=3), tmp_path / "run")
    assert drawn == list(range(12))


def test_the_log_has_both_splits_and_the_mean_loss_of_its_steps(tmp_path: Path) -> None:
    text = write_text(tmp_path)
    api.train(tiny_run(text, log_every=1), tmp_path / "fine")
    api.train(tiny_run(text, log_every=10), tmp_path / "coarse")
    fine = [line["train/loss"] for line in metrics(tmp_path / "fine") if "train/loss" in line]
    coarse = [line["train/loss"] for line in metrics(tmp_path / "coarse") if "train/loss" in line]
    assert coarse == near([sum(fine[:10]) / 10, sum(fine[10:]) / 10])
    evaluations = [line for line in metrics(tmp_path / "fine") if "eval/valid_loss" in line]
    assert [line["step"] for line in evaluations] == [10, 20]
    assert {"eval/train_loss", "eval/valid_perplexity", "eval/valid_bits_per_byte", "sample"} <= evaluations[0].keys()


def test_the_loss_falls(tmp_path: Path) -> None:
    reporter = Recording()
    run = tiny_run(write_text(tmp_path), max_steps=60, batch_size=8, optimizer=AdamWConfig(learning_rate=3e-2))
    api.train(run, tmp_path / "run", reporter)
    losses = [reports["valid"].loss for reports in reporter.evaluations.values()]
    assert abs(losses[0] - math.log(290)) < 2 and losses[-1] < losses[0] - 0.3


@pytest.mark.usefixtures("rising_perplexity")
def test_early_stopping_prints_its_reason(tmp_path: Path) -> None:
    reporter = Recording()
    stopping = EarlyStopping(metric="perplexity", patience=2)
    run = tiny_run(write_text(tmp_path), max_steps=50, eval_every=2, early_stopping=stopping)
    outcome = api.train(run, tmp_path / "run", reporter)
    assert "stopped at step 6: perplexity has not improved for 2 evaluations (best at step 2)" in reporter.messages
    assert checkpoint.steps(tmp_path / "run")[-1] == 6
    assert outcome.reports["valid"] == reporter.evaluations[6]["valid"]


def test_an_interrupted_run_prints_the_command_that_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signal_at(monkeypatch, 1)
    with pytest.raises(Interrupted, match=r"glassformer resume '.*/a run'$"):
        api.train(tiny_run(write_text(tmp_path)), tmp_path / "a run")


def test_non_finite_numbers_are_an_error_and_keep_the_checkpoints(tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path), optimizer=AdamWConfig(learning_rate=1e20), clip_norm=0.0, eval_every=1)
    with pytest.raises(UserError, match=r"(is|are) not finite in step \d+: lower train.optimizer.learning-rate"):
        api.train(run, tmp_path / "run")
    for step in checkpoint.steps(tmp_path / "run"):
        network = read_model(checkpoint.path_of(tmp_path / "run", step)).network
        assert all(bool(p.isfinite().all()) for p in network.parameters())


def test_padding_rows_of_the_vocabulary_are_never_generated(tmp_path: Path) -> None:
    """The table is padded to a round size; an untrained model would choose its padding most of the time."""
    model = replace(MODEL, vocab_size=2000, head=TokenHead(bias="learned"))
    reporter = Recording()
    outcome = api.train(
        tiny_run(write_text(tmp_path), model=model, max_steps=2, eval_every=1), tmp_path / "run", reporter
    )
    assert len(reporter.evaluations) == 2
    assert api.load(outcome.folder).generate("abc", max_new_tokens=20)


def test_every_micro_batch_and_every_seed_masks_different_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise is a function of (seed, micro-batch): repeatable, and different for every micro-batch of a step."""
    run = text_run_of(tmp_path, MaskedConfig(), max_steps=3, batch_size=2, grad_accumulation=2)
    row = np.arange(30, 60)
    monkeypatch.setattr(Windows, "batch", lambda self, step: [Example(row), Example(row)])
    seen: list[tuple[bytes, ...]] = []
    collate = MaskedObjective.collate

    def recorded(self: MaskedObjective, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
        batch = collate(self, examples, rng)
        if any(example.token_ids is row for example in examples):
            seen.append(tuple(labels.numpy().tobytes() for labels in batch.labels))
        return batch

    monkeypatch.setattr(MaskedObjective, "collate", recorded)
    for seed in (1, 2, 1):
        train = replace(run.train, seed=seed)
        api.train(replace(run, train=train), tmp_path / f"{len(seen)}")
    assert len(seen) == 18 and seen[:6] == seen[12:]
    assert len({labels for batch in seen[:12] for labels in batch}) == 24, "two rows in each of twelve micro-batches"
