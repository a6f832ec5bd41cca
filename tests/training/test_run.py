"""A whole run: errors before the first step, and a stopped and resumed run equals an uninterrupted one."""

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer import api
from glassformer.common.errors import Interrupted, UserError
from glassformer.config.run import CausalConfig, ExampleRows, PackedRows, Run, TokenizerConfig, WindowRows
from glassformer.config.train import AdamConfig, AdamWConfig, EarlyStopping, MuonConfig, PlateauSchedule
from glassformer.evaluation.loss import ALONE
from glassformer.models.build import build_model
from glassformer.store import checkpoint, model_directory
from glassformer.tasks.reporting import Silent
from glassformer.tasks.task import trainable_task
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.training import checkpointer
from runs import MODEL, Recording, Tiny, remains, signal_at, text_corpus, tiny_run, write_documents, write_text

Make = Callable[[Path], Run]


def windows(**settings: Any) -> Make:
    model = replace(MODEL, residual_dropout=0.2, attention_dropout=0.1, embedding_dropout=0.1)
    return lambda folder: tiny_run(write_text(folder), model=model, **settings)


def documents(packing: Any) -> Make:
    return lambda folder: tiny_run(write_documents(folder), data={"packing": packing, "valid_fraction": 0.2})


RUNS: dict[str, Make] = {
    "dropout": windows(),
    "average_and_accumulation": windows(ema_decay=0.9, grad_accumulation=3),
    "muon_and_plateau": windows(
        optimizer=MuonConfig(adamw_learning_rate=0.3, adamw_weight_decay=0.1),
        schedule=PlateauSchedule(patience=0),
        eval_every=2,
    ),
    "early_stopping": windows(
        max_steps=40,
        eval_every=4,
        checkpoint_every=6,
        optimizer=AdamConfig(),
        early_stopping=EarlyStopping("perplexity", patience=4),
    ),
    "last_of_bf16_recomputed": windows(select="last", precision="bf16", activation_checkpointing=True),
    "smoothed": lambda folder: replace(windows()(folder), objective=CausalConfig(0.1)),
    "examples": documents(ExampleRows()),
    "packed": documents(PackedRows()),
}


@pytest.mark.usefixtures("rising_perplexity")
@pytest.mark.parametrize("name", RUNS)
def test_pitfall_23_a_resumed_run_equals_an_uninterrupted_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RUNS[name](tmp_path)
    whole = api.train(run, tmp_path / "whole")
    with monkeypatch.context() as patch:
        signal_at(patch, 2)
        with pytest.raises(Interrupted, match=r"SIGTERM: saved at step 3 of .*; continue with: glassformer resume"):
            api.train(run, tmp_path / "parts")
    for step in (7, 9):  # after the first evaluation of some runs, and once more
        with monkeypatch.context() as patch:
            signal_at(patch, step)
            with pytest.raises(Interrupted):
                api.resume(tmp_path / "parts")
    parts = api.resume(tmp_path / "parts")
    assert parts.reports == whole.reports
    assert remains(tmp_path / "parts") == remains(tmp_path / "whole")


@pytest.mark.usefixtures("rising_perplexity")
def test_the_runs_above_use_early_stopping_and_plateau(tmp_path: Path) -> None:
    """Otherwise the test above would not cover them."""
    api.train(RUNS["early_stopping"](tmp_path), tmp_path / "a")
    assert checkpoint.steps(tmp_path / "a")[-1] == 20
    api.train(RUNS["muon_and_plateau"](tmp_path), tmp_path / "b")
    assert checkpoint.load_state(checkpoint.path_of(tmp_path / "b", 20)).numbers["plateau"]["factor"] < 1


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)])
def test_pitfall_23_a_seed_makes_runs_equal(tmp_path: Path, seeds: tuple[int, int]) -> None:
    text = write_text(tmp_path)
    for i, seed in enumerate(seeds):
        api.train(tiny_run(text, seed=seed, max_steps=3), tmp_path / str(i))
    equal = remains(tmp_path / "0")["tensors"] == remains(tmp_path / "1")["tensors"]
    assert equal == (seeds[0] == seeds[1])


@pytest.fixture
def finished(tiny: Tiny) -> Path:
    return tiny("text")


def flip_a_bit(path: Path, place: float = 0.5) -> None:
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 4
    path.write_bytes(data)


def test_a_finished_run_has_nothing_left_to_do(finished: Path) -> None:
    before, reporter = remains(finished), Recording()
    outcome = api.resume(finished, reporter)
    assert reporter.messages == ["resumed at step 20 of 20: the run is complete"]
    assert outcome.reports["valid"] == api.load(finished, step=20).evaluate()
    assert remains(finished) == before


