"""The atlas has the mean scores and effects of the heads; the plots show its numbers, and those of the flow."""

import math
from typing import Any

import pytest
import torch

import late
from glassformer import inspection, plot
from glassformer.common.errors import UserError
from glassformer.inspection import plots
from glassformer.inspection.ablation import Part, effects_of_texts
from glassformer.inspection.atlas import atlas
from glassformer.inspection.capture import capture
from glassformer.inspection.head_scores import network_scores, random_scores
from glassformer.inspection.texts import read
from glassformer.model import Model
from tolerances import is_close, near

matplotlib = late.module("matplotlib")
TEXT = "one two three"
TEXTS = [TEXT, "ab ab ab", "abc"]


def test_the_atlas_has_the_means_over_the_texts(model: Model) -> None:
    found = atlas(model, TEXTS)
    network: Any = model.network
    scores = [network_scores(network, read(model, text).inputs) for text in TEXTS]
    effects, random = effects_of_texts(model, TEXTS), random_scores(model)
    assert {one.name for one in found.heads} == {str(part) for part in effects.changes if part.form == "head"}
    for one in found.heads:
        for name, value in one.patterns.items():
            of_texts = torch.tensor([run[one.kind][one.layer].excess(one.head, name) for run in scores])
            assert math.isnan(value) == bool(of_texts.isnan().all())
            assert math.isnan(value) or value == near(float(of_texts.nanmean()))
            assert one.on_random[name] == near(random[one.kind][one.layer].excess(one.head, name), nan_ok=True)
        part = Part(one.kind, one.layer, head=one.head)
        of_part = torch.tensor([text.changes[part] for text in effects.of_texts])
        assert one.effect == near(float(of_part.mean())) and one.error == near(float(of_part.std()) / math.sqrt(3))
    assert [one.effect for one in found.heads] == sorted((one.effect for one in found.heads), reverse=True)
    assert found.heads[0].name in found._repr_html_() and f"{len(TEXTS)} texts" in found._repr_html_()
    assert math.isnan(atlas(model, TEXTS[:1]).heads[0].error), "one text has no spread"


def test_cross_attention_has_effects_and_no_patterns(pairs: Model) -> None:
    found = atlas(pairs, [{"source": "ab", "target": "ba"}])
    assert {one.kind for one in found.heads} == {"encoder", "decoder", "cross"}
    assert all(math.isnan(x) for one in found.heads if one.kind == "cross" for x in one.patterns.values())


def test_what_the_atlas_refuses(model: Model) -> None:
    with pytest.raises(UserError, match="there is no text"):
        atlas(model, [])
    with pytest.raises(UserError, match="text 2: "):
        atlas(model, [TEXT, ""])


def test_a_plot_of_heads_shows_the_atlas(model: Model) -> None:
    found, figure = inspection.atlas(model, TEXTS), plot.heads(model, TEXTS)
    table, bars, *_ = figure.axes
    assert [bar.get_width() for bar in bars.patches] == [near(one.effect) for one in found.heads]  # type: ignore[attr-defined]
    names = [tick.get_text() for tick in table.get_xticklabels()]
    shown = table.images[0].get_array()
    assert shown is not None
    for row, one in zip(shown, found.heads, strict=True):
        assert is_close(torch.tensor(row), torch.tensor([one.patterns[name] for name in names]), equal_nan=True)


def test_a_plot_of_the_flow_shows_tensors_weights_and_predictions(model: Model, pairs: Model) -> None:
    trace = capture(model, TEXT)
    figure = plot.flow(model, TEXT)
    by_name = {axes.get_title(): axes for axes in figure.axes}
    weights = torch.tensor(by_name["attention 1"].images[0].get_array().filled(0))  # type: ignore[union-attr]
    assert is_close(weights, trace["decoder.blocks.1.self_attn.weights"][0].mean(dim=0))
    strips = torch.tensor(by_name["after block 1"].images[0].get_array())
    residual = trace["decoder.blocks.1.residual"][0]
    n = min(24, residual.shape[1])
    assert is_close(strips, torch.nn.functional.adaptive_avg_pool1d(residual[None], n)[0])
    bars = figure.axes[-1]
    best = trace["logits"][0, -1].softmax(dim=-1).sort(descending=True).values
    shown = [bar.get_width() for bar in bars.patches]  # type: ignore[attr-defined]
    assert is_close(torch.tensor(shown, dtype=best.dtype), best[: len(shown)])
    titles = {axes.get_title() for axes in plot.flow(pairs, source="ab").axes}
    assert {"attention 0", "source 0", "after block 0"} <= titles


def test_a_flow_of_many_panels_has_several_lines_and_readable_type(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "LINE_WIDTH", 5)
    figure = plot.flow(model, TEXT)
    figure.draw_without_rendering()
    lines = {round(axes.get_window_extent().y1) for axes in figure.axes}
    assert len(lines) > 1 and figure.get_size_inches()[0] < 7
    sizes = [text.get_fontsize() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]  # type: ignore[attr-defined]
    assert min(sizes) >= 9
    first, last = figure.axes[0], figure.axes[-1]
    assert first.get_title() == "embedding" and last.get_title().startswith("next token"), (
        "the order of the computation"
    )


def test_the_flow_shows_the_best_token_however_improbable_it_is(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "LEAST_SHOWN", 2.0)
    assert len(plot.flow(model, TEXT).axes[-1].patches) == 1
