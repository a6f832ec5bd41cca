"""Around the panels: their programs, the browser's Back, the panel alone for a lecture."""

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import glassformer
from glassformer.inspection import ablation
from glassformer.inspection.capture import capture
from glassformer.inspection.head_scores import network_scores, random_scores, random_trace, ranked_heads
from glassformer.inspection.measures import measure_of
from glassformer.inspection.patching import patch_residual, patching_of
from glassformer.model import Model
from inspector.browsing import CHANGE_ADDRESS, TEXT, Visit, close, given_to, hash_of, number
from inspector.conftest import FAMILIES, OpenModel
from inspector.test_page import PANELS
from tolerances import printed


@pytest.mark.parametrize("name", FAMILIES)
def test_the_program_of_a_panel_computes_its_numbers(
    show_model: OpenModel, models: dict[str, Model], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glassformer, "load", lambda folder, step=None: models[name])
    found = show_model(name, {"layer": 0, "head": 0})
    page = found.page
    page.get_by_role("button", name="Python", exact=True).click()
    outputs: list[Any] = []
    shown = []
    for title in [title for titles in PANELS[name].values() for title in titles]:
        found.open_tab(title)
        if not page.locator("#python").is_visible():
            assert title in ("Compare", "Units", "Training", "Patching"), "Patching has no texts yet"
            continue
        shown.append(title)
        outputs.clear()
        exec(page.locator("#python").inner_text(), {"print": outputs.append})
        (value,) = outputs
        if title == "Heads":
            assert close(found.numbers("Head"), value)
        if title == "Alignment":
            assert close(found.numbers("Alignment matrix"), value)
        if title == "Logit lens":
            cells = [[cell.rsplit(" ", 1)[0] for cell in row[1:]] for row in found.cells("Logit lens")[1:]]
            assert cells == [models[name].tokenizer.tokens(row) for row in value.top_ids[:, :, 0].tolist()]
        if title == "Attribution":
            sentence = page.locator("#panels p.detail", has_text="logit of").first.inner_text()
            terms = value.terms.values()
            shown_logit, more = map(number, re.findall(r"(−?[\d.]+), of which (−?[\d.]+) more", sentence)[0])
            assert shown_logit == printed(value.logit, decimals=2)
            assert more == printed(sum(term.value - term.mean for term in terms), decimals=2)
        if title == "Input tokens":
            columns = torch.stack([value.exact, value.estimated], dim=1)
            assert close(found.numbers("Input tokens", 2), columns) and float(columns.abs().max()) > 0
            assert [row[1] for row in found.cells("Input tokens")[1:]] == value.tokens
        if title == "Ablation":
            kind = "cross" if name == "encoder-decoder" else name
            assert close(found.numbers("Parts"), table_of(value, kind))
            inputs = capture(models[name], **given_to(models[name])).inputs
            assert value == ablation.effects(models[name].network, inputs, measure_of(models[name], inputs)).changes
    assert {"Flow", "Heads"} <= set(shown)
    found.open_tab("Flow")
    page.get_by_role("button", name="Python", exact=True).click()
    assert not page.locator("#python").is_visible()


def table_of(changes: dict[ablation.Part, float], kind: str) -> torch.Tensor:
    """Return effects as the page shows them: a row per layer, the heads, the feed-forward and the whole layer."""
    named = {str(part): x for part, x in changes.items() if part.kind == kind}
    layers = sorted({part.layer for part in changes if part.kind == kind})
    heads = sorted({part.head for part in changes if part.kind == kind and part.head is not None})
    rows = [[named[f"{kind}.{i}.head.{head}"] for head in heads] for i in layers]
    others = [[named[f"{kind}.{i}.feed_forward"], named[f"{kind}.{i}"]] if kind != "cross" else [] for i in layers]
    return torch.tensor([[*row, *more] for row, more in zip(rows, others, strict=True)])


@pytest.mark.parametrize("measure", ["", "next", "logit"])
@pytest.mark.parametrize("mean", [0, 1])
def test_the_program_of_all_effects_computes_the_switches(
    show_model: OpenModel, models: dict[str, Model], mean: int, measure: str
) -> None:
    found = show_model(
        "decoder", {"panel": "ablation", "mean": mean, "measure": measure, "pos": 2, "answer": "a", "wrong": "b"}
    )
    value = run_program(found, models["decoder"])
    assert close(found.numbers("Parts"), table_of(value, "decoder"))