@pytest.mark.parametrize("file", ["model.safetensors", checkpoint.OPTIMIZER, checkpoint.STATE, "manifest.json"])
def test_a_damaged_checkpoint_is_skipped_and_the_run_ends_equal(finished: Path, file: str) -> None:
    before, reporter = remains(finished), Recording()
    flip_a_bit(finished / "checkpoints" / "step-20" / file)
    api.resume(finished, reporter)
    assert "step-20" in reporter.messages[0]
    assert reporter.messages[0].endswith("trying the previous checkpoint")
    assert reporter.messages[1] == "resumed at step 10 of 20"
    assert remains(finished) == before


def test_a_run_stopped_before_a_damaged_later_checkpoint_resumes(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = remains(finished)
    flip_a_bit(finished / "checkpoints" / "step-20" / "model.safetensors")
    with monkeypatch.context() as patch:
        signal_at(patch, 14)
        with pytest.raises(Interrupted, match="saved at step 15"):
            api.resume(finished)
    reporter = Recording()
    api.resume(finished, reporter)
    assert reporter.messages[-1] == "resumed at step 15 of 20"
    assert remains(finished) == before


def test_a_run_with_only_damaged_checkpoints_is_unchanged(finished: Path) -> None:
    for folder in (finished / "checkpoints").iterdir():
        flip_a_bit(folder / checkpoint.OPTIMIZER)
    weights = (finished / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="has no intact checkpoint to resume from"):
        api.resume(finished)
    assert (finished / "model.safetensors").read_bytes() == weights


def test_a_changed_text_is_refused(tmp_path: Path) -> None:
    text = write_text(tmp_path)
    folder = api.train(tiny_run(text, max_steps=2, eval_every=2), tmp_path / "run").folder
    text.write_text(text.read_text().replace("a", "b", 1))
    with pytest.raises(UserError, match=r"has changed since .* was trained on it"):
        api.resume(folder)


def test_resuming_a_missing_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run"):
        api.resume(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no intact checkpoint"):
        api.resume(tmp_path)


def test_a_run_killed_before_publication_is_published_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run(write_text(tmp_path))
    api.train(run, tmp_path / "whole")

    def die(source: Path, folder: Path, step: int) -> None:
        if step == 20:
            raise KeyboardInterrupt
        model_directory.publish(source, folder, step)

    monkeypatch.setattr(checkpointer, "publish", die)
    with pytest.raises(KeyboardInterrupt):
        api.train(run, tmp_path / "run")
    monkeypatch.undo()
    assert model_directory.read_model(tmp_path / "run").manifest.step == 10
    api.resume(tmp_path / "run")
    assert remains(tmp_path / "run") == remains(tmp_path / "whole")


def test_a_damaged_published_model_is_repaired(finished: Path) -> None:
    before = remains(finished)
    flip_a_bit(finished / "model.safetensors")
    api.resume(finished)
    assert remains(finished) == before


def test_a_damaged_best_checkpoint_is_never_published(finished: Path) -> None:
    last = finished / "checkpoints" / "step-20"
    best = json.loads((last / checkpoint.STATE).read_text())["best_step"]
    assert best == 20
    shutil.rmtree(last)  # step 10 is now the newest and the best
    flip_a_bit(finished / "checkpoints" / "step-10" / "model.safetensors")
    with pytest.raises(UserError, match="no intact checkpoint"):
        api.resume(finished)
    with pytest.raises(UserError, match="damaged"):
        model_directory.publish(finished / "checkpoints" / "step-10", finished, 10)


def test_a_signal_during_the_last_step_lets_the_run_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signal_at(monkeypatch, 19, signal.SIGINT)
    outcome = api.train(tiny_run(write_text(tmp_path)), tmp_path / "run")
    assert outcome.reports["valid"] == api.load(outcome.folder).evaluate()


def test_pitfall_23_an_interruption_does_not_change_the_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(write_text(tmp_path), select="average", keep_checkpoints=3, eval_every=5)
    api.train(run, tmp_path / "whole")
    with monkeypatch.context() as patch:
        signal_at(patch, 17)
        with pytest.raises(Interrupted):
            api.train(run, tmp_path / "parts")
    assert checkpoint.steps(tmp_path / "parts") == [5, 10, 15, 18]
    api.resume(tmp_path / "parts")
    assert remains(tmp_path / "parts") == remains(tmp_path / "whole")


def test_a_published_mean_is_kept_when_a_checkpoint_is_missing(tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path), select="average", keep_checkpoints=3, eval_every=5)
    api.train(run, tmp_path / "run")
    before = remains(tmp_path / "run")
    shutil.rmtree(checkpoint.path_of(tmp_path / "run", 10))
    api.resume(tmp_path / "run")
    assert remains(tmp_path / "run") == before


def test_a_missing_best_checkpoint_is_reported(tmp_path: Path) -> None:
    rough = AdamWConfig(learning_rate=0.5)
    run = tiny_run(write_text(tmp_path), optimizer=rough, eval_every=2, max_steps=30, keep_checkpoints=1)
    api.train(run, tmp_path / "run")
    best, last = checkpoint.steps(tmp_path / "run")
    shutil.rmtree(checkpoint.path_of(tmp_path / "run", best))
    (tmp_path / "run" / "manifest.json").unlink()
    reporter = Recording()
    api.resume(tmp_path / "run", reporter)
    assert any("search for the best step restarts" in line for line in reporter.messages)
    assert model_directory.read_model(tmp_path / "run").manifest.step == last


def test_pitfall_22_the_tokenizer_never_sees_the_validation_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text.txt"
    path.write_text("ab cd ef gh " * 90 + "QQ ZZ " * 20, "utf-8")
    seen: list[str] = []
    train = Tokenizer.train.__func__  # type: ignore[attr-defined]

    def watched(cls: type[Tokenizer], texts: Any, **options: Any) -> Tokenizer:
        return train(cls, (seen.append(text) or text for text in texts), **options)  # type: ignore[func-returns-value]

    monkeypatch.setattr(Tokenizer, "train", classmethod(watched))
    run = replace(tiny_run(path, max_steps=1), tokenizer=TokenizerConfig(scheme="char", vocab_size=0))
    api.train(run, tmp_path / "run")
    assert "".join(seen) == "".join(text_corpus(path).training_texts())
    assert "Z" not in "".join(seen) and "Z" not in api.load(tmp_path / "run").tokenizer.vocab


def test_pitfall_22_training_batches_hold_no_validation_document(tmp_path: Path) -> None:
    path = write_documents(tmp_path)
    run = tiny_run(path, data={"packing": ExampleRows(), "valid_fraction": 0.3})
    material = trainable_task(run).open(run)
    tokenizers = material.tokenizers(run, Silent())
    run = replace(run, model=material.complete(run, tokenizers))
    task = material.prepare(run, tokenizers, Silent()).training_data(build_model(run.model), torch.device("cpu"), ALONE)
    valid = {tuple(row.token_ids) for rows in task.evaluations["valid"]() for row in rows}
    seen = {tuple(row.token_ids) for step in range(30) for row in task.sampler.batch(step)}
    assert valid and seen and not valid & seen


def test_a_setting_without_effect_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"init\.model recipe has no effect without init\.path"):
        api.train(tiny_run(write_text(tmp_path)), tmp_path / "run", changes={"init.model": "recipe"})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("train", "fact"),
    [
        ({}, "select best validation loss"),
        ({"early_stopping": EarlyStopping("perplexity")}, "select best validation perplexity"),
        ({"select": "last"}, "select "),
    ],
)
def test_a_new_run_names_the_value_that_selects_its_weights(train: dict[str, Any], fact: str, tmp_path: Path) -> None:
    reporter = Recording()
    api.train(tiny_run(write_text(tmp_path), max_steps=1, **train), tmp_path / "run", reporter)
    assert [line for line in reporter.messages if line.startswith("select")] == [fact]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "cuda:99"}, "device 'cuda:99' is not available"),
        ({"device": "gpu"}, "train.device is gpu and must be auto, cpu, cuda, cuda:N or mps"),
        ({"early_stopping": EarlyStopping(metric="bleu")}, "choose one of loss, perplexity, bits_per_byte"),
    ],
)
def test_wrong_training_settings_are_refused_and_leave_nothing(tmp_path: Path, changes: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        api.train(tiny_run(write_text(tmp_path), **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": replace(MODEL, encoder=MODEL.decoder)}, "with only .model.decoder."),
        ({"model": replace(MODEL, encoder=MODEL.decoder, decoder=None)}, "with only .model.decoder."),
        (
            {"model": replace(MODEL, vocab_size=100)},
            "model.vocab_size: expected at least 290 for this tokenizer, got 100",
        ),
        (
            {"model": replace(MODEL, max_len=8), "context": 9},
            r"data.context: expected at most .* \(8\), got 9",
        ),
        ({"text": "too short"}, "too few|at least|fewer|shorter"),
        ({"text": ""}, "is empty"),
        (
            {"batch_size": 10_000_000},
            r"train\.batch_size is 10,000,000, and the training text has only \d,\d\d\d different rows of at most 32",
        ),
        (
            {"batch_size": 50, "packing": ExampleRows()},
            "train.batch_size is 50, and the training text has only 1 differ",
        ),
    ],
)
def test_unsuitable_data_is_refused_and_leaves_nothing(tmp_path: Path, change: Any, words: str) -> None:
    path = write_text(tmp_path)
    if "text" in change:
        path.write_text(change["text"])
    data = {"context": change.get("context", 0), "packing": change.get("packing", WindowRows())}
    run = tiny_run(path, model=change.get("model", MODEL), data=data, batch_size=change.get("batch_size", 3))
    with pytest.raises(UserError, match=words):
        api.train(run, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_with_files_is_not_overwritten(tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path), max_steps=1)
    api.train(run, tmp_path / "run")
    before = (tmp_path / "run" / "model.safetensors").stat()
    with pytest.raises(UserError, match="already contains a run: continue it with `glassformer resume"):
        api.train(run, tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").stat() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match="not empty"):
        api.train(run, tmp_path / "mine")
