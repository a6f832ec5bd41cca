"""The numbers that the inspector page shows in a browser equal those of the Python API."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from configs import random_model
from glassformer.apps.inspector import page_data
from glassformer.config.run import GenerationConfig
from glassformer.config.transformer import Experts
from glassformer.inference.sampling import keep_top_k, shape_logits
from glassformer.inspection.attention_maps import alignment, attention_layers
from glassformer.inspection.capture import capture
from glassformer.inspection.head_scores import (
    NAMES,
    induction_ids_of,
    network_scores,
    random_scores,
    random_trace,
    ranked_heads,
)
from glassformer.inspection.lens import lens_cells, lens_labels
from glassformer.model import Model
from inspector.browsing import SOURCE, TEXT, Open, close, given_to, hash_of, number, percents
from inspector.conftest import OpenModel, Serve
from inspector.direct import Inspector
from tolerances import printed, within


def heads_of(model: Model) -> Mapping[str, list[Tensor]]:
    trace = capture(model, **given_to(model))
    return {kind: attention_layers(trace, kind) for kind in Inspector(model).card()["attention"]}


@pytest.mark.parametrize("name", ["decoder", "encoder", "encoder-decoder", "recurrent"])
def test_the_matrix_of_each_head_equals_the_weights(show_model: OpenModel, models: dict[str, Model], name: str) -> None:
    for kind, layers in heads_of(models[name]).items():
        found = show_model(name, {"kind": kind, "panel": "attention"})
        last = len(layers) - 1, layers[-1].shape[1] - 1
        for layer, head in {(0, 0), last}:
            found.page.locator(".head-grid .thumb").nth(layer * layers[0].shape[1] + head).click()
            found.settle()
            assert close(found.numbers("Head"), layers[layer][0, head])
            found.page.get_by_role("button", name="← all heads").click()
            found.settle()
        view = found.view()
        assert "layer" not in view and "head" not in view, "the grid is shown again"


def test_heads_are_reached_with_the_keyboard(show_model: OpenModel, models: dict[str, Model]) -> None:
    found = show_model("decoder")
    page, weights = found.page, heads_of(models["decoder"])["decoder"]
    found.until("() => document.querySelector('.found-head')")
    page.locator(".head-grid .thumb").first.focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    found.settle()
    assert found.view()["layer"] == found.view()["head"] == "1"
    assert close(found.numbers("Head"), weights[1][0, 1])
    page.locator("label.field:visible", has_text="layer").locator("select").select_option("0")
    found.settle()
    assert close(found.numbers("Head"), weights[0][0, 1])
    matrix = page.locator(".heat")
    matrix.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):  # the first key shows the cursor
        page.keyboard.press(key)
    value = float(weights[0][0, 1, 2, 1])
    assert page.locator(".heat-foot .detail").inner_text().endswith(f"weight {value:.4f}")
    page.keyboard.press("Enter")
    found.settle()
    assert found.view()["pos"] == "2"
    page.keyboard.press("Escape")
    found.settle()
    assert page.evaluate("document.activeElement.ariaLabel").startswith("Layer 0, head 1")


@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_heads_are_scored_beside_their_baselines(show_model: OpenModel, models: dict[str, Model], name: str) -> None:
    model = models[name]
    found = show_model(name)
    found.until("() => document.querySelector('.found-head')")
    found.page.locator(".found-head").last.focus()
    found.page.keyboard.press("Tab")
    button = "Show repeated random tokens"
    assert found.page.evaluate("document.activeElement.textContent") == button
    with found.page.expect_response("**/api/run"):
        found.page.keyboard.press("Enter")
    found.settle()
    ids = induction_ids_of(model, 15)
    side = "target" if name == "decoder" else "source"
    assert found.tokens(side).all_inner_texts() == [x.replace(" ", "␣") for x in model.tokenizer.tokens(ids)]
    assert found.status().startswith("The run shows repeated random tokens.")
    text = network_scores(model.network, capture(model, ids).inputs)
    lists = found.page.locator(".found-list dl")
    for i, (name, (one, *_)) in enumerate(ranked_heads(text, random_scores(model)).items()):
        assert not one.is_on_one, "a model of 20 steps has no pattern"
        repeats = " (n = 15)" if name in ("induction", "duplicate") else ""
        assert lists.nth(i).locator("dt").inner_text() == NAMES[name] + repeats
        on_both = (f"{x:.2f} ({y:.2f})" for x, y in ((one.score, one.uniform), (one.random, one.random_uniform)))
        cells = [f"{one.kind} {one.layer}.{one.head}", *on_both]
        assert lists.nth(i).locator("tbody tr > *").all_inner_texts() == cells
    about = found.page.locator(".found-list .about").last.inner_text()
    assert "at least 0.20" in about and "mean over 4 sequences of 15 tokens, each written twice, seeds 0 to 3" in about
    assert found.page.evaluate("document.activeElement.textContent") == button
    found.run(TEXT)
    assert found.status() == "" and found.tokens(side).count() < len(ids)


def test_a_pair_reads_random_tokens_on_both_sides(show_model: OpenModel, models: dict[str, Model]) -> None:
    model = models["encoder-decoder"]
    found = show_model("encoder-decoder", {"panel": "attention"})
    found.until("() => document.querySelector('.found-head')")
    with found.page.expect_response("**/api/run"):
        found.page.get_by_role("button", name="Show repeated random tokens").click()
    found.settle()
    expected = random_trace(model)
    for side, tokens in (("source", expected.source), ("written", expected.written)):
        assert found.tokens(side).all_inner_texts() == [x.replace(" ", "␣") for x in tokens]
    ids = [expected.inputs["source_ids"][0].tolist(), expected.inputs["token_ids"][0, 1:].tolist()]
    assert all(side[: len(side) // 2] == side[len(side) // 2 :] for side in ids)
    found.open_tab("Beam search")
    assert not found.frame("Results").is_visible(), "the search reads a source text"
    found.run(SOURCE)
    assert found.frame("Results").is_visible() and found.status() == ""


def test_a_recurrent_model_has_no_scores_on_random_tokens(show_model: OpenModel) -> None:
    found = show_model("recurrent", {"panel": "attention"})
    found.until("() => document.querySelector('.found-list .about')")
    assert "This attention has no pattern scores." in found.page.locator(".found-list").inner_text()
    assert not found.page.get_by_role("button", name="Show repeated random tokens").is_visible()


def test_unknown_characters_are_named(show_model: OpenModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_data, "unknown", lambda tokenizer, text: "A sentence." if "x" in text else "")
    found = show_model("decoder")
    assert found.status() == ""
    found.run("abc x")
    assert found.status() == "A sentence."


def test_a_token_under_the_pointer_is_highlighted_in_all_panels(
    show_model: OpenModel, models: dict[str, Model]
) -> None:
    found = show_model("decoder", {"layer": 1, "head": 0})
    page, canvas = found.page, found.page.locator(".heat-canvas:visible")
    assert found.accent_pixels(canvas) == 0
    found.tokens("target").nth(2).hover()
    found.settle()
    assert found.accent_pixels(canvas) > 20, "its row and its column have a frame"
    assert page.locator("#tokens .token.is-linked").count() == 1
    assert page.locator("#side .detail").inner_text().startswith("after position 2:")
    page.mouse.move(5, 5)
    found.settle()
    assert found.accent_pixels(canvas) == 0 and page.locator(".is-linked").count() == 0
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    size = box["height"]  # of the labels and the matrix; both have equal height and width
    page.mouse.move(box["x"] + size - 66, box["y"] + size - 22)  # cells of 44 pixels
    found.settle()
    n_tokens = found.tokens("target").count()
    marked = page.locator("#tokens .token.is-linked").evaluate_all("(all) => all.map((x) => Number(x.dataset.index))")
    assert marked == [n_tokens - 2, n_tokens - 1], "the last query and the last key but one"
    value = float(heads_of(models["decoder"])["decoder"][1][0, 0, -1, -2])
    assert page.locator(".tooltip").inner_text().endswith(f"weight {value:.4f}")
    page.mouse.move(5, 5)
    page.get_by_role("button", name="lines", exact=True).click()
    found.settle()
    found.tokens("target").nth(3).hover()
    found.settle()
    assert page.locator("svg text.is-linked").count() == 2, "the token as a query and as a key"
    found.open_tab("Logit lens")
    found.tokens("target").nth(1).hover()
    found.settle()
    assert found.accent_pixels(page.locator(".heat-canvas:visible")) > 20


def test_a_token_of_a_pair_is_highlighted_in_the_alignment(show_model: OpenModel) -> None:
    found = show_model("encoder-decoder", {"panel": "alignment"})
    for side in ("source", "written"):
        found.tokens(side).nth(1).hover()
        found.settle()
        assert found.frame("Alignment").locator("text.is-linked").count() == 1
        assert found.frame("Alignment").locator("path.is-linked").count() > 0


@pytest.mark.parametrize("name", ["decoder", "encoder", "encoder-decoder"])
def test_the_bars_are_the_softmax_of_the_logits(show_model: OpenModel, models: dict[str, Model], name: str) -> None:
    model = models[name]
    found = show_model(name, {"temperature": 1})
    title = "Next token"
    logits = capture(model, **given_to(model))["logits"][0]
    side = {"decoder": "target", "encoder": "source"}.get(name, "written")
    for position in (2, 1):
        found.tokens(side).nth(position).click()
        words = f" {position}:"
        found.until("(words) => document.querySelector('#side .detail').textContent.includes(words)", words)
        found.until("() => document.querySelector('#side .facts').textContent.includes('can be chosen')")
        found.settle()
        assert found.tokens(side).nth(position).get_attribute("aria-pressed") == "true"
        shown = found.page.locator("#side .bar-text").all_inner_texts()
        expected = logits[position].softmax(-1).sort(descending=True).values[:15]
        assert percents(shown) == printed(expected.tolist(), decimals=3)
        assert close(found.numbers(title), torch.stack([expected, expected], dim=1))
        names = model.tokenizer.tokens(logits[position].topk(3).indices.tolist())
        assert [row[0] for row in found.cells(title)[1:4]] == names


def test_the_sampling_rules_change_the_bars(show_model: OpenModel, models: dict[str, Model]) -> None:
    model = models["decoder"]
    found = show_model("decoder", {"pos": 2, "temperature": 1})
    found.until("() => document.querySelector('#side .facts').textContent.includes('can be chosen')")
    logits = capture(model, **given_to(model))["logits"][0, 2:3]
    settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    for label, name, value in (("temperature", "temperature", 0.5), ("top-k", "top_k", 8), ("top-p", "top_p", 0.5)):
        requests = len(found.requests)
        found.set_slider(label, value)
        settings[name] = value
        shaped = shape_logits(logits, GenerationConfig(**settings)).softmax(-1)[0]
        expected = shaped[logits[0].argsort(descending=True)[:15]]
        shown = found.numbers("Next token")[:, 0]
        assert close(shown, expected), label
        assert f"{int((shaped > 0).sum())} of {len(shaped)} tokens" in found.page.locator("#side .facts").inner_text()
        assert label == "temperature" or float(shown.sum()) == printed(1, decimals=3)
        assert len(found.requests) == requests, "the page computes the rules itself"
    found.set_slider("temperature", 0)
    best = keep_top_k(logits, 1).softmax(-1).max()
    assert float(found.numbers("Next token")[0, 0]) == pytest.approx(float(best))
    found.page.get_by_role("button", name="reset").click()
    found.settle()
    assert close(found.numbers("Next token")[:, 0], logits[0].softmax(-1).sort(descending=True).values[:15])


def test_labels_of_a_classifier_are_bars(show_model: OpenModel, models: dict[str, Model]) -> None:
    found = show_model("classifier")
    expected = models["classifier"].classify(TEXT)
    shown = {row[0]: number(row[1]) for row in found.cells("Next token")[1:]}
    assert shown == printed(expected, decimals=3)


def test_the_alignment_equals_the_function(show_model: OpenModel, models: dict[str, Model]) -> None:
    trace = capture(models["encoder-decoder"], **given_to(models["encoder-decoder"]))
    found = show_model("encoder-decoder", {"panel": "alignment"})
    assert close(found.numbers("Alignment matrix"), alignment(trace))
    found.page.locator("#panels").get_by_label("layer").select_option("0")
    found.page.locator("#panels").get_by_label("head").select_option("1")
    found.settle()
    assert close(found.numbers("Alignment matrix"), alignment(trace, 0, 1))


@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_the_lens_shows_the_most_probable_tokens(show_model: OpenModel, models: dict[str, Model], name: str) -> None:
    model = models[name]
    found = show_model(name, {"panel": "lens"})
    trace = capture(model, **given_to(model))
    for norm in (True, False):
        label = "with the final norm" if norm else "without it"
        found.page.get_by_role("button", name=label, exact=True).click()
        found.settle()
        expected = lens_cells(model.network, trace, lens_labels(model.network, trace.inputs), norm=norm)
        rows = found.cells("Logit lens")[1:]
        assert [row[0] for row in rows] == expected.layers
        for layer, row in enumerate(rows):
            names = model.tokenizer.tokens(expected.top_ids[layer, :, 0].tolist())
            for cell, best, p in zip(row[1:], names, expected.top_probabilities[layer, :, 0].tolist(), strict=True):
                text, shown = cell.rsplit(" ", 1)
                assert text == best and float(shown) == printed(p, decimals=3)


def test_the_experts_of_each_token_are_those_of_the_trace(models: dict[str, Model], serve: Serve, visit: Open) -> None:
    decoder = models["decoder"]
    config = replace(decoder.config, experts=Experts(4, 2))
    network = random_model(config, dtype=torch.float32)
    model = replace(decoder, network=network, run=replace(decoder.run, model=config))
    found = visit(serve(Inspector(model)).address + hash_of(text=TEXT, panel="experts"))
    trace = capture(model, TEXT)
    for layer in range(2):
        found.page.locator("#panels label.field:visible", has_text="layer").locator("select").select_option(str(layer))
        found.settle()
        weights = trace[f"decoder.blocks.{layer}.ff.router"][0].T  # (experts, tokens)
        assert (weights > 0).sum(dim=0).tolist() == [2] * found.tokens("target").count()
        assert close(found.numbers("Experts"), weights)


@pytest.mark.parametrize(("n_tokens", "fits"), [(14, True), (17, True), (20, False)])
def test_the_columns_of_the_lens_fit_or_scroll(
    show_model: OpenModel, models: dict[str, Model], n_tokens: int, fits: bool
) -> None:
    tokenizer = models["decoder"].tokenizer
    text = tokenizer.decode(tokenizer.encode("a b c d e f g h i j a b c d e f")[:n_tokens])
    found = show_model("decoder", {"text": text, "panel": "lens"})
    assert found.tokens("target").count() == n_tokens
    wide, room = found.page.locator(".heat:visible").evaluate("(view) => [view.scrollWidth, view.clientWidth]")
    assert (wide <= room) == fits
    assert ("scroll sideways" in found.page.locator(".heat-foot:visible").inner_text()) != fits


def test_the_selected_position_of_the_lens_is_in_view(show_model: OpenModel) -> None:
    found = show_model("decoder", {"text": "a b c d e f g h i j a", "panel": "lens"})
    view = found.page.locator(".heat:visible")
    ends = "(view) => [view.scrollLeft, view.scrollWidth - view.clientWidth]"

    def place() -> tuple[float, float]:
        left, most = view.evaluate(ends)
        return left, most

    found.page.set_viewport_size({"width": 390, "height": 844})
    found.settle()
    assert place()[0] == within(place()[1], 2) and place()[1] > 100, "the last position is selected"
    found.tokens("target").first.click()
    found.settle()
    assert place()[0] == 0
    found.tokens("target").last.click()
    found.open_tab("Heads")
    found.open_tab("Logit lens")
    assert place()[0] == within(place()[1], 2)


def test_the_formula_is_that_of_the_attention(show_model: OpenModel) -> None:
    found = show_model("recurrent", {"panel": "attention"})
    assert found.frame("Heads").locator(".formula").inner_text() == "weights = softmax(vᵀ tanh(W q + U k))"
    found.open_tab("Alignment")
    assert found.frame("Alignment").locator(".formula").inner_text() == "weights = softmax(vᵀ tanh(W q + U k))"
    found = show_model("decoder")
    assert found.frame("Heads").locator(".formula").inner_text() == "weights = softmax(q·kᵀ / √d)"


def test_the_address_restores_the_view(open_model: OpenModel) -> None:
    found = open_model("decoder", {"temperature": 1})
    page = found.page
    found.run("abc de fgh ij")
    found.tokens("target").nth(3).click()
    found.set_slider("temperature", 0.7)
    found.set_slider("top-k", 5)
    page.locator(".head-grid .thumb").nth(3).click()
    found.settle()
    page.get_by_role("button", name="lines", exact=True).click()
    found.open_tab("Ablation")
    page.get_by_role("switch", name="decoder.1.feed-forward").click()
    found.settle()
    view = found.view()
    shown = found.cells("Change per position"), found.cells("Next token")
    page.reload()
    found.tokens("target").first.wait_for()
    found.settle()
    found.until("() => document.querySelector('#side .facts').textContent.includes('can be chosen')")
    found.becomes(found.view, view)
    assert view["pos"] == "3" and view["top_k"] == "5" and view["off"] == "decoder.1.ff" and view["shown"] == "lines"
    found.becomes(lambda: (found.cells("Change per position"), found.cells("Next token")), shown)
    assert found.panel() == "ablation"
    found.open_tab("Heads")
    assert page.locator("#panels h3", has_text="decoder, layer 1, head 1").count() == 1
    assert page.locator(".lines-view svg").count() == 1
    page.evaluate("location.hash = '#text=fgh&panel=lens'")
    found.until("() => document.querySelector('#parts [aria-selected=true]').textContent === 'Logit lens'")
    found.until("() => document.querySelector('#input textarea').value === 'fgh'")
