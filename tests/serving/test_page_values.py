"""The numbers that the inspector page shows in a browser equal those of the Python API."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

import glassformer
from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.inference.beam import length_penalty
from glassformer.inference.sampling import keep_top_k, shape_logits
from glassformer.inspection.ablation import ablate
from glassformer.inspection.attention_maps import alignment, attention_layers
from glassformer.inspection.capture import capture, capture_tensors
from glassformer.inspection.effects import effects
from glassformer.inspection.lens import lens_cells, lens_labels
from glassformer.inspection.measures import loss_of, measure_of
from glassformer.inspection.patching import patch_residual, patching_of
from glassformer.model import Model
from glassformer.serving.inspector import Inspector
from serving.browsing import SOURCE, TEXT, given_to, number, percents
from serving.conftest import OpenModel

if TYPE_CHECKING:
    from playwright.sync_api import Locator

CLOSE = {"atol": 1e-4, "rtol": 1e-3}
"""The table has four digits; the weights are sent with 16 bits."""


def close(shown: Tensor, expected: Tensor) -> bool:
    assert shown.shape == expected.shape
    return torch.allclose(shown.double(), expected.double(), **CLOSE, equal_nan=True)


def heads_of(model: Model) -> Mapping[str, list[Tensor]]:
    trace = capture(model, **given_to(model))
    return {kind: attention_layers(trace, kind) for kind in Inspector(model).card()["attention"]}


@pytest.mark.parametrize("name", ["decoder", "encoder", "encoder-decoder", "recurrent"])
def test_the_matrix_of_each_head_equals_the_weights(open_model: OpenModel, models: dict[str, Model], name: str) -> None:
    for kind, layers in heads_of(models[name]).items():
        found = open_model(name, {"kind": kind})
        last = len(layers) - 1, layers[-1].shape[1] - 1
        for layer, head in {(0, 0), last}:
            found.page.locator(".head-grid .thumb").nth(layer * layers[0].shape[1] + head).click()
            found.settle()
            assert close(found.numbers("Head"), layers[layer][0, head])
            found.page.get_by_role("button", name="← all heads").click()
            found.settle()
        view = found.view()
        assert "layer" not in view and "head" not in view, "the grid is shown again"


def test_heads_are_reached_with_the_keyboard(open_model: OpenModel, models: dict[str, Model]) -> None:
    found = open_model("decoder")
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


def test_a_token_under_the_pointer_is_highlighted_in_all_panels(
    open_model: OpenModel, models: dict[str, Model]
) -> None:
    found = open_model("decoder", {"layer": 1, "head": 0})
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
    page.mouse.move(box["x"] + size - 45, box["y"] + size - 15)
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


def test_a_token_of_a_pair_is_highlighted_in_the_alignment(open_model: OpenModel) -> None:
    found = open_model("encoder-decoder", {"panel": "alignment"})
    for side in ("source", "written"):
        found.tokens(side).nth(1).hover()
        found.settle()
        assert found.frame("Alignment").locator("text.is-linked").count() == 1
        assert found.frame("Alignment").locator("path.is-linked").count() > 0


@pytest.mark.parametrize("name", ["decoder", "encoder", "encoder-decoder"])
def test_the_bars_are_the_softmax_of_the_logits(open_model: OpenModel, models: dict[str, Model], name: str) -> None:
    model = models[name]
    found = open_model(name, {"temperature": 1})
    title = "Next token"
    logits = capture(model, **given_to(model))["logits"][0]
    side = {"decoder": "target", "encoder": "source"}.get(name, "written")
    for position in (2, 1):
        found.tokens(side).nth(position).click()
        words = f"position {position}:"
        found.until("(words) => document.querySelector('#side .detail').textContent.includes(words)", words)
        found.until("() => document.querySelector('#side .facts').textContent.includes('can be chosen')")
        found.settle()
        assert found.tokens(side).nth(position).get_attribute("aria-pressed") == "true"
        shown = found.page.locator("#side .bar-text").all_inner_texts()
        expected = logits[position].softmax(-1).sort(descending=True).values[:15]
        assert percents(shown) == pytest.approx(expected.tolist(), abs=1e-3)
        assert close(found.numbers(title), torch.stack([expected, expected], dim=1))
        names = model.tokenizer.tokens(logits[position].topk(3).indices.tolist())
        assert [row[0] for row in found.cells(title)[1:4]] == names


def test_the_sampling_rules_change_the_bars(open_model: OpenModel, models: dict[str, Model]) -> None:
    model = models["decoder"]
    found = open_model("decoder", {"pos": 2, "temperature": 1})
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
        assert label == "temperature" or float(shown.sum()) == pytest.approx(1, abs=1e-3)
        assert len(found.requests) == requests, "the page computes the rules itself"
    found.set_slider("temperature", 0)
    best = keep_top_k(logits, 1).softmax(-1).max()
    assert float(found.numbers("Next token")[0, 0]) == pytest.approx(float(best))
    found.page.get_by_role("button", name="reset").click()
    found.settle()
    assert close(found.numbers("Next token")[:, 0], logits[0].softmax(-1).sort(descending=True).values[:15])


def test_labels_of_a_classifier_are_bars(open_model: OpenModel, models: dict[str, Model]) -> None:
    found = open_model("classifier")
    expected = models["classifier"].classify(TEXT)
    shown = {row[0]: number(row[1]) for row in found.cells("Next token")[1:]}
    assert shown == pytest.approx(expected, abs=1e-3)


def test_the_alignment_equals_the_function(open_model: OpenModel, models: dict[str, Model]) -> None:
    trace = capture(models["encoder-decoder"], **given_to(models["encoder-decoder"]))
    found = open_model("encoder-decoder", {"panel": "alignment"})
    assert close(found.numbers("Alignment matrix"), alignment(trace))
    found.page.locator("#panels").get_by_label("layer").select_option("0")
    found.page.locator("#panels").get_by_label("head").select_option("1")
    found.settle()
    assert close(found.numbers("Alignment matrix"), alignment(trace, 0, 1))


@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_the_lens_shows_the_most_probable_tokens(open_model: OpenModel, models: dict[str, Model], name: str) -> None:
    model = models[name]
    found = open_model(name, {"panel": "lens"})
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
                assert text == best and float(shown) == pytest.approx(p, abs=6e-4)


def test_steps_follow_greedy_generation_and_branch(open_model: OpenModel, models: dict[str, Model]) -> None:
    model = models["decoder"]
    found = open_model("decoder", {"panel": "steps", "temperature": 0})
    panel = found.page.locator("#panels")
    for _ in range(4):
        panel.get_by_role("button", name="Step", exact=True).click()
        found.settle()
    written = panel.locator(".token-list .token")
    expected = model.generate(TEXT, temperature=0.0, max_new_tokens=4)
    assert found.cells("Branches")[1][3] == expected
    written.nth(1).click()
    found.settle()
    assert "step 1;" in panel.locator(".facts").first.inner_text()
    candidates = panel.locator("button.bar")
    assert "is-marked" in (candidates.nth(0).get_attribute("class") or "")
    other = int((candidates.nth(1).get_attribute("title") or "").split(";")[0].removeprefix("id "))
    candidates.nth(1).click()
    found.settle()
    ids = [token["id"] for token in Inspector(model).run(text=TEXT)["target"]]
    first = Inspector(model).next(ids)["top"][0]
    second = next(top for top in Inspector(model).next([*ids, first[0]])["top"] if top[0] == other)
    assert written.count() == 2
    rows = found.cells("Branches")[1:]
    assert [row[3] for row in rows] == [expected, model.tokenizer.decode([first[0], other])]
    assert rows[1][1:3] == ["0", "1"], "it comes from branch 0 at step 1"
    log_prob = float(torch.tensor([first[2], second[2]]).log().sum())
    assert number(rows[1][4]) == pytest.approx(log_prob, rel=1e-3)
    panel.locator(".branch").first.click()
    found.settle()
    assert written.count() == 4, "the first branch is still there"


@pytest.mark.parametrize("name", ["encoder-decoder", "recurrent"])
def test_steps_of_a_pair_follow_beam_1(open_model: OpenModel, models: dict[str, Model], name: str) -> None:
    found = open_model(name, {"panel": "steps", "temperature": 0})
    for _ in range(3):
        found.page.get_by_role("button", name="Step", exact=True).click()
        found.settle()
    model = models[name]
    (best,) = model.translations_of_ids([model.encode_source(SOURCE)], beam=1)[0]
    titles = found.page.locator("#panels .token-list .token").all_inner_texts()
    assert titles == model.tokenizer.tokens(best.hypothesis.ids[:3])


@pytest.mark.parametrize("name", ["decoder", "encoder-decoder"])
def test_a_head_is_switched_off_as_by_the_function(open_model: OpenModel, models: dict[str, Model], name: str) -> None:
    model = models[name]
    found = open_model(name, {"panel": "ablation", "kind": "decoder"})
    inputs = capture(model, **given_to(model)).inputs
    measure = measure_of(model.network, inputs)
    before = loss_of(model.network, inputs, measure)
    switch = found.page.get_by_role("switch", name="decoder.0.1")
    switch.click()
    found.settle()
    with ablate(model, ["decoder.0.head.1"]):
        after = loss_of(model.network, inputs, measure)
        logits = capture_tensors(model.network, inputs, ["logits"])["logits"][0]
    facts = found.frame("Parts").inner_text().replace("−", "-")
    assert f"{before:.3f} → {after:.3f} ({after - before:+.3f}) with 1 part off" in facts
    assert found.view()["off"] == "decoder.0.1" and switch.get_attribute("aria-checked") == "false"
    run = Inspector(model).run(**given_to(model))
    side = run["target"]
    shown = found.numbers("Change per position", 2)
    for i, token in enumerate(side[1:], 1):
        log_prob = float(logits.log_softmax(-1)[i - 1, token["id"]])
        assert shown[i].tolist() == pytest.approx([token["log_prob"], log_prob, log_prob - token["log_prob"]], abs=2e-3)
    position = len(side) - 1
    tops = found.frame("Most probable tokens").locator(".pair > div").nth(1).locator(".bar-text").all_inner_texts()
    assert percents(tops) == pytest.approx(logits[position].softmax(-1).topk(5).values.tolist(), abs=1e-3)
    found.page.get_by_role("button", name="all on").click()
    found.settle()
    assert "All parts are on" in found.frame("Parts").inner_text()


def test_the_map_of_effects_equals_the_function(open_model: OpenModel, models: dict[str, Model]) -> None:
    model = models["decoder"]
    found = open_model("decoder", {"panel": "ablation"})
    found.page.get_by_role("button", name="Measure all").click()
    found.settle()
    inputs = capture(model, **given_to(model)).inputs
    expected = effects(model.network, inputs, measure_of(model.network, inputs))
    columns = [torch.tensor(expected.heads("decoder"))]
    columns += [torch.tensor(x)[:, None] for x in (expected.feed_forwards("decoder"), expected.layers("decoder"))]
    assert close(found.numbers("Effects of all parts"), torch.cat(columns, dim=1))
    value = expected.heads("decoder")[1][0]
    shown = found.page.get_by_role("switch", name="decoder.1.0").inner_text()
    assert number(shown) == pytest.approx(value, abs=6e-3)


@pytest.mark.parametrize("name", ["encoder-decoder", "recurrent"])
def test_the_beams_equal_the_translations(open_model: OpenModel, models: dict[str, Model], name: str) -> None:
    model = models[name]
    found = open_model(name, {"panel": "beam", "beam": 4, "penalty": 1})
    config: dict[str, Any] = {"beam": 4, "length_penalty": 1.0, "max_new_tokens": 60}
    answer = Inspector(model).beam(SOURCE, **config)
    note = found.frame("Beam search").locator("p.about").last.inner_text()
    assert note.startswith(f"{len(answer['nodes'])} nodes: ")
    rows = found.cells("Beam search")[1:]
    assert [row[6] for row in rows] == [node["state"] for node in answer["nodes"]]
    expected = model.translations(SOURCE, n_best=4, **config)
    assert found.frame("Beam search").locator("svg text", has_text="start").count() == 1

    def shown() -> list[tuple[str, float]]:
        return [(row[4], number(row[1])) for row in found.cells("Results")[1:]]

    assert shown() == [(one.text, pytest.approx(one.hypothesis.score, rel=1e-3)) for one in expected]
    requests = len(found.requests)
    for value in (0, 2):
        found.set_slider("penalty", value)
        beam = BeamConfig(**(config | {"length_penalty": value}))
        lengths = [answer["nodes"][result["node"]]["length"] for result in answer["results"]]
        scores = [
            (result["ended"], result["log_prob"] / length_penalty(length, beam), result["text"])
            for result, length in zip(answer["results"], lengths, strict=True)
        ]
        best = sorted(scores, key=lambda x: (-x[0], -x[1]))
        assert shown() == [(text, pytest.approx(score, rel=1e-3)) for _, score, text in best]
    assert len(found.requests) == requests, "the page ranks the results itself"


def test_the_length_penalty_ranks_results_again(open_model: OpenModel) -> None:
    lengths, log_probs, ended = (
        {"short": 2, "long": 6, "cut": 4},
        {"short": -2, "long": -3, "cut": -1},
        {"short", "long"},
    )
    node = {"token": "x", "token_id": 5, "log_prob": -1, "step_log_prob": -1, "step": 0, "state": "kept"}
    nodes = [node | {"id": i, "parent": i - 1 if i else None, "length": i} for i in range(7)]
    nodes[0]["state"] = "root"
    results = [
        {"node": lengths[text], "text": text, "log_prob": log_probs[text], "score": 0, "ended": text in ended}
        for text in lengths
    ]
    found = open_model("encoder-decoder")
    found.page.route("**/api/beam", lambda route: route.fulfill(json={"nodes": nodes, "results": results}))
    found.open_tab("Beam search")
    orders = set()
    for label, formula in (("((5 + n) / 6)^a", "gnmt"), ("n^a", "average")):
        found.page.get_by_role("button", name=label, exact=True).click()
        for value in (0, 2):
            found.set_slider("penalty", value)
            config = BeamConfig(beam=3, length_penalty=value, length_penalty_type=formula)
            scores = {text: log_probs[text] / length_penalty(lengths[text], config) for text in lengths}
            expected = [*sorted(ended, key=lambda text: -scores[text]), "cut"]
            rows = found.cells("Results")[1:]
            assert [row[4] for row in rows] == expected
            assert [number(row[1]) for row in rows] == pytest.approx([scores[text] for text in expected], rel=1e-3)
            orders.add(tuple(expected))
    assert len(orders) == 2, "the penalty changes the order"


def test_a_checkpoint_is_compared(open_model: OpenModel, models: dict[str, Model]) -> None:
    model = models["decoder"]
    found = open_model("decoder", {"panel": "compare"})
    found.page.get_by_label("checkpoint").fill("0")
    found.page.get_by_label("checkpoint").dispatch_event("change")
    found.until("() => document.querySelector('.panel').textContent.includes('step 10: loss')")
    found.settle()
    other = glassformer.load(model.folder, step=10)
    losses = [float(x.score(TEXT, log=str).nats_per_token) for x in (model, other)]
    facts = found.frame("Second model").inner_text()
    assert f"loss {losses[0]:.3f} (first), {losses[1]:.3f} (second)" in facts
    shown = found.numbers("Difference per token", 3)[1:]
    runs = [Inspector(x).run(text=TEXT)["target"][1:] for x in (model, other)]
    assert close(shown, torch.tensor([[token["log_prob"] for token in run] for run in runs]).T)
    first, second = (attention_layers(capture(x, TEXT), "decoder") for x in (model, other))
    assert close(found.numbers("Attention"), second[0][0, 0] - first[0][0, 0])
    found.page.get_by_role("button", name="second", exact=True).click()
    found.page.get_by_role("button", name="Layer 1, head 1").click()
    found.settle()
    assert close(found.numbers("Attention"), second[1][0, 1])


def test_another_vocabulary_is_refused(open_model: OpenModel, models: dict[str, Model]) -> None:
    found = open_model("decoder", {"panel": "compare"}, refusals=True)
    found.page.get_by_label("folder").fill(str(models["classifier"].folder))
    found.page.get_by_role("button", name="Open", exact=True).click()
    found.until("() => document.getElementById('status').textContent.includes('has another tokenizer')")


def test_two_texts_are_patched(open_model: OpenModel, models: dict[str, Model]) -> None:
    model = models["decoder"]
    found = open_model("decoder", {"panel": "patch"})
    fields: Locator = found.page.locator(".fields input")
    for i, text in enumerate(("abc de", "abd de", "a", "b")):
        fields.nth(i).fill(text)
    found.page.get_by_role("button", name="Patch", exact=True).click()
    found.settle()
    pair = patching_of(model, "abc de", "abd de", "a", "b")
    expected = patch_residual(model.network, pair)
    assert close(found.numbers("Patching"), expected.shares)
    facts = found.frame("Patching").locator("p.detail").first.inner_text().replace("−", "-")
    assert f"{expected.clean:.2f} (clean), {expected.corrupted:.2f} (corrupted)" in facts


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
    assert found.view() == view
    assert view["pos"] == "3" and view["top_k"] == "5" and view["off"] == "decoder.1.ff" and view["shown"] == "lines"
    assert (found.cells("Change per position"), found.cells("Next token")) == shown
    assert page.locator("#tabs [aria-selected=true]").inner_text() == "Ablation"
    found.open_tab("Attention")
    assert page.locator("#panels h3", has_text="decoder, layer 1, head 1").count() == 1
    assert page.locator(".lines-view svg").count() == 1
    page.evaluate("location.hash = '#text=fgh&panel=lens'")
    found.until("() => document.querySelector('#tabs [aria-selected=true]').textContent === 'Logit lens'")
    found.until("() => document.querySelector('#input textarea').value === 'fgh'")