@pytest.mark.parametrize("mean", [0, 1])
def test_the_program_of_an_ablation_switches_the_parts_off(
    show_model: OpenModel, models: dict[str, Model], mean: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["decoder"]
    value = run_program(show_model("decoder", {"panel": "ablation", "off": "decoder.1.ff", "mean": mean}), model)
    trace = capture(model, **given_to(model))
    with ablation.ablate(model, ["decoder.1.feed_forward"], trace if mean else None):
        assert torch.equal(value, capture(model, **given_to(model))["logits"])
    assert not torch.equal(value, trace["logits"])


@pytest.mark.parametrize("stack", ["", "decoder"])
def test_the_program_of_patching_has_its_texts_and_its_stack(
    show_model: OpenModel, models: dict[str, Model], stack: str
) -> None:
    model, texts = models["encoder-decoder"], ("red dog sees", "red cat sees")
    view = {"panel": "patch", "clean": texts[0], "corrupted": texts[1], "stack": stack, "prefix": "sieht"} | {
        "answer": "hund",
        "wrong": "katze",
    }
    value = run_program(show_model("encoder-decoder", view), model)
    pair = patching_of(model, *texts, "hund", "katze", target="sieht")
    assert torch.equal(value, patch_residual(model.network, pair, "decoder" if stack else "encoder").shares)


@pytest.mark.parametrize("name", ["decoder", "encoder-decoder"])
def test_the_program_of_random_tokens_reads_them(open_model: OpenModel, models: dict[str, Model], name: str) -> None:
    found, model = open_model(name, {"panel": "attention", "kind": "decoder", "layer": 0, "head": 0}), models[name]
    found.until("() => document.querySelector('.found-list')")
    found.page.get_by_role("button", name="← all heads").click()
    with found.page.expect_response("**/api/run"):
        found.page.get_by_role("button", name="Show repeated random tokens").click()
    found.settle()
    scores = network_scores(model.network, capture(model, **ids_of(model)).inputs)
    assert repr(run_program(found, model)) == repr(ranked_heads(scores, random_scores(model))), (
        "NaN is not equal to NaN"
    )


def ids_of(model: Model) -> dict[str, list[int]]:
    inputs = random_trace(model).inputs
    ids = {name: x[0].tolist() for name, x in inputs.items()}
    return {"source": ids["source_ids"], "target": ids["token_ids"]} if model.is_seq2seq else {"text": ids["token_ids"]}


def run_program(found: Visit, model: Model) -> Any:
    """Run the program of the open panel with a model; return what it prints."""
    if not found.page.locator("#python").is_visible():
        found.page.get_by_role("button", name="Python", exact=True).click()
    outputs: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glassformer, "load", lambda folder, step=None: model)
        exec(found.page.locator("#python").inner_text(), {"print": outputs.append})
    found.page.get_by_role("button", name="Python", exact=True).click()
    return outputs[0]


def test_back_returns_to_the_former_panel_and_text(open_model: OpenModel) -> None:
    found = open_model("decoder", {"text": TEXT, "panel": "attention"})
    page = found.page
    page.route("**/api/run", lambda route: (time.sleep(0.4), route.continue_()))  # longer than the address waits
    found.view()
    length = page.evaluate("history.length")
    found.open_tab("Logit lens")
    found.view()
    found.run("abc de")
    found.view()
    n_tokens = found.tokens("target").count()
    assert page.evaluate("history.length") == length + 2
    page.go_back()
    found.until("text => document.querySelector('#input textarea').value === text", TEXT)
    found.settle()
    assert found.panel() == "lens" and found.tokens("target").count() != n_tokens
    page.go_back()
    found.until("() => document.body.dataset.panel === 'attention'")
    page.go_forward()
    page.go_forward()
    found.until("() => document.querySelector('#input textarea').value === 'abc de'")
    found.settle()
    assert found.panel() == "lens" and found.tokens("target").count() == n_tokens


