"""The first visit in a browser: each question opens a view, and its sentence has the numbers of the model."""

import re
from typing import Any

import pytest

from glassformer.apps.inspector.panels import interventions
from glassformer.inspection.ablation import effects
from glassformer.inspection.attention_maps import alignment, attention_layers
from glassformer.inspection.attribution import logit_attribution
from glassformer.inspection.capture import capture
from glassformer.inspection.measures import measure_of
from glassformer.inspection.patching import likely_heads
from glassformer.model import Model
from inspector.browsing import READY, SOURCE, TARGET, TEXT, Open, Visit, given_to, hash_of, number
from inspector.conftest import OpenModel, Serve
from inspector.direct import Inspector
from inspector.network.answers import with_large_effects
from tolerances import printed

BECOMES, READS, ALIGNED, GATE, MASK, OFF, WHY, PART, LEFT_OUT, SURE, UNEXPECTED = (
    "How does the text become a prediction?",
    "Which token does this one look at?",
    "From which source token is this target token?",
    "What does a gate keep?",
    "What does the mask hide?",
    "What if a head is switched off?",
    "Why this token?",
    "Which part writes this token?",
    "What if a word is left out?",
    "How sure is the model?",
    "Which token did the model not expect?",
)
QUESTIONS = {
    "decoder": [BECOMES, READS, MASK, OFF, WHY, PART, SURE, UNEXPECTED],
    "encoder": [READS, OFF, WHY, LEFT_OUT, SURE, UNEXPECTED],
    "encoder-decoder": [ALIGNED, READS, MASK, OFF, WHY, SURE, UNEXPECTED],
    "recurrent": [ALIGNED, GATE, LEFT_OUT, SURE, UNEXPECTED],
    "classifier": [READS, OFF, LEFT_OUT, SURE],
}
PANELS = {
    READS: "attention",
    ALIGNED: "alignment",
    MASK: "attention",
    OFF: "ablation",
    WHY: "lens",
    PART: "attribution",
}
"""Panel of the answer; those of the other answers are in the flow."""
FIRST = {"panel": "", "visit": 1}
"""The view of the first visit, which `test_the_first_visit_is_closed_once_and_opened_again` opens in a new page."""


def ask(found: Visit, question: str) -> str:
    """Choose a question; return the sentence of what is seen."""
    back = found.page.get_by_role("button", name="all questions")
    if back.is_visible():
        back.click()
    found.page.locator("#visit .question-list button", has_text=question).click()
    found.settle()
    found.until("() => !document.querySelector('.visit-answer').hidden")
    found.page.mouse.move(0, 0)  # away from the tokens that the answer has moved under the pointer
    found.settle()
    return found.page.locator(".visit-answer p").first.inner_text()


def percents_of(sentence: str) -> list[float]:
    return [float(word) / 100 for word in re.findall(r"([\d.]+) %", sentence)]


@pytest.mark.parametrize("name", QUESTIONS)
def test_each_question_has_a_view_and_two_sentences(show_model: OpenModel, name: str) -> None:
    found = show_model(name, FIRST)
    shown = found.page.locator("#visit .question-list button").all_inner_texts()
    assert shown == [f"{i}. {question}" for i, question in enumerate(QUESTIONS[name], 1)]
    for question in QUESTIONS[name]:
        seen = ask(found, question)
        means = found.page.locator(".visit-answer p").nth(1).inner_text()
        assert seen.endswith(".") and means.endswith(".") and re.search(r"\d", seen)
        panel = "alignment" if question == LEFT_OUT and name == "recurrent" else PANELS.get(question, "flow")
        assert found.panel() == panel
        assert "NaN" not in seen + means and "undefined" not in seen + means
        has_place = name != "classifier" or question in (READS, LEFT_OUT)  # a prediction of a text has no token
        assert (found.page.locator("#panels .is-linked, #tokens .is-linked").count() > 0) == has_place, question
    assert found.page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_the_sentences_have_the_numbers_of_the_model(show_model: OpenModel, models: dict[str, Model]) -> None:
    found, model = show_model("encoder-decoder", FIRST), models["encoder-decoder"]
    trace = capture(model, **given_to(model))
    places = re.compile(r"oken (\d+) ")

    seen = ask(found, READS)
    view = found.view()
    weights = attention_layers(trace, view["kind"])[int(view["layer"])][0, int(view["head"])]
    row, key = map(int, places.findall(seen))
    assert percents_of(seen)[0] == printed(float(weights[row, key]), decimals=3)

    seen = ask(found, ALIGNED)
    row, key = map(int, places.findall(seen))
    assert percents_of(seen)[0] == printed(float(alignment(trace)[row, key]), decimals=3)

    assert percents_of(ask(found, MASK)) == printed([1, 0], decimals=3)

    ask(found, OFF)
    changes = effects(model.network, trace.inputs, measure_of(model, trace.inputs))
    largest = max(float(x) for kind in ("encoder", "decoder", "cross") for row in changes.heads(kind) for x in row)
    means = found.page.locator(".visit-answer p").nth(1).inner_text()
    assert number(re.findall(r"by ([\d.]+) nats per token", means)[0]) == printed(largest, decimals=2)


