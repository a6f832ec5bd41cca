"""Steps, ablation, beams, comparison and patching on the inspector page equal the functions of the Python API."""

from typing import TYPE_CHECKING, Any

import pytest
import torch

import glassformer
from glassformer.apps.inspector import page_data
from glassformer.config.run import BeamConfig
from glassformer.inference.search import length_penalty
from glassformer.inspection.ablation import ablate, effects
from glassformer.inspection.attention_maps import attention_layers
from glassformer.inspection.capture import capture, capture_tensors
from glassformer.inspection.measures import loss_of, measure_of
from glassformer.inspection.patching import patch_residual, patching_of
from glassformer.model import Model
from inspector.browsing import SOURCE, TEXT, Open, close, given_to, hash_of, number, percents
from inspector.conftest import OpenModel, Serve
from inspector.direct import Inspector
from tolerances import printed

if TYPE_CHECKING:
    from playwright.sync_api import Locator


def test_steps_follow_greedy_generation_and_branch(show_model: OpenModel, models: dict[str, Model]) -> None:
    model = models["decoder"]
    found = show_model("decoder", {"panel": "steps", "temperature": 0})
    panel = found.page.locator("#panels")
    assert not found.page.locator("#side .tools").is_visible(), "the card has rules only, and nothing to save"
    # Each press writes a token, also while an earlier one is being written.
    panel.get_by_role("button", name="Step", exact=True).evaluate("step => [1, 2, 3, 4].forEach(() => step.click())")
    found.until(
        "() => document.querySelector('#panels .facts').textContent.startsWith('step 4; 4 tokens written; entropy')"
    )
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
    assert number(rows[1][4]) == printed(log_prob, figures=4)
    panel.locator(".branch").first.click()
    found.settle()
    assert written.count() == 4, "the first branch is still there"


def test_steps_state_the_probability_that_they_leave_out(show_model: OpenModel, models: dict[str, Model]) -> None:
    """ "Next token" has the probabilities of the model, and the steps those of the tokens that may be written."""
    found = show_model("decoder", {"panel": "steps"})
    ids = [token["id"] for token in Inspector(models["decoder"]).run(text=TEXT)["target"]]
    never = Inspector(models["decoder"]).next(ids)["never"]
    facts = found.page.locator("#panels .facts").first.inner_text()
    left_out = float(facts.partition("; without ")[2].partition(" %")[0])
    assert left_out / 100 == printed(never, decimals=3) and "never written" in facts
    shown = found.page.locator("#panels button.bar .bar-text").first.inner_text()
    best = Inspector(models["decoder"]).run(text=TEXT)["target"][-1]["top"][0][2]
    assert float(shown.removesuffix(" %")) / 100 == printed(best / (1 - never), decimals=3)


