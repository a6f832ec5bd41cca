"""The inspector page in a browser: each panel of each family opens, fits the screen, and calls no other host."""

from collections.abc import Iterator

import pytest

from glassformer.model import Model
from inspector.browsing import SOURCE, TARGET, TEXT, Open, Visit, given_to, hash_of
from inspector.conftest import FAMILIES, OpenModel, Serve
from inspector.direct import Inspector

PANELS = {
    "decoder": [
        "Flow",
        "Attention",
        "Logit lens",
        "Attribution",
        "Step by step",
        "Ablation",
        "Compare",
        "Patching",
        "Texts",
        "Training",
    ],
    "encoder": [
        "Flow",
        "Attention",
        "Logit lens",
        "Attribution",
        "Ablation",
        "Compare",
        "Patching",
        "Texts",
        "Training",
    ],
    "encoder-decoder": [
        "Flow",
        "Alignment",
        "Attention",
        "Logit lens",
        "Attribution",
        "Step by step",
        "Ablation",
        "Beam search",
        "Compare",
        "Patching",
        "Texts",
        "Training",
    ],
    "recurrent": ["Flow", "Alignment", "Attention", "Step by step", "Beam search", "Compare", "Training"],
    "classifier": ["Flow", "Attention", "Ablation", "Compare", "Texts", "Training"],
}
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
NAMELESS = """() => [...document.querySelectorAll("button, input, select, textarea, [role=tab], [role=switch]")]
    .filter((x) => x.checkVisibility())
    .filter((x) => !(x.getAttribute("aria-label") ?? x.textContent.trim()) && !x.closest("label")?.textContent.trim())
    .map((x) => x.outerHTML)"""


def each_panel(found: Visit, name: str) -> Iterator[str]:
    """Open one panel after the other."""
    for title in PANELS[name]:
        found.open_tab(title)
        yield title


@pytest.mark.parametrize("name", PANELS)
def test_each_panel_shows_its_content(open_model: OpenModel, models: dict[str, Model], name: str) -> None:
    found, model = open_model(name), models[name]
    page = found.page
    tabs = page.locator("#tabs [role=tab]:not(.only-narrow)").all_inner_texts()
    assert tabs == PANELS[name]
    card = Inspector(model).card()
    n_tokens = len(
        Inspector(model).run(**given_to(model))["target" if card["is_causal"] or model.is_seq2seq else "source"]
    )
    for title in each_panel(found, name):
        panel = page.locator("#panels")
        if title == "Flow":
            assert (
                panel.locator(".flow-picture svg image").count() > 5
                and panel.locator(".flow-stages button").count() > 3
            )
        if title == "Attention":
            for i, size in enumerate(card["attention"].values()):
                if len(card["attention"]) > 1:
                    panel.get_by_role("group", name="Kind of attention").locator("button").nth(i).click()
                    found.settle()
                assert panel.locator(".head-grid .thumb").count() == size["layers"] * size["heads"]
            found.until("() => document.querySelector('.found-list')?.textContent.includes('Heads found')")
            n_blocks = max(size["layers"] for size in card["attention"].values())
            n_patterns = 0 if name == "recurrent" else 4 if n_blocks > 1 else 3
            assert panel.locator(".found-head").count() == n_patterns, "one block has no induction head"
        if title == "Alignment":
            assert found.frame("Alignment").locator("path").count() > 0
            assert len(found.cells("Alignment matrix")) == 1 + n_tokens
        if title == "Logit lens":
            stack = model.config.decoder or model.config.encoder
            rows = found.cells("Logit lens")
            assert len(rows) == 1 + stack.n_layers + 1 and len(rows[0]) == 1 + n_tokens
        if title == "Step by step":
            assert panel.locator("button.bar").count() == 12 and panel.locator(".branch").count() == 1
        if title == "Ablation":
            for i, (kind, size) in enumerate(card["attention"].items()):
                if len(card["attention"]) > 1:
                    panel.get_by_role("group", name="Kind of attention").locator("button").nth(i).click()
                    found.settle()
                more = 0 if kind == "cross" else 2  # the feed-forward and the whole layer
                assert panel.locator(".switch").count() == size["layers"] * (size["heads"] + more)
        if title == "Beam search":
            assert found.frame("Beam search").locator("svg rect").count() > 3
            assert found.frame("Results").locator("tbody tr").count() == 2
        if title == "Compare":
            assert panel.get_by_label("checkpoint").get_attribute("max") == "1"
            found.until("() => document.querySelector('#panels').textContent.includes('step 10')")
        if title == "Patching":
            assert panel.locator(".fields textarea").count() == (5 if model.is_seq2seq else 4)
        if title == "Attribution":
            terms = model.logit_attribution(**given_to(model), position=0).terms
            assert len(found.cells("Attribution")) == 1 + len(terms)
        if title == "Texts":
            n_layers = sum(size["layers"] for size in card["attention"].values())
            assert panel.get_by_role("combobox").locator("option").count() >= n_layers
        if title == "Training":
            found.until("() => document.querySelector('.live-facts')?.textContent.includes('not running')")
            assert "20 of 20" in panel.locator(".live-facts").inner_text()
            assert panel.locator(".charts svg").count() >= 3 and found.frame("Loss").locator("svg path").count() >= 2
    page.get_by_role("button", name="model", exact=True).click()
    found.settle()
    assert page.locator(".architecture .box").count() == len(card["architecture"])
    rows = found.cells("Parameters")[1:]
    assert [row[0] for row in rows] == [part["name"] for part in card["parts"]]


