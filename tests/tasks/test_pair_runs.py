"""Runs on pairs: two tokenizers, resuming, averaging, stopping by a score, and pairs that are too long."""

import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from glassformer import api
from glassformer.common.errors import Interrupted, UserError
from glassformer.config.recurrent import AttendBefore, RecurrentConfig
from glassformer.config.run import CausalConfig, GenerationConfig, Seq2SeqConfig, TextData
from glassformer.config.train import EarlyStopping, TrainConfig
from glassformer.config.transformer import NoPositions, TransformerConfig
from glassformer.store import checkpoint
from glassformer.store.model_directory import SOURCE_TOKENIZER
from runs import MODEL, PAIR_MODEL, Recording, metrics, pair_run, remains, signal_at, tiny_run, write_text
from tolerances import is_close

RECURRENT = RecurrentConfig(
    cell="gru", d_embedding=12, d_encoder=10, d_decoder=14, attention=AttendBefore(), max_len=32, output_dropout=0.1
)


@pytest.mark.parametrize("separate", [False, True])
def test_evaluating_the_model_gives_the_loss_of_the_run(tmp_path: Path, separate: bool) -> None:
    outcome = api.train(pair_run(tmp_path, separate=separate), tmp_path / "run")
    model = api.load(outcome.folder)
    assert model.evaluate() == outcome.reports["valid"]
    report = outcome.reports["valid"]
    assert report.smoothed_loss is not None and report.smoothed_loss != report.loss
    assert (outcome.folder / SOURCE_TOKENIZER).exists() == separate
    assert (model.source_tokenizer is model.tokenizer) != separate
    if separate:
        assert model.network.config.source_vocab_size == model.source_tokenizer.vocab_size
        assert "hund" not in "".join(model.source_tokenizer.vocab) and "dog" not in "".join(model.tokenizer.vocab)
    data = pair_run(tmp_path).data
    assert model.evaluate(source=data.valid_source, target=data.valid_target) == report  # type: ignore[union-attr]


@pytest.mark.parametrize("model", [replace(PAIR_MODEL, residual_dropout=0.1), RECURRENT], ids=["transformer", "gru"])
def test_resume_is_exact_to_the_bit_on_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    run = pair_run(tmp_path, model=model, grad_accumulation=2)
    api.train(run, tmp_path / "whole")
    with monkeypatch.context() as patch:
        signal_at(patch, 7, signal.SIGTERM)
        with pytest.raises(Interrupted):
            api.train(run, tmp_path / "stopped")
    api.resume(tmp_path / "stopped")
    assert remains(tmp_path / "stopped") == remains(tmp_path / "whole")


def test_the_average_of_the_kept_checkpoints_is_published_and_reported(tmp_path: Path) -> None:
    run = pair_run(tmp_path, select="average", keep_checkpoints=3, eval_every=5)
    reporter = Recording()
    outcome = api.train(run, tmp_path / "run", reporter)
    steps = checkpoint.steps(outcome.folder)
    assert steps[-3:] == [10, 15, 20] and any("10, 15, 20" in line for line in reporter.messages)
    parts = [load_file(checkpoint.path_of(outcome.folder, step) / "model.safetensors") for step in (10, 15, 20)]
    mean = load_file(outcome.folder / "model.safetensors")
    for name, tensor in mean.items():
        assert is_close(tensor, sum(part[name].double() for part in parts).float() / 3)  # type: ignore[union-attr]
    assert api.load(outcome.folder).evaluate() == outcome.reports["valid"]
    log = metrics(outcome.folder)
    assert sum("mean/valid_loss" in line for line in log) == 1
    assert api.resume(outcome.folder).reports["valid"] == outcome.reports["valid"]
    assert metrics(outcome.folder) == log, "a finished run is evaluated again, and logs nothing twice"


def test_a_damaged_older_checkpoint_is_skipped_and_reported(tmp_path: Path) -> None:
    run = pair_run(tmp_path, select="average", keep_checkpoints=2, eval_every=10)
    folder = api.train(run, tmp_path / "run").folder
    (checkpoint.path_of(folder, 10) / "model.safetensors").write_bytes(b"")
    reporter = Recording()
    api.resume(folder, reporter)
    assert any("step-10" in line and "it is skipped" in line for line in reporter.messages), reporter.messages
    last = checkpoint.path_of(folder, 20) / "model.safetensors"
    assert (folder / "model.safetensors").read_bytes() == last.read_bytes()