@pytest.mark.parametrize("name", ["decoder", "encoder-decoder", "recurrent"])
def test_steps_and_branches_stop_at_an_end_token(
    models: dict[str, Model], serve: Serve, visit: Open, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model = models[name]
    inspector = Inspector(model)
    run = inspector.run(**given_to(model))
    ids = [token["id"] for token in run["target"]]
    sources = [[token["id"] for token in run["source"]]] if model.is_seq2seq else []
    if model.is_seq2seq:
        ids = ids[:1]  # the panel begins at the first token
    (first, *_), (other, *_), *_ = inspector.next(ids, *sources)["top"]
    second = inspector.next([*ids, first], *sources)["top"][0][0]
    for panel in ("models", "outputs"):
        monkeypatch.setattr(f"glassformer.apps.inspector.panels.{panel}.end_ids", lambda model: [other, second])
    n_steps = 1 if first == second else 2
    found = visit(serve(inspector).address + hash_of(**given_to(model), panel="steps", temperature=0))
    panel = found.page.locator("#panels")
    step, play, back = (panel.get_by_role("button", name=label, exact=True) for label in ("Step", "Play", "Back"))
    written, facts = panel.locator(".token-list .token"), panel.locator(".facts").first
    panel.get_by_label("speed").fill("20")
    play.click()
    found.until("() => document.querySelector('#panels .facts').textContent.includes('ends the text')")
    assert written.count() == n_steps
    assert step.is_disabled() and play.is_disabled()
    for _ in range(n_steps):
        back.click()
        found.settle()
        assert step.is_enabled()
    assert panel.locator("button.bar").count() == 12
    panel.locator("button.bar").nth(1).click()  # a branch that begins with the end token
    found.settle()
    assert step.is_disabled() and written.count() == 1 and "ends the text" in facts.inner_text()
    panel.locator(".branch").first.click()
    found.settle()
    assert step.is_disabled() and written.count() == n_steps
    back.click()
    found.settle()
    assert step.is_enabled(), "the first branch goes on"
    panel.locator(".branch").nth(1).click()
    found.settle()
    assert step.is_disabled() and written.count() == 1


@pytest.mark.parametrize("name", ["encoder-decoder", "recurrent"])
def test_steps_of_a_pair_follow_beam_1(show_model: OpenModel, models: dict[str, Model], name: str) -> None:
    found = show_model(name, {"panel": "steps", "temperature": 0})
    for _ in range(3):
        found.page.get_by_role("button", name="Step", exact=True).click()
        found.settle()
    model = models[name]
    (best,) = model.translations_of_ids([model.encode_source(SOURCE)], beam=1)[0]
    titles = found.page.locator("#panels .token-list .token").all_inner_texts()
    assert titles == model.tokenizer.tokens(best.hypothesis.ids[:3])


@pytest.mark.parametrize("name", ["decoder", "encoder-decoder"])
def test_a_head_is_switched_off_as_by_the_function(show_model: OpenModel, models: dict[str, Model], name: str) -> None:
    model = models[name]
    found = show_model(name, {"panel": "ablation", "kind": "decoder"})
    inputs = capture(model, **given_to(model)).inputs
    measure = measure_of(model, inputs)
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
    shown = found.numbers("Change per position", 2)
    predicted = run["written"] or run["target"]
    assert [row[1] for row in found.cells("Change per position")[1:]] == [token["text"] for token in predicted]
    first = 0 if run["written"] else 1
    for i, token in enumerate(predicted[first:], first):
        log_prob = float(logits.log_softmax(-1)[i - first, token["id"]])
        assert shown[i].tolist() == printed([token["log_prob"], log_prob, log_prob - token["log_prob"]], figures=4)
    position = len(predicted) - 1
    tops = found.frame("Most probable tokens").locator(".pair > div").nth(1).locator(".bar-text").all_inner_texts()
    assert percents(tops) == printed(logits[position].softmax(-1).topk(5).values.tolist(), decimals=3)
    found.page.get_by_role("button", name="all on").click()
    found.settle()
    assert "all parts are on" in found.frame("Parts").inner_text()


def test_the_map_of_effects_equals_the_function(show_model: OpenModel, models: dict[str, Model]) -> None:
    model = models["decoder"]
    found = show_model("decoder", {"panel": "ablation"})
    found.page.get_by_role("button", name="Measure all").click()
    found.settle()
    inputs = capture(model, **given_to(model)).inputs
    expected = effects(model.network, inputs, measure_of(model, inputs))
    columns = [torch.tensor(expected.heads("decoder"))]
    columns += [torch.tensor(x)[:, None] for x in (expected.feed_forwards("decoder"), expected.layers("decoder"))]
    assert close(found.numbers("Parts"), torch.cat(columns, dim=1))
    value = expected.heads("decoder")[1][0]
    shown = found.page.get_by_role("switch", name="decoder.1.0").inner_text()
    assert number(shown) == printed(value, decimals=2)


@pytest.mark.parametrize("name", ["encoder-decoder", "recurrent"])
def test_the_beams_equal_the_translations(show_model: OpenModel, models: dict[str, Model], name: str) -> None:
    model = models[name]
    found = show_model(name, {"panel": "beam", "beam": 4, "penalty": 1})
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

    assert shown() == [(one.text, printed(one.hypothesis.score, figures=4)) for one in expected]
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
        assert shown() == [(text, printed(score, figures=4)) for _, score, text in best]
    assert len(found.requests) == requests, "the page ranks the results itself"


def test_the_results_and_the_beginning_of_the_tree_are_in_view(open_model: OpenModel, models: dict[str, Model]) -> None:
    """A tree that grows upwards: each step adds nodes to the first node of the step before."""
    names = {"model": page_data.model_id(models["encoder-decoder"]), "unknown": ""}
    node = {"token": "x", "token_id": 5, "step_log_prob": -1, "step": 0, "state": "kept"}
    nodes = [node | {"id": 0, "parent": None, "length": 0, "log_prob": 0, "state": "root"}]
    for step in range(1, 21):
        parent = next(one["id"] for one in nodes if one["length"] == step - 1)
        nodes += [
            node | {"id": len(nodes) + i, "parent": parent, "length": step, "log_prob": -step - i} for i in range(8)
        ]
    results = [{"node": 153, "text": "d" * 60, "log_prob": -202.11, "score": -18.65, "ended": False}]
    for width, height in ((1280, 800), (390, 844)):
        found = open_model("encoder-decoder", width=width, height=height)
        found.page.route("**/api/beam", lambda route: route.fulfill(json={**names, "nodes": nodes, "results": results}))
        found.open_tab("Beam search")
        table = found.frame("Results").locator(".table-scroll:visible")
        assert table.evaluate("(view) => view.scrollWidth <= view.clientWidth"), width
        assert "unfinished" in table.inner_text()
        gap, root = found.page.get_by_role("region", name="Tree of hypotheses").evaluate("""(view) => {
            const box = view.getBoundingClientRect();
            const boxes = [...view.querySelectorAll("svg rect")].slice(1).map((rect) => rect.getBoundingClientRect());
            const tops = boxes.filter((one) => one.left < box.right - 100).map((one) => one.top - box.top);
            return [Math.min(...tops), (boxes[0].top - box.top) / box.height];
        }""")
        assert gap < 60 and 0 < root < 0.95, width


def test_the_length_penalty_ranks_results_again(open_model: OpenModel, models: dict[str, Model]) -> None:
    names = {"model": page_data.model_id(models["encoder-decoder"]), "unknown": ""}
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
    found.page.route("**/api/beam", lambda route: route.fulfill(json={**names, "nodes": nodes, "results": results}))
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
            assert [number(row[1]) for row in rows] == printed([scores[text] for text in expected], figures=4)
            orders.add(tuple(expected))
    assert len(orders) == 2, "the penalty changes the order"


def test_a_checkpoint_is_compared(show_model: OpenModel, models: dict[str, Model]) -> None:
    model = models["decoder"]
    found = show_model("decoder", {"panel": "compare"})
    facts = found.frame("Second model").locator(".about").last
    found.until("() => document.querySelector('.panel').textContent.includes('step 10: loss')")  # the one before
    assert found.view()["step"] == "10"
    found.page.get_by_label("checkpoint").fill("1")
    found.page.get_by_label("checkpoint").dispatch_event("change")
    found.until("() => document.querySelector('.panel').textContent.includes('all differences are 0')")
    found.page.get_by_label("checkpoint").fill("0")
    found.page.get_by_label("checkpoint").dispatch_event("change")
    found.until("() => document.querySelector('.panel').textContent.includes('step 10: loss')")
    found.settle()
    other = glassformer.load(model.folder, step=10)
    losses = [float(x.score(TEXT, log=str).nats_per_token) for x in (model, other)]
    assert f"loss {losses[0]:.3f} (first), {losses[1]:.3f} (second)" in facts.inner_text()
    shown = found.numbers("Difference per token", 3)[1:]
    runs = [Inspector(x).run(text=TEXT)["target"][1:] for x in (model, other)]
    assert close(shown, torch.tensor([[token["log_prob"] for token in run] for run in runs]).T)
    first, second = (attention_layers(capture(x, TEXT), "decoder") for x in (model, other))
    assert close(found.numbers("Attention"), second[0][0, 0] - first[0][0, 0])
    found.page.get_by_role("button", name="Layer 1, head 1").click()
    found.settle()
    assert close(found.numbers("Attention"), second[1][0, 1] - first[1][0, 1])
    rows, names = found.cells("Predictions")[1:], page_data.vocabulary(model)
    first, second = (capture(x, TEXT, names=["logits"])["logits"][0, -1].softmax(0) for x in (model, other))
    ids = [names.index(row[0]) for row in rows]
    assert close(found.numbers("Predictions"), torch.stack([first[ids], second[ids]], dim=1)), (
        "also outside the best ten"
    )


def test_another_vocabulary_is_refused(open_model: OpenModel, models: dict[str, Model]) -> None:
    found = open_model("decoder", {"panel": "compare"}, refusals=True)
    found.page.get_by_label("folder").fill(str(models["classifier"].folder))
    found.page.get_by_role("button", name="Open", exact=True).click()
    found.until("() => document.getElementById('status').textContent.includes('has another tokenizer')")
    found.open_tab("Heads")
    assert found.status() == "", "the error belongs to its panel"
    found.open_tab("Compare")
    assert "has another tokenizer" in found.status()
    found.run(TEXT)
    found.open_tab("Heads")
    assert found.status() == ""


PATCHES = {
    "decoder": ("abc de", "abd de", "a", "b"),
    "encoder": ("a [MASK] b", "c [MASK] b", "a", "b"),
    "encoder-decoder": ("red dog sees", "red cat sees", "hund", "katze", "sieht"),
}
"""Texts of the fields of the panel: clean, corrupted, answer, wrong answer and target prefix."""


def test_patching_begins_when_the_texts_differ(open_model: OpenModel) -> None:
    found = open_model("decoder", {"panel": "patch"})
    fields, patch = found.page.locator(".fields textarea"), found.page.get_by_role("button", name="Patch", exact=True)
    assert fields.nth(0).input_value() == TEXT and fields.nth(1).input_value() == ""
    assert patch.is_disabled()
    reason = found.frame("Patching").locator("p.detail").first
    assert reason.inner_text().startswith("No pair is proposed: ") and "in the second box" in reason.inner_text()
    assert "second box" in (patch.get_attribute("title") or "")
    fields.nth(1).fill(TEXT)
    assert patch.is_disabled() and "Change a word" in (patch.get_attribute("title") or "")
    fields.nth(1).press("Enter")
    found.settle()
    assert found.status() == ""
    fields.nth(1).fill(TEXT.replace("f", "a"))
    assert patch.is_enabled()
    found.tokens("target").first.hover()
    found.settle()
    assert fields.nth(0).input_value() == TEXT, "a redrawn panel keeps its text"


@pytest.mark.parametrize("family", PATCHES)
def test_two_texts_are_patched(show_model: OpenModel, models: dict[str, Model], family: str) -> None:
    model, (*texts, prefix) = models[family], (*PATCHES[family], "")[:5]
    found = show_model(family, {"panel": "patch"})
    fields: Locator = found.page.locator(".fields textarea")
    assert fields.count() == len(PATCHES[family])
    if not fields.nth(2).is_visible():  # open after another test
        found.page.locator(".more summary").click()
    for i, text in enumerate(PATCHES[family]):
        fields.nth(i).fill(text)
    found.page.get_by_role("button", name="Patch", exact=True).click()
    found.settle()
    pair = patching_of(model, *texts, target=prefix or None)
    stacks: list[Any] = [None] if family != "encoder-decoder" else ["encoder", "decoder"]
    for stack in stacks:
        if stack is not None:
            found.page.get_by_role("group", name="Stack").get_by_role("button", name=stack, exact=True).click()
            found.settle()
        expected = patch_residual(model.network, pair, stack)
        assert close(found.numbers("Patching"), expected.shares)
    facts = found.frame("Patching").locator("p.detail").first.inner_text().replace("−", "-")
    assert f"{expected.clean:.2f} (clean), {expected.corrupted:.2f} (corrupted)" in facts
    assert ("predicted after" in facts) == bool(prefix)
    if prefix:
        view = found.view()
        assert view["stack"] == "decoder" and view["prefix"] == prefix, "a bookmark restores the map"


def test_a_proposed_pair_follows_the_text_until_something_is_written(open_model: OpenModel) -> None:
    found = open_model("encoder-decoder", {"panel": "patch", "source": "red dog", "target": "rot hund"})
    clean, corrupted = (found.page.locator(".fields textarea").nth(i) for i in (0, 1))
    found.until("() => document.querySelectorAll('.fields textarea')[1].value === 'dog dog'")
    found.settle()
    assert clean.input_value() == "red dog" and found.page.locator(".heat:visible").count() == 1, "it is patched"
    found.run("the red dog sees the cat", "")
    found.until("() => document.querySelectorAll('.fields textarea')[1].value === 'the red dog sees cat cat'")
    corrupted.fill("the red dog sees a cat")
    found.run("red dog", "")
    assert clean.input_value() == "the red dog sees the cat" and corrupted.input_value() == "the red dog sees a cat"
