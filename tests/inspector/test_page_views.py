"""Around the panels: their programs, the browser's Back, the panel alone for a lecture."""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import glassformer
from glassformer.inspection import ablation
from glassformer.model import Model
from inspector.browsing import TEXT, close, number
from inspector.conftest import FAMILIES, OpenModel
from inspector.test_page import PANELS


@pytest.mark.parametrize("name", FAMILIES)
def test_the_program_of_a_panel_computes_its_numbers(
    show_model: OpenModel, models: dict[str, Model], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(glassformer, "load", lambda folder: models[name])
    found = show_model(name, {"layer": 0, "head": 0})
    page = found.page
    page.get_by_role("button", name="Python", exact=True).click()
    printed: list[Any] = []
    shown = []
    for title in [title for titles in PANELS[name].values() for title in titles]:
        found.open_tab(title)
        if not page.locator("#python").is_visible():
            assert title in ("Compare", "Texts", "Training")
            continue
        if title == "Patching":  # its texts are not given yet
            continue
        shown.append(title)
        printed.clear()
        exec(page.locator("#python").inner_text(), {"print": printed.append})
        (value,) = printed
        if title == "Heads":
            assert close(found.numbers("Head"), value)
        if title == "Alignment":
            assert close(found.numbers("Alignment matrix"), value)
        if title == "Logit lens":
            cells = [[cell.rsplit(" ", 1)[0] for cell in row[1:]] for row in found.cells("Logit lens")[1:]]
            assert cells == [models[name].tokenizer.tokens(row) for row in value.top_ids[:, :, 0].tolist()]
        if title == "Attribution":
            sentence = page.locator("#panels p.detail", has_text="logit of").first.inner_text()
            assert number(sentence.rsplit(": ", 1)[1].split(" = ")[0]) == pytest.approx(value.logit, abs=0.005)
        if title == "Ablation":
            assert isinstance(value, torch.Tensor)
    assert {"Flow", "Heads"} <= set(shown)
    found.open_tab("Flow")
    page.get_by_role("button", name="Python", exact=True).click()
    assert not page.locator("#python").is_visible()


def test_back_returns_to_the_former_panel_and_text(open_model: OpenModel) -> None:
    found = open_model("decoder", {"text": TEXT, "panel": "attention"})
    page = found.page
    found.view()
    found.open_tab("Logit lens")
    found.view()
    found.run("abc de")
    found.view()
    n_tokens = found.tokens("target").count()
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
    plain = ablation.changed_outputs

    def slow(*arguments: Any) -> Iterator[Any]:
        for found in plain(*arguments):
            time.sleep(0.4)
            yield found

    monkeypatch.setattr(ablation, "changed_outputs", slow)
    monkeypatch.setattr(ablation, "MAX_ROWS", 1)
    found = open_model("decoder", {"panel": "ablation"})
    page = found.page
    page.get_by_role("button", name="Measure all").click()
    stop = page.get_by_role("button", name="stop", exact=True)
    stop.wait_for()
    count = stop.locator("xpath=..").inner_text()
    assert re.fullmatch(r"\d+ of \d+, about \d+ s left stop", count)
    found.expects_refusals = True
    stop.click()
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
    found.until("() => document.querySelector('.flow-text h3').textContent.startsWith('2 of')")
    page.keyboard.press("l")
    assert page.locator("#input").is_visible() and page.locator("#tabs").is_visible()