def test_the_first_answer_has_the_prediction_after_the_last_token(
    show_model: OpenModel, models: dict[str, Model]
) -> None:
    found, model = show_model("decoder", FIRST), models["decoder"]
    seen = ask(found, BECOMES)
    last = capture(model, TEXT)["logits"][0, -1].softmax(-1)
    assert percents_of(seen) == printed([float(last.max())], decimals=3)
    assert f"is “{model.tokenizer.decode([int(last.argmax())]).replace(' ', '␣')}”" in seen
    n_blocks = len(attention_layers(capture(model, TEXT), "decoder"))
    assert f" {n_blocks} blocks change" in found.page.locator(".visit-answer").inner_text()
    assert int(found.view()["pos"]) == found.tokens("target").count() - 1


def test_the_gate_has_the_numbers_of_the_model(show_model: OpenModel, models: dict[str, Model]) -> None:
    found, model = show_model("recurrent", FIRST), models["recurrent"]
    keep = capture(model, **given_to(model), names=["decoder.cells.0.keep"])["decoder.cells.0.keep"][0].mean(dim=-1)
    shown = percents_of(ask(found, GATE))
    assert shown == printed([float(keep.max()), float(keep.min())], decimals=3)
    assert found.page.locator("#panels .frame-heading h3").inner_text().endswith("Recurrent step")
    assert found.view()["pos"] == str(int(keep.argmin()))


def test_a_word_that_is_left_out_changes_the_probability_of_the_model(
    models: dict[str, Model], serve: Serve, visit: Open
) -> None:
    model = with_large_effects(models["recurrent"])
    found = visit(serve(Inspector(model)).address + hash_of(**given_to(model), panel=""))
    seen = ask(found, LEFT_OUT)
    words = SOURCE.split(" ")
    target_ids = capture(model, source=SOURCE, target=TARGET).inputs["token_ids"][0, 1:].tolist()

    def probabilities(source: str) -> list[float]:
        logits = capture(model, source=source, target=TARGET, names=["logits"])["logits"][0]
        ids = [*target_ids, model.translator.end_id]
        return [float(row.softmax(0)[i]) for row, i in zip(logits, ids, strict=True)]

    before = probabilities(SOURCE)
    after = {word: probabilities(" ".join(one for one in words if one != word)) for word in words}
    falls = {(word, t): x - y for word in words for t, (x, y) in enumerate(zip(before, after[word], strict=True))}
    word, t = max(falls, key=lambda key: falls[key])
    assert f"Without “{word}”, the probability of token {t} " in seen
    assert percents_of(seen) == printed([before[t], after[word][t]], decimals=3)


def test_the_part_that_writes_a_token_has_the_largest_term(show_model: OpenModel, models: dict[str, Model]) -> None:
    found, model = show_model("decoder", FIRST), models["decoder"]
    seen = ask(found, PART)
    trace = capture(model, text=found.page.locator("#input textarea").input_value())
    position = int(found.view()["pos"])
    expected = logit_attribution(model, trace, position=position)
    term = max(expected.terms.values(), key=lambda one: one.value - one.mean)
    shown = [number(x) for x in re.findall(r"(?:is|adds|and) (−?\d+\.\d+)", seen)]
    assert shown == printed([expected.logit, term.value, term.mean], decimals=2)
    assert "the direct effect of a part only" in found.page.locator(".visit-answer").inner_text()