def test_long_work_is_counted_and_can_be_stopped(open_model: OpenModel, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, goes_on = ablation.changed_outputs, threading.Event()

    def slow(*arguments: Any) -> Iterator[Any]:
        for done, found in enumerate(plain(*arguments)):
            if done == 2:
                assert goes_on.wait(60), "the page did not stop the work"
            yield found

    found = open_model("decoder", {"panel": "ablation"})
    page = found.page
    shown = page.locator(".switch").all_inner_texts()
    assert shown and "on" not in shown, "a small model is measured without a click"
    monkeypatch.setattr(ablation, "changed_outputs", slow)
    monkeypatch.setattr(ablation, "MAX_ROWS", 1)
    page.get_by_role("button", name="replace by the mean").click()
    stop = page.get_by_role("button", name="stop", exact=True)
    stop.wait_for()
    count = stop.locator("xpath=..").inner_text()
    assert re.fullmatch(r"\d+ of \d+, about \d+ s left stop", count)
    found.expects_refusals = True
    with page.expect_response("**/api/stop"):
        stop.click()
    goes_on.set()
    found.until("() => document.querySelector('#status').textContent.startsWith('stopped after')")
    assert not stop.is_visible()


def test_a_lecture_shows_the_panel_alone(show_model: OpenModel) -> None:
    found = show_model("decoder", {"panel": ""})
    page = found.page
    page.locator("#input textarea").press("l")
    assert page.locator("#input").is_visible(), "a letter of the text"
    page.get_by_role("button", name="lecture", exact=True).click()
    assert not page.locator("#input").is_visible() and not page.locator("#tabs").is_visible()
    page.keyboard.press("ArrowRight")
    found.until("() => document.querySelector('#panels .frame-heading h3').textContent.startsWith('2 of')")
    page.keyboard.press("l")
    assert page.locator("#input").is_visible() and page.locator("#tabs").is_visible()
    # Cells under the pointer, and the ways back without the key
    found.open_tab("Heads")
    page.locator(".head-grid .thumb").first.click()
    n = len(found.numbers("Head"))
    page.get_by_role("button", name="lecture", exact=True).click()
    found.settle()
    canvas = page.locator(".heat:visible canvas")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    described = set()
    for share in (0.55, 0.95):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 0.98 * box["height"])
        described.add(page.locator("#panels .heat-foot .detail").first.inner_text())
    assert len(described) == 2 and any(f"({n - 1})" in text for text in described)
    page.keyboard.press("Escape")
    assert page.locator("#input").is_visible()
    page.get_by_role("button", name="lecture", exact=True).click()
    page.get_by_role("button", name="whole page (key L)").click()
    assert page.locator("#input").is_visible()


def test_a_text_that_changes_in_a_lecture_has_its_height_afterwards(open_model: OpenModel) -> None:
    found = open_model("decoder", {"panel": "flow"})
    box = found.page.locator("#input textarea")
    found.page.keyboard.press("l")
    found.page.evaluate(CHANGE_ADDRESS, hash_of(panel="flow", text="ab\ncd\nef"))
    found.settle()
    found.page.keyboard.press("Escape")
    assert box.input_value() == "ab\ncd\nef"
    assert box.evaluate("(box) => box.scrollHeight <= box.clientHeight + 1"), "all three lines are visible"


def test_table_and_save_show_under_the_pointer_with_the_focus_and_on_a_phone(open_model: OpenModel) -> None:
    found = open_model("decoder", {"panel": "lens"})
    table = found.frame("Logit lens").get_by_role("button", name="table", exact=True)
    opacity = "(button) => getComputedStyle(button).opacity"
    found.page.mouse.move(0, 0)
    assert table.evaluate(opacity) == "0"
    found.frame("Logit lens").hover()
    assert table.evaluate(opacity) == "1"
    found.page.mouse.move(0, 0)
    table.focus()
    assert table.evaluate(opacity) == "1"
    table.blur()
    found.page.set_viewport_size({"width": 390, "height": 844})
    assert table.evaluate(opacity) == "1", "no pointer hovers on a phone"


def test_the_row_of_an_answer_is_scrolled_into_view(open_model: OpenModel) -> None:
    found = open_model("decoder", {"panel": "", "visit": 1, "text": "abc de fgh " * 2}, height=500)
    page = found.page
    page.locator("#visit .question-list button", has_text="What does the mask hide?").click()
    found.until("() => document.querySelector('#visit h2').textContent.startsWith('3 of ')")
    found.settle()
    row = int(re.findall(r"In row (\d+)", page.locator(".visit-answer p").first.inner_text())[0])
    top = page.locator(".heat:visible canvas").evaluate("(canvas) => canvas.getBoundingClientRect().top")
    last = page.locator(".heat:visible .heat-space").evaluate("(space) => space.getBoundingClientRect().bottom")
    n = found.tokens("target").count()
    longest = max(len(text) for text in found.tokens("target").all_inner_texts())
    labels = 26 + 7 * min(13, longest + 1 + len(str(n - 1)))  # the height above the rows: a token with its number
    bottom = last - (n - 1 - row) * (last - top - labels) / n
    assert row > 5 and bottom <= 500
    box = page.locator("#visit").bounding_box()
    assert box is not None and box["y"] == 0, "the answer stays above its evidence"