def test_the_reported_loss_is_that_of_the_published_average(tmp_path: Path) -> None:
    run = pair_run(tmp_path, select="average", keep_checkpoints=2, ema_decay=0.9)
    outcome = api.train(run, tmp_path / "run")
    assert api.load(outcome.folder).evaluate() == outcome.reports["valid"]


def test_a_score_stops_the_run_and_chooses_the_weights(tmp_path: Path) -> None:
    stopping = EarlyStopping(metric="exact_match", patience=2)
    reporter = Recording()
    outcome = api.train(pair_run(tmp_path, early_stopping=stopping, eval_every=4), tmp_path / "run", reporter)
    assert len(reporter.scores) == 3 and all("exact_match" in scores for scores in reporter.scores.values())
    assert any(line.startswith("stopped at step 12") for line in reporter.messages), (
        reporter.messages
    )  # the score stays 0
    assert checkpoint.steps(outcome.folder)[-1] == 12


def test_only_the_watched_score_is_required_and_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    run = pair_run(tmp_path, max_steps=2, early_stopping=EarlyStopping("exact_match"))
    folder = api.train(run, tmp_path / "run").folder
    assert [line["eval/valid_exact_match"] for line in metrics(folder) if "eval/valid_loss" in line] == [0]
    run = replace(run, train=replace(run.train, early_stopping=EarlyStopping("chrf")))
    with pytest.raises(UserError, match="a BLEU or chrF score"):
        api.train(run, tmp_path / "chrf")


@pytest.mark.parametrize(
    ("stopping", "words"),
    [
        (EarlyStopping(metric="wer"), "'wer' is not available for sentences"),
        (
            EarlyStopping(metric="bits_per_byte"),
            "'bits_per_byte' is not available for sentences; choose one of loss, perplexity",
        ),
    ],
)
def test_unavailable_scores_are_refused_before_the_first_step(
    tmp_path: Path, stopping: EarlyStopping, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        api.train(pair_run(tmp_path, early_stopping=stopping), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_pairs_that_are_too_long_are_skipped_and_counted(tmp_path: Path) -> None:
    reporter = Recording()
    api.train(pair_run(tmp_path, model=replace(PAIR_MODEL, max_len=6, source_max_len=5)), tmp_path / "run", reporter)
    lines = [line for line in reporter.messages if "are left out" in line]
    assert lines and "5 source or 6 target tokens" in lines[0], reporter.messages
    model = api.load(tmp_path / "run")
    with pytest.raises(UserError, match="reads at most 5"):
        model.translate("dog " * 12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": MODEL}, r"needs both \[model.encoder\] and \[model.decoder\]"),
        ({"objective": CausalConfig()}, "objective.kind: expected seq2seq for pairs, got causal"),
        ({"model": replace(PAIR_MODEL, source_vocab_size=50)}, r"needs a \[source_tokenizer\]"),
        ({"data": TextData(path="text.txt")}, "expected pairs for objective.kind seq2seq, got text"),
        ({"generation": GenerationConfig(top_k=3)}, "needs generation.kind beam"),
        ({"train": TrainConfig(batch_size=7)}, "train.batch_size does not apply to pairs: set data.batch_tokens"),
        (
            {
                "objective": Seq2SeqConfig(label_smoothing=0.0),
                "train": TrainConfig(early_stopping=EarlyStopping(metric="smoothed_loss")),
            },
            "'smoothed_loss' is not available for sentences",
        ),
    ],
)
def test_wrong_runs_on_pairs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(write_text(tmp_path).parent)
    with pytest.raises(UserError, match=words):
        api.train(replace(pair_run(tmp_path), **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_shared_embeddings_need_a_joint_vocabulary(tmp_path: Path) -> None:
    model = replace(PAIR_MODEL, share_embeddings=True)
    with pytest.raises(UserError, match=r"model\.share_embeddings needs one tokenizer"):
        api.train(pair_run(tmp_path, model=model, separate=True), tmp_path / "run")


def test_text_is_refused_for_an_encoder(tmp_path: Path) -> None:
    path = write_text(tmp_path)
    with pytest.raises(UserError, match=r"with only \[model.decoder\]"):
        api.train(
            tiny_run(path, model=TransformerConfig(encoder=MODEL.decoder, positions=NoPositions())), tmp_path / "x"
        )
