"""The widgets of the course: HTML without other files, a static picture, and what a slider changes in a browser."""

import re
from typing import TYPE_CHECKING

import pytest

from glassformer.apps.course import steps, widget
from glassformer.apps.course.pictures import widget_names
from glassformer.common.errors import UserError
from glassformer.common.figures import new_figure

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

DATA: dict[str, dict[str, object]] = {
    "masks": {"tokens": ["to", "be", "[PAD]"], "padding": 1},
    "merges": {"states": [{"merge": "", "words": [["a", "b"]]}, {"merge": "a + b", "words": [["ab"]]}]},
    "scaling": {"normal": [[1.0, 2.0, -1.0, 0.5], [0.0, 1.0, 1.0, 1.0]]},
    "temperature": {"tokens": ["a", "b", "</script>"], "logits": [2.0, 1.0, 0.0], "n_shown": 3},
}
MOVE = """input => {
    input.value = input.value === input.max ? input.min : input.max;
    input.dispatchEvent(new Event('input'));
}"""
MOVED = {
    "masks": "2 of 9 pairs are allowed; queries without any key: 1",
    "merges": "latest merge: a + b; 1 tokens",
    "scaling": "0.562",
    "temperature": "1 of 3 tokens can be sampled",
}
"""Text of each widget after every slider has moved from one end to the other: 0.562 = softmax(2.5 / 2, 3 / 2)."""


def html(name: str) -> str:
    return widget(name, new_figure(2, 1), 'the "static" picture', **DATA[name])._repr_html_()


def test_every_widget_has_a_test() -> None:
    assert widget_names() == sorted(DATA)


def test_an_unknown_widget_is_an_error() -> None:
    with pytest.raises(UserError, match="unknown widget 'mask': did you mean masks"):
        widget("mask", new_figure(2, 1), "")


@pytest.mark.parametrize("name", sorted(DATA))
def test_a_widget_needs_no_other_file(name: str) -> None:
    text = html(name)
    assert 'alt="the &quot;static&quot; picture"' in text and "data:image/png;base64," in text
    assert text.count("</script>") == 1
    assert not re.search(r"https?:|\bimport\b|\bfetch\b", text)


@pytest.mark.parametrize("name", sorted(DATA))
def test_a_moved_slider_changes_what_is_shown(name: str, window: "BrowserContext") -> None:
    page = window.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_content(f"<!doctype html><body>{html(name)}</body>")
    assert page.query_selector("img") is None  # the picture is replaced
    assert MOVED[name] not in page.inner_text("body")
    for slider in page.query_selector_all("input[type=range]"):
        slider.evaluate(MOVE)
    assert MOVED[name] in page.inner_text("body") and not errors
    page.close()


def test_a_training_is_short_only_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLASSFORMER_COURSE", raising=False)
    assert steps(600) == 600
    monkeypatch.setenv("GLASSFORMER_COURSE", "short")
    assert steps(600, short=30) == 30