def test_an_answer_scrolls_once_and_two_presses_ask_once(open_model: OpenModel) -> None:
    found = open_model("decoder", {"panel": "", "visit": 1}, height=500)
    page, box = found.page, found.page.locator("#input textarea")
    # presses that follow at once are one step of the browser: no answer can come between them
    page.evaluate("() => { for (const _ of [0, 1]) document.querySelectorAll('.question-list button')[1].click(); }")
    found.until("() => document.querySelector('#visit h2').textContent.startsWith('2 of ')")
    found.settle()
    assert "The box has the text twice in a row" in page.locator(".visit-answer").inner_text()
    assert box.input_value() == f"{TEXT} {TEXT}", "the text is doubled once"
    page.evaluate("scrollTo(0, 0)")
    found.tokens("target").first.hover()
    page.mouse.move(0, 0)
    found.settle()
    assert page.evaluate("scrollY") == 0, "the pointer does not bring the answer back"
    page.evaluate("() => { const next = document.querySelector('.go-on'); next.click(); next.click(); }")
    found.until("() => document.querySelector('#visit h2').textContent.startsWith('3 of ')")
    found.settle()
    assert box.input_value() == TEXT, "the text of before"
    assert page.locator(".visit-answer").inner_text().endswith("The box has your text again.")
    page.evaluate(
        "() => ['.go-on', '#visit .frame-heading button'].forEach((one) => document.querySelector(one).click())"
    )
    found.settle()
    assert not page.locator("#visit").is_visible() and found.view().get("off", "") == ""


def test_an_answer_is_hidden_in_another_panel(open_model: OpenModel) -> None:
    found = open_model("decoder", {"panel": "", "visit": 1})
    page = found.page
    page.locator("#visit .question-list button", has_text="What does the mask hide?").click()
    found.until("() => document.querySelector('#visit h2').textContent.startsWith('3 of ')")
    assert "your text again" not in page.locator(".visit-answer").inner_text(), "the text was not changed"
    found.open_tab("Logit lens")
    assert not page.locator(".visit-answer").is_visible() and page.locator("#visit .question-list").is_visible()
    found.open_tab("Heads")
    assert page.locator(".visit-answer").is_visible()


MARKED_ROW = """() => {
    const canvas = [...document.querySelectorAll("#panels .heat canvas")].find((one) => one.offsetParent);
    const wanted = getComputedStyle(document.documentElement).getPropertyValue("--second").trim();
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(wanted.slice(i, i + 2), 16));
    const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const marked = [];
    for (let i = 0; i < data.length; i += 4) {
        const near = Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 24;
        if (near) marked.push([(i / 4) % width, Math.floor(i / 4 / width)]);
    }
    const left = Math.min(...marked.map(([x]) => x));
    const y = marked.find(([x]) => x === left)[1];
    const box = canvas.getBoundingClientRect();
    const answer = document.querySelector("#visit").getBoundingClientRect();
    return [answer.bottom, box.top + (y * box.height) / canvas.height];
}"""
"""The lower end of the answer, and the label of the marked row: the leftmost pixel of the second colour."""


@pytest.mark.parametrize("height", [900, 640])
def test_a_lecture_has_the_row_of_an_answer_in_its_window(open_model: OpenModel, height: int) -> None:
    found = open_model("decoder", {"panel": "", "visit": 1, "text": "abc de fgh " * 2}, width=1280, height=height)
    page = found.page
    page.locator("#visit .question-list button", has_text="What does the mask hide?").click()
    found.until("() => document.querySelector('#visit h2').textContent.startsWith('3 of ')")
    found.settle()
    page.keyboard.press("l")
    found.settle()
    answer, row = page.evaluate(MARKED_ROW)
    assert answer < row < height
    sizes = "[...document.querySelectorAll('#visit :is(h2, p, button)')].filter((one) => one.offsetParent)"
    assert page.evaluate(f"{sizes}.every((one) => parseFloat(getComputedStyle(one).fontSize) >= 18)")
