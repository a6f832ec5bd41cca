"""Every kind of model works with the trainer, checkpoints, evaluation, doctor and plots."""

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer import api, plot
from glassformer.apps.doctor.glassformer_models import check_model
from glassformer.common.errors import Interrupted
from glassformer.config.run import InfillingConfig, MaskedConfig, Run, SpansConfig
from glassformer.store import checkpoint
from runs import MODEL, conversation_run, label_run, pair_run, remains, signal_at, text_run_of, tiny_run, write_text

SCORES = {
    "causal": set(),
    "masked": {"masked_accuracy", "most_frequent_share"},
    "whole-words": {"masked_accuracy", "most_frequent_share"},
    "infilling": set(),
    "spans": set(),
    "pairs": {"bleu", "chrf", "bleu_tok_lc", "exact_match", "bleu_signature", "chrf_signature"},
    **dict.fromkeys(
        ("classes", "sentence-pairs", "decoder-classes"),
        {"accuracy", "macro_f1", "calibration_error", "most_frequent_share", "report"}
        | {"best_threshold", "best_threshold_label", "best_threshold_f1"},
    ),
    "regression": {"rmse", "pearson", "spearman"},
    "tags": {"accuracy", "macro_f1", "span_f1", "span_precision", "span_recall", "report"},
    "conversations": {"exact_match"},
}
RUNS: dict[str, Callable[[Path], Run]] = {
    "causal": lambda folder: tiny_run(write_text(folder)),
    "masked": lambda folder: text_run_of(folder, MaskedConfig()),
    "whole-words": lambda folder: text_run_of(folder, MaskedConfig(whole_words=True)),
    "infilling": lambda folder: text_run_of(folder, InfillingConfig()),
    "spans": lambda folder: text_run_of(folder, SpansConfig(n_sentinels=8)),
    "pairs": pair_run,
    "classes": label_run,
    "sentence-pairs": lambda folder: label_run(
        folder,
        model=replace(MODEL, encoder=MODEL.decoder, decoder=None, n_token_types=2),
        data={"second_field": "other"},
    ),
    "decoder-classes": lambda folder: label_run(folder, model=MODEL),
    "regression": lambda folder: label_run(folder, "regression"),
    "tags": lambda folder: label_run(folder, "tags"),
    "conversations": conversation_run,
}

OF_EACH_NETWORK = {"causal", "masked", "pairs", "classes", "sentence-pairs", "decoder-classes", "tags"}
"""Kinds whose networks have all structures of `RUNS`; the doctor does not see how a network was trained."""


@pytest.mark.parametrize("kind", RUNS)
def test_every_tool_takes_a_model_of_every_kind(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RUNS[kind](tmp_path)
    run = replace(run, train=replace(run.train, select="last", max_steps=12, eval_every=6))
    outcome = api.train(run, tmp_path / "whole")
    model = api.load(outcome.folder)
    assert model.evaluate(log=print) == outcome.reports["valid"], "the trainer's loss, computed again"
    assert api.load(checkpoint.path_of(outcome.folder, 12)).evaluate(log=print) == outcome.reports["valid"]
    scores = model.scores(log=print)
    assert set(scores) >= SCORES[kind] and bool(scores) == bool(SCORES[kind])
    if kind in OF_EACH_NETWORK:
        report = check_model(model.network)
        assert report.ok, str(report)
    plot.curves(outcome.folder)
    with monkeypatch.context() as patch:
        signal_at(patch, 4, signal.SIGTERM)
        with pytest.raises(Interrupted):
            api.train(run, tmp_path / "stopped")
    api.resume(tmp_path / "stopped")
    assert remains(tmp_path / "stopped") == remains(tmp_path / "whole"), "resuming is exact to the bit"