@pytest.mark.parametrize("name", PANELS)
def test_nothing_is_cut_off_and_each_control_has_a_name(open_model: OpenModel, name: str) -> None:
    found = open_model(name, {"card": 1})
    for width, height in SIZES.values():
        found.page.set_viewport_size({"width": width, "height": height})
        found.settle()
        for title in each_panel(found, name):
            wide = found.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{title}: {wide} pixels on a screen of {width}"
            assert found.page.evaluate(NAMELESS) == [], title


def test_the_next_token_is_a_tab_on_a_narrow_screen(open_model: OpenModel) -> None:
    found = open_model("decoder", width=390, height=844)
    side = found.page.locator("#side")
    assert not side.is_visible()
    found.open_tab("Next token")
    assert side.is_visible() and side.locator(".bar").count() == 15
    assert found.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_translation_fits_a_phone(open_model: OpenModel) -> None:
    found = open_model("encoder-decoder", {"beam": 8}, width=390, height=844)
    overflow = "() => document.documentElement.scrollWidth - innerWidth"
    for title in (*PANELS["encoder-decoder"], "Next token"):
        found.open_tab(title)
        assert found.page.evaluate(overflow) <= 0, title
        for table in found.page.locator("#panels button:visible", has_text="table").all():
            table.click()
            assert found.page.evaluate(overflow) <= 0, f"{title}: table"
            table.click()
    found.open_tab("Beam search")
    tree = found.page.get_by_role("region", name="Tree of hypotheses")
    sizes = "(x) => [x.scrollWidth, x.clientWidth, x.querySelector('svg').getBoundingClientRect().width]"
    whole, seen, drawn = tree.evaluate(sizes)
    assert seen < 390 < drawn <= whole, "the tree scrolls inside its frame"
    tree.evaluate("(x) => x.scrollTo(x.scrollWidth, 0)")
    edges = "(x) => [x.getBoundingClientRect().right, x.querySelector('svg').getBoundingClientRect().right]"
    frame, picture = tree.evaluate(edges)
    assert picture <= frame + 1 and found.page.evaluate(overflow) <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_colour_scheme(open_model: OpenModel, scheme: str) -> None:
    found = open_model("decoder", scheme=scheme)
    brightness = """(selector) => {
        const colour = getComputedStyle(document.querySelector(selector)).backgroundColor.match(/\\d+/g).map(Number);
        return (colour[0] + colour[1] + colour[2]) / 3;
    }"""
    pixel = """() => document.querySelector(".thumb canvas").getContext("2d").getImageData(3, 0, 1, 1).data[0]"""
    for selector in ("body", "#input", ".thumb"):
        assert (found.page.evaluate(brightness, selector) > 128) == (scheme == "light"), selector
    assert (found.page.evaluate(pixel) > 128) == (scheme == "light"), "a weight of 0 has the colour of the paper"
    found.page.get_by_role("button", name="dark" if scheme == "light" else "light", exact=True).click()
    found.settle()
    assert (found.page.evaluate(brightness, "body") > 128) == (scheme == "dark")
    assert (found.page.evaluate(pixel) > 128) == (scheme == "dark")


@pytest.mark.parametrize("name", FAMILIES)
def test_examples_run_with_a_click(models: dict[str, Model], serve: Serve, visit: Open, name: str) -> None:
    found = visit(serve(Inspector(models[name])).address + hash_of())
    first = found.tokens("written" if models[name].is_seq2seq else "target" if name == "decoder" else "source")
    before = first.all_inner_texts()
    with found.page.expect_response("**/api/run"):
        found.page.locator(".examples button").nth(1).click()
    found.settle()
    assert before and first.all_inner_texts() != before


