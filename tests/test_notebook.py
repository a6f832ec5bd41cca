"""HTML of results: every value is shown, and a text from the data cannot become markup."""

from dataclasses import replace
from pathlib import Path

import pandas as pd

import glassformer
from glassformer import notebook
from glassformer.config.run import MaskedConfig
from glassformer.evaluation.labels import classification_report
from glassformer.inspection.capture import capture
from glassformer.reporting import Outcome
from runs import text_run_of


def test_a_table_escapes_its_values() -> None:
    html = notebook.table({"<b>": "<script>alert(1)</script>", "n": 1234, "loss": 0.123456789}, "<i>")
    assert "<script" not in html and "<i>" not in html and "&lt;script&gt;" in html
    assert "1,234" in html and "0.123457" in html


def test_a_table_leaves_out_columns_without_a_value() -> None:
    html = notebook.frame([{"loss": 1.5, "perplexity": None}, {"loss": None, "perplexity": None}], "<a> run")
    assert "perplexity" not in html and "1.5" in html and html.count("<tr>") == 3 and "&lt;a&gt; run" in html


def test_a_trained_model_and_its_results_have_html(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    report, score = model.evaluate(), model.score(" a time", source="Once upon")
    assert f"{report.loss:.6g}" in report._repr_html_() and f"{report.loss:.6g}" in trained._repr_html_()
    assert f"{score.nats_per_token:.6g}" in score._repr_html_() and model.name in model._repr_html_()


def test_results_become_a_data_frame_with_one_call(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    scores = [model.score(text, source="a") for text in (" b", " c")]
    frame = pd.DataFrame([score.to_dict() for score in scores])
    assert list(frame["log_prob"]) == [score.log_prob for score in scores]


def test_attention_has_one_cell_per_weight(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    reading = capture(model, "the cat")
    html, n = reading._repr_html_(), len(reading.target)
    assert html.count("rgba") == sum(name.endswith(".weights") for name in reading) * n * n
    mean = next(x for name, x in reading.items() if name.endswith(".weights"))[0].mean(0)
    assert f'title="{float(mean[n - 1, 0]):.3f}"' in html


def test_a_filled_text_lists_its_candidates(tmp_path: Path) -> None:
    run = text_run_of(tmp_path, MaskedConfig())
    outcome = glassformer.train(replace(run, train=replace(run.train, max_steps=1)), tmp_path / "run")
    filling = outcome.model.fill("a [MASK]", n=3)
    assert filling._repr_html_().count("<tr>") == 1 + 1 + 3 and len(filling.to_dict()["candidates"][0]) == 3


def test_a_report_of_classes_has_one_row_per_class() -> None:
    report = classification_report([0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], ["cat", "dog & bird"])
    html = report._repr_html_()
    assert html.count("<tr>") == 3 and "dog &amp; bird" in html
