"""Two pages side by side: each shows its own text and model, and both show the same panel."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from glassformer.model import Model
from inspector.browsing import TEXT, Visit, hash_of, visits
from inspector.conftest import Serve
from inspector.direct import Inspector

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Locator

OTHER = "fgh abc"


def side(page: Visit, title: str, selector: str) -> "Locator":
    """Return elements of the first or the second page."""
    return page.page.frame_locator(f'iframe[title="{title} page"]').locator(selector)


@pytest.fixture
def pair(window: "BrowserContext", serve: Serve, models: dict[str, Model]) -> Iterator[Visit]:
    """Open two texts of the decoder side by side."""
    served = serve(Inspector(models["decoder"]))
    views = [hash_of(text=text).removeprefix("#") for text in (TEXT, OTHER)]
    with visits(window, "iframe") as open_page:
        yield open_page(served.address + f"two#a={quote(views[0])}&b={quote(views[1])}", refusals=True)


def test_two_texts_show_the_same_panel_and_two_models_the_same_text(
    pair: Visit, models: dict[str, Model], tmp_path: Path
) -> None:
    for title, text in (("first", TEXT), ("second", OTHER)):
        box = pair.page.locator(f'iframe[title="{title} page"]').bounding_box()
        assert box is not None and box["height"] > 600, "a page has the height of the window"
        tokens = side(pair, title, "#tokens .token")
        tokens.first.wait_for()
        assert side(pair, title, "#input textarea").input_value() == text
    side(pair, "first", '[role="tab"]:text-is("Why")').click()
    chosen = '[role="tab"][aria-selected="true"]'
    side(pair, "second", f'{chosen}:text-is("Logit lens")').wait_for()
    side(pair, "second", '[role="tab"]:text-is("Attention")').click()
    side(pair, "first", f'{chosen}:text-is("Attention")').wait_for()
    assert side(pair, "second", "#input textarea").input_value() == OTHER

    other = tmp_path / "other"
    models["encoder"].save(other)
    bar = pair.page.locator(".pane-bar").nth(1)
    bar.locator("input").fill(str(tmp_path / "nothing"))
    bar.get_by_role("button", name="Open").click()
    pair.until("() => document.querySelector('#status').textContent.includes('nothing')")
    pair.page.get_by_label("same text").check()
    bar.locator("input").fill(str(other))
    bar.get_by_role("button", name="Open").click()
    side(pair, "second", '.header-facts span:text-is("encoder")').wait_for()
    assert side(pair, "first", '.header-facts span:text-is("decoder")').count() == 1
    for title in ("first", "second"):
        assert side(pair, title, "#input textarea").input_value() == TEXT
    assert "a=" in pair.page.url and "checkpoint" in pair.page.url