def test_a_token_with_html_is_text(models: dict[str, Model], serve: Serve, visit: Open) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    found = visit(serve(Inspector(models["decoder"], [{"text": evil[:20]}])).address + hash_of())
    before = found.page.locator("script, img").count()
    model = models["decoder"]
    pieces = [evil[i : i + 20] for i in range(0, len(evil), 20)]
    for piece in pieces:
        assert len(model.tokenizer.encode(piece)) < 32
        found.run(piece)
        shown = "".join(found.tokens("target").all_inner_texts())
        assert piece.replace(" ", "␣") in shown
        for _ in each_panel(found, "decoder"):
            assert found.page.locator("script, img").count() == before
    found.page.goto(
        found.page.url.split("#")[0] + hash_of(text="<b>x</b>", panel="<img src=x onerror=alert(3)>", off="<script>")
    )
    found.page.reload()
    found.page.locator(".flow-picture svg").wait_for()  # an unknown panel is the first one
    assert found.page.locator("#input textarea").input_value() == "<b>x</b>"
    assert found.page.locator("main b").count() == 0


@pytest.mark.parametrize(
    ("text", "words"), [("a" * 100, "the text has 1"), (" ", "the text is empty"), ("", "Write a text and press Run")]
)
def test_a_refused_text_is_explained(open_model: OpenModel, text: str, words: str) -> None:
    found = open_model("decoder", refusals=True)
    found.page.locator("#input textarea").fill(text)
    found.page.get_by_role("button", name="Run", exact=True).click()
    found.until("(words) => document.getElementById('status').textContent.includes(words)", words)
    status = found.status()
    assert "\n" not in status and "Traceback" not in status
    assert found.tokens("target").count() > 3, "the former text is still shown"
    found.run(TEXT)
    assert found.status() == ""


def test_the_page_recovers_when_the_server_starts_again(models: dict[str, Model], serve: Serve, visit: Open) -> None:
    served = serve(Inspector(models["decoder"]))
    found = visit(served.address + hash_of(text=TEXT), refusals=True)
    served.stop()
    found.page.locator(".thumb").nth(1).click()
    found.until("() => document.getElementById('status').textContent.includes('The server does not answer')")
    serve(Inspector(models["decoder"]), served.port)
    found.until("() => document.getElementById('status').textContent === ''")
    found.settle()
    rows = found.cells("Head")
    assert len(rows) == 1 + found.tokens("target").count()


def test_a_run_that_the_server_dropped_is_run_again(models: dict[str, Model], serve: Serve, visit: Open) -> None:
    inspector = Inspector(models["decoder"])
    found = visit(serve(inspector).address + hash_of(text=TEXT), refusals=True)
    inspector.runs.clear()
    found.page.evaluate("() => { const now = Date.now; Date.now = () => now() + 60_000; }")  # it waits after a run
    with found.page.expect_response("**/api/run"):
        found.page.locator(".thumb").nth(1).click()
    found.settle()
    assert found.status() == "" and len(found.cells("Head")) == 1 + found.tokens("target").count()


def test_a_pair_without_a_target_shows_what_the_model_writes(open_model: OpenModel, models: dict[str, Model]) -> None:
    found, model = open_model("encoder-decoder"), models["encoder-decoder"]
    found.run(SOURCE, "")
    written = model.encode_target(model.translate(SOURCE))[1:]
    assert found.tokens("written").count() == len(written) + 1
    found.run(SOURCE, TARGET)
    assert found.tokens("written").count() == len(model.encode_target(TARGET))
    assert found.tokens("source").count() == len(model.encode_source(SOURCE))


@pytest.mark.parametrize("name", ["decoder", "encoder-decoder"])
def test_nothing_moves_under_the_pointer(open_model: OpenModel, name: str) -> None:
    found = open_model(name, width=390, height=844)
    heights = set()
    for token in found.page.locator("#tokens .token").all():
        token.hover()
        found.settle()
        heights.add(found.page.locator("#tokens").bounding_box()["height"])  # type: ignore[index]
    assert len(heights) == 1
    found.page.set_viewport_size({"width": 1280, "height": 800})
    found.settle()
    assert found.page.locator("#tokens").bounding_box()["height"] < min(heights)  # type: ignore[index]


def test_special_tokens_show_no_bytes_and_the_colours_have_a_legend(open_model: OpenModel) -> None:
    found = open_model("encoder-decoder")
    detail = found.page.locator("#tokens .detail")
    found.tokens("written").last.hover()
    found.settle()
    assert "special token" in detail.inner_text() and "bytes" not in detail.inner_text()
    found.tokens("source").first.hover()
    found.settle()
    assert "hexadecimal bytes 72" in detail.inner_text() and "UTF-8" in (detail.get_attribute("title") or "")
    legend = found.page.locator("#tokens .legend")
    assert legend.inner_text().split("\n") == ["log-probability 0", "−8 or less"]
    found.page.locator("#tokens select").select_option("rank")
    found.settle()
    assert legend.inner_text().split("\n") == ["rank 1", "1000 or more"]
    found.page.locator("#tokens select").select_option("none")
    found.settle()
    assert not legend.is_visible()