def test_the_likely_heads_of_a_large_model_are_switched_off(
    open_model: OpenModel, models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page does not switch off all heads of a model for which that would take long: here, it counts it as large."""
    monkeypatch.setattr(interventions, "MOST", 3)
    found, model = open_model("decoder", {"panel": "lens"}), models["decoder"]

    def larger(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"parameters": 10**12})

    found.page.route("**/api/model*", larger)
    found.page.goto(found.page.url.partition("#")[0])
    found.page.locator("#visit .question-list button").first.wait_for()
    found.settle()
    found.requests.clear()
    seen = ask(found, OFF)
    assert not any("/effects" in url for url in found.requests)
    inputs = capture(model, text=found.page.locator("#input textarea").input_value()).inputs
    heads = likely_heads(model.network, inputs, measure_of(model, inputs))
    changes = effects(model.network, inputs, measure_of(model, inputs), heads[:3]).changes
    most = max(changes, key=lambda part: changes[part])
    assert f"head {most.head} of layer {most.layer}" in seen
    text = found.page.locator(".visit-answer").inner_text()
    assert f"The 3 heads of {len(heads)} with the largest estimate by the gradient were switched off one by one" in text
    assert found.page.get_by_role("button", name="Measure all").is_enabled(), "the complete measurement"


def test_an_unexpected_token_has_the_smallest_probability(show_model: OpenModel, models: dict[str, Model]) -> None:
    found, model = show_model("recurrent", FIRST), models["recurrent"]
    trace = capture(model, **given_to(model), names=["logits"])
    ids = [*trace.inputs["token_ids"][0, 1:].tolist(), model.translator.end_id]
    rows = trace["logits"][0].softmax(-1)
    chosen = [float(row[i]) for row, i in zip(rows, ids, strict=True)]
    t = chosen.index(min(chosen))
    assert percents_of(ask(found, UNEXPECTED)) == printed([chosen[t], float(rows[t].max())], decimals=3)
    seen = ask(found, SURE)
    best = rows.topk(2).values
    is_end = rows.argmax(-1) == model.translator.end_id
    surest = int((best[:, 0] - best[:, 1] - is_end.float()).argmax())
    assert percents_of(seen) == printed(best[surest].tolist(), decimals=3)


def test_the_first_visit_is_closed_once_and_opened_again(models: dict[str, Model], serve: Serve, visit: Open) -> None:
    address = serve(Inspector(models["decoder"])).address
    found = visit(address + hash_of(panel="lens"), width=390, height=844)
    page = found.page

    def load() -> None:
        found.view()  # the page has written its address
        page.goto(address)
        page.locator(READY).first.wait_for()
        found.settle()

    assert not page.locator("#visit").is_visible(), "a bookmark has a view of its own"
    load()
    box = page.locator("#panels .card").first.bounding_box()
    assert box is not None and box["y"] < 600, "the panel is on the first screen"
    assert not page.get_by_text("Space: next question").is_visible(), "a phone has no keys"
    page.locator("#visit .question-list button").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    found.until("() => document.querySelector('#visit h2').textContent.startsWith('2 of ')")
    found.settle()
    page.keyboard.press("Space")
    found.until("() => document.querySelector('#visit h2').textContent.startsWith('3 of ')")
    found.settle()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.keyboard.press("Escape")
    found.settle()
    assert not page.locator("#visit").is_visible()
    assert page.evaluate("document.activeElement.textContent") == "help"
    load()
    assert not page.locator("#visit").is_visible(), "closed before"
    page.get_by_role("button", name="help", exact=True).click()
    found.settle()
    assert page.locator("#visit").is_visible()


def asked(found: Visit, number: int) -> None:
    """Wait for the answer to a question, and for its focus."""
    found.until(f"() => document.querySelector('#visit h2').textContent.startsWith('{number} of ')")
    found.until("() => document.activeElement.matches('.go-on')")
    found.settle()


def test_the_space_key_asks_all_questions_and_writes_nothing(open_model: OpenModel) -> None:
    found = open_model("decoder", FIRST)
    page, box = found.page, found.page.locator("#input textarea")
    hint = page.get_by_text("Space: next question")
    assert hint.is_visible()
    box.press("Space")
    assert box.input_value() != TEXT and not page.locator(".visit-answer").is_visible(), "a field has its own Space"
    box.fill(TEXT)
    page.get_by_role("button", name="dark", exact=True).press("Space")
    assert not page.locator(".visit-answer").is_visible(), "a button has its own Space"
    page.evaluate("document.activeElement.blur()")
    n = len(QUESTIONS["decoder"])
    for i in range(1, n + 1):
        page.keyboard.press("Space")
        asked(found, i)
        assert hint.is_visible() == (i < n)
    last = page.get_by_role("button", name="Now change the text, and run it")
    for key in ("Space", "Enter"):
        last.focus()
        page.keyboard.down(key)
        page.keyboard.down(key)  # a held key repeats
        page.keyboard.down(key)
        page.keyboard.up(key)
        page.keyboard.press("Space")
        assert page.evaluate("document.activeElement.matches('#input textarea')")
        assert box.input_value() == TEXT
        assert page.evaluate("[document.activeElement.selectionStart, document.activeElement.selectionEnd]") == [
            len(TEXT),
            len(TEXT),
        ]
    page.keyboard.type("a b")
    assert box.input_value() == f"{TEXT}a b"


def test_every_other_panel_names_the_parts_that_are_off(open_model: OpenModel) -> None:
    found = open_model("decoder", {"panel": "ablation", "off": "decoder.0.1"})
    line = found.page.locator("#off")
    whole = "off in Change; this view shows the whole model."
    assert not line.is_visible()
    for name in ("Flow", "Heads", "Logit lens", "Attribution", "Patching", "Step by step"):
        found.open_tab(name)
        assert line.inner_text().startswith(f"Head 1 of layer 0 (decoder) is {whole}"), name
    line.get_by_role("button", name="open Change").click()
    found.settle()
    assert found.panel() == "ablation" and not line.is_visible()
    found.page.get_by_role("switch", name="decoder.0.feed-forward").click()
    found.open_tab("Flow")
    assert line.inner_text().startswith(f"Head 1 of layer 0 (decoder) and 1 more are {whole}")
    line.get_by_role("button", name="all on").click()
    found.settle()
    assert not line.is_visible() and found.view().get("off", "") == ""
