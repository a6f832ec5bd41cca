"""The page in a browser: every panel of every family, links between panels, keys, the address, and a lost server."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from glassformer.model import Model
from glassformer.serving.inspector import Inspector
from glassformer.serving.single_file import single_file
from serving.conftest import FAMILIES, Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER = Path(__file__).parent / "page"
TEXT = {"text": "abc de fgh"}
PAIR = {"source": "red dog sees", "target": "sieht hund rot"}
READY = ".tokens .token"
SIZES = {"laptop": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}


def address(served: Served, **view: Any) -> str:
    return served.address + "#" + "&".join(f"{key}={quote(str(value))}" for key, value in view.items())


def texts(model: Model) -> dict[str, str]:
    return PAIR if model.is_seq2seq else TEXT


@pytest.fixture
def visit(browser: "Browser") -> "Iterator[Callable[..., Page]]":
    """Open an address; at the end of the test, no script of the page has failed."""
    contexts, errors = [], []

    def start(url: str, size: str = "laptop", ready: str = READY) -> "Page":
        context = browser.new_context(viewport=SIZES[size])  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        page.wait_for_selector(ready)
        return page

    yield start
    for context in contexts:
        context.close()
    assert errors == []


def test_functions_of_the_page_in_node() -> None:
    """Sampling equals Python, scales are monotone, addresses restore the state: see `page/*.test.mjs`."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node on this machine: the tests of single functions of the page cannot run")
    files = sorted(map(str, FOLDER.glob("*.test.mjs")))
    done = subprocess.run([node, "--test", *files], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", [*FAMILIES, "classifier"])
def test_every_panel_opens_and_fits_the_window(
    models: dict[str, Model], serve: Callable[..., Served], visit: "Callable[..., Page]", family: str, size: str
) -> None:
    served = serve(Inspector(models[family]))
    page = visit(address(served, **texts(models[family])), size)
    for tab in page.query_selector_all("#tabs button"):
        if not tab.is_visible():
            continue
        name = tab.get_attribute("id")
        page.click(f"#{name}")
        page.wait_for_selector("#panels .frame:visible, #side .frame:visible")
        page.wait_for_timeout(250)
        assert page.locator("#status.is-problem").count() == 0, f"{name}: {page.inner_text('#status')}"
        assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size]["width"], name


def test_a_token_is_shown_as_text_and_highlighted_in_all_panels(
    models: dict[str, Model], serve: Callable[..., Served], visit: "Callable[..., Page]"
) -> None:
    page = visit(address(serve(Inspector(models["decoder"])), text="<b>abc</b>"))
    assert page.locator(".tokens b").count() == 0
    page.wait_for_selector(".thumb")
    page.hover('.tokens .token[data-index="2"]')
    page.wait_for_timeout(300)
    assert "position 2" in page.inner_text(".next .detail")
    assert float(page.evaluate("document.querySelector('.grid-and-found > div').style.getPropertyValue('--row')")) > 0


def test_keys_open_a_head_and_read_its_cells(
    models: dict[str, Model], serve: Callable[..., Served], visit: "Callable[..., Page]"
) -> None:
    page = visit(address(serve(Inspector(models["decoder"])), **TEXT))
    page.wait_for_selector(".thumb")
    page.focus(".thumb")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector(".heatmap >> text=×")
    page.focus(".heat")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert "weight 0." in page.inner_text(".heatmap .detail") or "weight 1." in page.inner_text(".heatmap .detail")
    assert page.locator(".tokens .token.is-linked").count() == 2
    page.keyboard.press("Escape")
    page.wait_for_selector(".thumb:visible")


def test_the_address_restores_the_view(
    models: dict[str, Model], serve: Callable[..., Served], visit: "Callable[..., Page]"
) -> None:
    page = visit(address(serve(Inspector(models["decoder"])), **TEXT))
    page.fill("textarea", "de fgh")
    page.keyboard.press("Control+Enter")
    page.click("#tab-lens")
    page.click('.tokens .token[data-index="1"]')
    page.wait_for_timeout(400)
    again = visit(page.url)
    again.wait_for_selector(".heatmap >> text=×")
    assert again.input_value("textarea") == "de fgh"
    assert again.get_attribute("#tab-lens", "aria-selected") == "true"
    assert again.get_attribute('.tokens .token[data-index="1"]', "aria-pressed") == "true"


def test_pictures_are_saved_in_four_formats(
    models: dict[str, Model], serve: Callable[..., Served], visit: "Callable[..., Page]", tmp_path: Path
) -> None:
    page = visit(address(serve(Inspector(models["decoder"])), **TEXT, layer=0, head=0))
    page.wait_for_selector(".heatmap >> text=×")
    starts = {"svg": b"<svg", "png": b"\x89PNG", "csv": b"query", "json": b"{"}
    for kind, start in starts.items():
        page.click("#panels .frame:visible summary")
        with page.expect_download() as found:
            page.click(f"#panels .frame:visible [data-format={kind}]")
        found.value.save_as(tmp_path / kind)
        assert (tmp_path / kind).read_bytes().startswith(start)


def test_the_page_continues_after_the_server_was_started_again(
    models: dict[str, Model], serve: Callable[..., Served], visit: "Callable[..., Page]"
) -> None:
    served = serve(Inspector(models["decoder"]))
    page = visit(address(served, **TEXT))
    page.wait_for_selector(".thumb")
    served.stop()
    page.click(".thumb >> nth=0")
    page.wait_for_selector("text=The server does not answer. Start it again; this page continues by itself.")
    serve(Inspector(models["decoder"]), served.port)
    page.wait_for_selector(".heatmap >> text=×")
    assert page.locator("#status.is-problem").count() == 0


def test_the_single_file_opens_from_a_disk(
    models: dict[str, Model], visit: "Callable[..., Page]", tmp_path: Path
) -> None:
    from glassformer.serving.inspector import FOLDER as PAGE

    (tmp_path / "page.html").write_text(single_file(Inspector(models["decoder"]), TEXT, PAGE), "utf-8")
    page = visit((tmp_path / "page.html").as_uri() + "#layer=0&head=0")
    page.wait_for_selector(".heatmap >> text=×")
    assert page.locator("#tab-steps").is_disabled()
    assert page.locator("#tab-lens").is_enabled()
