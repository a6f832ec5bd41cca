"""HTML of results: every value is shown, and a text from the data cannot become markup."""

import sys
from dataclasses import replace
from html import escape
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import glassformer
import late
from glassformer.common import notebook
from glassformer.common.figures import MASKED
from glassformer.config.run import MaskedConfig
from glassformer.evaluation.labels import classification_report
from glassformer.inspection.ablation import Effects, Part, effects
from glassformer.inspection.capture import capture, encoded
from glassformer.inspection.lens import NAMES, lens_cells, lens_labels
from glassformer.inspection.measures import measure_of
from glassformer.inspection.patching import Restored, patch_residual, patching_of
from glassformer.tasks.reporting import Outcome
from runs import text_run_of

pd = late.module("pandas")


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


def test_attention_shows_each_head_with_its_weights(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    reading = capture(model, "the cat")
    svg, html, n = reading._repr_svg_(), reading._repr_html_(), len(reading.target)
    layers = [x[0] for name, x in reading.items() if name.endswith(".weights")]
    n_heads = sum(len(layer) for layer in layers)
    assert svg is not None and svg in html and html.count(">head ") == n_heads
    # One cell per weight that the mask allows, in the colour of the weight, with the weight
    root = ElementTree.fromstring(svg)
    maps = root.findall("{*}g")
    for heads, found in zip([head for layer in layers for head in layer], maps, strict=True):
        background, *cells = found.findall("{*}rect")
        assert background.get("fill") == MASKED and len(cells) == n * (n + 1) // 2
        weights = [float(w) for row in heads for w in row if w > 0]
        assert [cell.get("fill") for cell in cells] == [notebook.shade(w) for w in weights]
        tips = [tip.text or "" for tip in found.findall(".//{*}title")]
        assert [tip.rsplit(": ", 1)[1] for tip in tips] == [f"{w:.3f}" for w in weights if w >= notebook.LEAST]


def test_the_picture_of_heads_is_cut_and_escaped(trained: Outcome) -> None:
    layer = notebook.Layer("a.weights", [[[1.0]]], [SCRIPT], ["\x00"])
    root = ElementTree.fromstring(notebook.head_maps([layer]))
    assert "<U+0000>" in [text.text for text in root.findall(".//{*}text")]
    model = glassformer.load(trained.folder)
    reading = capture(model, "the cat")
    n_layers = sum(name.endswith(".weights") for name in reading)
    cells = next(x[0].numel() for name, x in reading.items() if name.endswith(".weights"))
    module = sys.modules[capture.__module__]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_CELLS", cells)
        assert (f"1 of {n_layers} layers" in reading._repr_html_()) == (n_layers > 1)
        patch.setattr(module, "MOST_CELLS", 1)
        assert "too many weights to draw" in reading._repr_html_() and reading._repr_svg_() is None


def test_a_filled_text_lists_its_candidates(tmp_path: Path) -> None:
    run = text_run_of(tmp_path, MaskedConfig())
    outcome = glassformer.train(replace(run, train=replace(run.train, max_steps=1)), tmp_path / "run")
    filling = outcome.model.fill("a [MASK]", n=3)
    assert filling._repr_html_().count("<tr>") == 1 + 1 + 3 and len(filling.to_dict()["candidates"][0]) == 3


def test_a_report_of_classes_has_one_row_per_class() -> None:
    report = classification_report([0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], ["cat", "dog & bird"])
    html = report._repr_html_()
    assert html.count("<tr>") == 3 and "dog &amp; bird" in html


SCRIPT = "<script>alert(1)</script>"


def test_a_matrix_has_signed_colours_and_empty_cells() -> None:
    values = [[0.5, -0.25], [float("nan"), 2.0]]
    html = notebook.matrix(values, ["a", "b"], [SCRIPT, "d"], SCRIPT, shown=notebook.numbers(values))
    assert "<script" not in html and html.count("&lt;script&gt;") == 2
    assert html.count("<td></td>") == 1 and ">0.50<" in html and ">-0.25<" in html
    assert "rgba(25, 92, 185, 0.500)" in html and "rgba(176, 84, 14, 0.250)" in html
    assert "rgba(25, 92, 185, 1.000)" in html and html.count("color: white") == 1, "a value above the limit"


def test_effects_have_one_row_per_layer(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    inputs = encoded(model, "the cat").inputs
    found = effects(model.network, inputs, measure_of(model, inputs))
    html = found._repr_html_()
    assert f"{found.before:.4g}" in html and "Δ loss, nats per token" in html
    assert html.count('<th style="writing-mode: vertical-rl') == 3, "two heads and the feed-forward"
    changes = [x for part, x in found.changes.items() if part.head is not None or part.feed_forward]
    assert html.count("rgba") == len(changes) and all(f'title="{x:.3f}"' in html for x in changes)
    layers = Effects("loss", 2.0, {Part("decoder", 0): 1.25})._repr_html_()
    assert "decoder.0" in layers and "1.25" in layers and "loss of the unchanged network 2" in layers


def test_restored_shares_have_the_tokens_of_both_texts(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    found = patch_residual(model.network, patching_of(model, "a<b", "a>b", "a", "b"))
    html = found._repr_html_()
    assert html.count("rgba") == found.shares.numel() and f"{found.clean:.4g} (clean)" in html
    assert "&lt;/&gt;" in html and f'title="{float(found.shares[1, -1]):.3f}"' in html
    hostile = Restored(["embeddings"], torch.ones(1, 1), 1.0, 0.0, [SCRIPT])._repr_html_()
    assert "<script" not in hostile and "&lt;script&gt;" in hostile
    unnamed = Restored(["embeddings"], torch.zeros(1, 2), 1.0, 0.0)._repr_html_()
    assert ">0</th>" in unnamed and ">1</th>" in unnamed


def test_cells_of_the_lens_have_the_most_probable_tokens(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    trace, network = capture(model, "the cat", names=NAMES), model.network
    labels, vocabulary = lens_labels(network, trace.inputs), model.tokenizer.tokens(range(model.tokenizer.vocab_size))
    found = lens_cells(network, trace, labels, vocabulary=vocabulary)
    html = found._repr_html_()
    assert html.count("rgba") == found.top_ids[:, :, 0].numel() and found.tokens == trace.target
    best, p = vocabulary[int(found.top_ids[-1, -1, 0])], float(found.top_probabilities[-1, -1, 0])
    assert escape(f"{best} {p:.3f}, ") in html and f">{escape(best)}</td>" in html
    hostile = replace(found, tokens=[SCRIPT] * len(found.tokens), vocabulary=[SCRIPT] * len(vocabulary))
    assert "<script" not in hostile._repr_html_()
    ids = lens_cells(network, dict(trace), labels)._repr_html_()
    assert f">{int(found.top_ids[-1, -1, 0])}</td>" in ids, "without a vocabulary"
