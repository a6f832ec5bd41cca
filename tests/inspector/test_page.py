"""The inspector page in a browser: each panel of each family opens, fits the screen, and calls no other host."""

from collections.abc import Iterator

import pytest

from glassformer.inspection.capture import capture
from glassformer.model import Model
from inspector.browsing import SOURCE, TARGET, TEXT, Open, Visit, given_to, hash_of
from inspector.conftest import FAMILIES, OpenModel, Serve
from inspector.direct import Inspector

PANELS = {
    "decoder": {
        "Flow": ["Flow"],
        "Attention": ["Heads"],
        "Why": ["Logit lens", "Attribution", "Input tokens"],
        "Change": ["Ablation", "Patching"],
        "Write": ["Step by step"],
        "More": ["Compare", "Units", "Training"],
    },
    "encoder": {
        "Flow": ["Flow"],
        "Attention": ["Heads"],
        "Why": ["Logit lens", "Attribution", "Input tokens"],
        "Change": ["Ablation", "Patching"],
        "More": ["Compare", "Units", "Training"],
    },
    "encoder-decoder": {
        "Flow": ["Flow"],
        "Attention": ["Alignment", "Heads"],
        "Why": ["Logit lens", "Attribution", "Input tokens"],
        "Change": ["Ablation", "Patching"],
        "Write": ["Step by step", "Beam search"],
        "More": ["Compare", "Units", "Training"],
    },
    "recurrent": {
        "Flow": ["Flow"],
        "Attention": ["Alignment", "Heads"],
        "Why": ["Input tokens"],
        "Write": ["Step by step", "Beam search"],
        "More": ["Compare", "Training"],
    },
    "classifier": {
        "Flow": ["Flow"],
        "Attention": ["Heads"],
        "Why": ["Input tokens"],
        "Change": ["Ablation"],
        "More": ["Compare", "Units", "Training"],
    },
}
WIDE = "document.documentElement.scrollWidth"
NAMELESS = """() => [...document.querySelectorAll("button, input, select, textarea, [role=tab], [role=switch]")]
    .filter((x) => x.checkVisibility())
    .filter((x) => !(x.getAttribute("aria-label") ?? x.textContent.trim()) && !x.closest("label")?.textContent.trim())
    .map((x) => x.outerHTML)"""


def each_panel(found: Visit, name: str) -> Iterator[str]:
    """Open one panel after the other."""
    for titles in PANELS[name].values():
        for title in titles:
            found.open_tab(title)
            yield title


SMALL = """() => [...document.querySelectorAll("button, input:not([type=checkbox]), select, summary")]
    .filter((x) => x.checkVisibility()).filter((x) => {
        const box = (x.closest("label") ?? x).getBoundingClientRect();
        return box.height < 23.5 || box.width < 23.5;
    }).map((x) => x.outerHTML)"""
"""Controls that are too small for a finger: 24 pixels (WCAG 2.2, 2.5.8)."""


def check_layout(found: Visit, title: str, width: int) -> None:
    """Require that nothing is cut off at the right, that each control has a name and, on a phone, a size."""
    assert width > 640 or found.page.evaluate(SMALL) == [], title
    wide = found.page.evaluate(WIDE)
    assert wide <= width, f"{title}: {wide} pixels on a screen of {width}"
    assert found.page.evaluate(NAMELESS) == [], title


@pytest.mark.parametrize("name", PANELS)
def test_each_panel_shows_its_content_and_nothing_is_cut_off(
    show_model: OpenModel, models: dict[str, Model], name: str
) -> None:
    """On a wide screen, beside the card of the model; each control has a name."""
    found, model = show_model(name, {"card": 1}), models[name]
    page = found.page
    assert found.panels() == {view: titles if len(titles) > 1 else [] for view, titles in PANELS[name].items()}
    card = Inspector(model).card()
    n_tokens = len(
        Inspector(model).run(**given_to(model))["target" if card["is_causal"] or model.is_seq2seq else "source"]
    )
    for title in each_panel(found, name):
        check_layout(found, title, 1280)
        panel = page.locator("#panels")
        if title == "Flow":
            assert (
                panel.locator(".flow-picture svg image").count() > 5
                and panel.locator(".flow-stages button").count() > 3
            )
        if title == "Heads":
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
        if title == "Input tokens":
            read = capture(model, **given_to(model), names=["logits"])
            n_read = len(read.target) + len(read.source) * model.is_seq2seq
            assert len(found.cells("Input tokens")) == 1 + n_read
        if title == "Units":
            n_layers = sum(size["layers"] for size in card["attention"].values())
            assert panel.get_by_role("combobox").locator("option").count() >= n_layers
        if title == "Training":
            found.until("() => document.querySelector('.live-facts')?.textContent.includes('not running')")
            assert "20 of 20" in panel.locator(".live-facts").inner_text()
            assert found.frame("Loss").locator("svg path").count() >= 2
            panel.get_by_label("numbers").select_option("learning_rate")
            assert found.frame("Loss").locator("h2").inner_text() == "Learning rate"
            panel.get_by_label("numbers").select_option("")
    assert page.locator(".architecture .box").count() == len(card["architecture"])
    rows = found.cells("Parameters")[1:]
    assert [row[0] for row in rows] == [part["name"] for part in card["parts"]]
    page.get_by_role("button", name="model", exact=True).click()
    found.settle()
    assert not page.locator(".architecture").is_visible()


@pytest.mark.parametrize("name", PANELS)
def test_each_panel_fits_a_phone(show_model: OpenModel, models: dict[str, Model], name: str) -> None:
    """So does each table of a translation, which has the most panels; the next token is a tab there."""
    found = show_model(name, {"card": 1, "beam": 8}, width=390, height=844)
    side = found.page.locator("#side")
    for title in each_panel(found, name):
        assert not side.is_visible()
        check_layout(found, title, 390)
        buttons = found.page.locator("#panels button:visible", has_text="table")
        for table in buttons.all() if name == "encoder-decoder" else ():
            table.click()
            assert found.page.evaluate(WIDE) <= 390, f"{title}: table"
            table.click()
    found.open_tab("Next token")
    n_bars = len(models[name].classify(TEXT)) if name == "classifier" else 15
    assert side.is_visible() and side.locator(".bar").count() == n_bars
    check_layout(found, "Next token", 390)
    assert found.page.locator("#tabs").evaluate("(tabs) => tabs.scrollWidth <= tabs.clientWidth"), (
        "all views are visible"
    )


def test_the_tokens_of_the_flow_stay_in_view_on_a_phone(open_model: OpenModel) -> None:
    found = open_model("decoder", {"panel": "flow"}, width=390, height=844)
    place, part = found.page.locator(".flow-picture"), found.page.locator(".flow-picture .left-part")
    shown = place.evaluate("(place) => { place.scrollLeft = 1e4; return place.scrollLeft; }")
    boxes = part.bounding_box(), place.bounding_box()
    assert shown > 100 and boxes[0] and boxes[1] and abs(boxes[0]["x"] - boxes[1]["x"]) < 1
    part.locator("text[data-index='1']").first.click()
    found.settle()
    assert found.view()["pos"] == "1", "a click on a row chooses its token"
    found.page.set_viewport_size({"width": 1280, "height": 800})
    found.settle()
    assert part.count() == 0, "a picture that fits has no copy"


def test_a_phone_shows_the_picture_before_its_explanation(open_model: OpenModel) -> None:
    found = open_model("decoder", {"panel": "lens"}, width=390, height=844)
    card = found.frame("Logit lens")
    picture, about = card.locator(".heat").bounding_box(), card.locator(".about").first.bounding_box()
    assert picture and about and picture["y"] < about["y"]
    found.page.set_viewport_size({"width": 1280, "height": 800})
    found.settle()
    picture, about = card.locator(".heat").bounding_box(), card.locator(".about").first.bounding_box()
    assert picture and about and about["y"] < picture["y"]


def test_a_large_tree_scrolls_inside_its_frame_on_a_phone(show_model: OpenModel) -> None:
    found = show_model("encoder-decoder", {"panel": "beam", "beam": 8}, width=390, height=844)
    tree = found.page.get_by_role("region", name="Tree of hypotheses")
    sizes = "(x) => [x.scrollWidth, x.clientWidth, x.querySelector('svg').getBoundingClientRect().width]"
    whole, seen, drawn = tree.evaluate(sizes)
    assert seen < 390 < drawn <= whole, "the tree scrolls inside its frame"
    tree.evaluate("(x) => x.scrollTo(x.scrollWidth, 0)")
    edges = "(x) => [x.getBoundingClientRect().right, x.querySelector('svg').getBoundingClientRect().right]"
    frame, picture = tree.evaluate(edges)
    assert picture <= frame + 1 and found.page.evaluate(WIDE) <= 390


def test_the_page_follows_the_colour_scheme(show_model: OpenModel, open_model: OpenModel) -> None:
    """A button chooses the other colours."""
    brightness = """(selector) => {
        const colour = getComputedStyle(document.querySelector(selector)).backgroundColor.match(/\\d+/g).map(Number);
        return (colour[0] + colour[1] + colour[2]) / 3;
    }"""
    pixel = """() => document.querySelector(".thumb canvas").getContext("2d").getImageData(3, 0, 1, 1).data[0]"""

    def is_light(found: Visit) -> bool:
        found.settle()
        shown = {found.page.evaluate(brightness, selector) > 128 for selector in ("body", "#input", ".thumb")}
        shown.add(found.page.evaluate(pixel) > 128)  # a weight of 0 has the colour of the paper
        assert len(shown) == 1
        return shown.pop()

    assert is_light(show_model("decoder"))
    found = open_model("decoder", scheme="dark")
    assert not is_light(found)
    for other in ("light", "dark"):
        found.page.get_by_role("button", name=other, exact=True).click()
        assert is_light(found) == (other == "light")


@pytest.mark.parametrize("name", FAMILIES)
def test_examples_run_with_a_click(show_model: OpenModel, models: dict[str, Model], name: str) -> None:
    found = show_model(name)
    first = found.tokens("written" if models[name].is_seq2seq else "target" if name == "decoder" else "source")
    before = first.all_inner_texts()
    with found.page.expect_response("**/api/run"):
        found.page.locator(".examples button").nth(1).click()
    found.settle()
    assert before and first.all_inner_texts() != before


def test_a_page_without_a_text_begins_with_the_first_example(
    models: dict[str, Model], serve: Serve, visit: Open
) -> None:
    """A page that is opened with a text does not."""
    example = {"source": "red cat", "target": "katze"}
    found = visit(serve(Inspector(models["encoder-decoder"], [example])).address + hash_of())
    boxes = found.page.locator("#input textarea")
    assert [boxes.nth(i).input_value() for i in range(2)] == [*example.values()]
    assert found.tokens("source").count() == len(models["encoder-decoder"].encode_source("red cat"))


def test_a_token_with_html_is_text(models: dict[str, Model], serve: Serve, visit: Open) -> None:
    evil = "<img src=x><script>"  # the model reads 32 tokens
    found = visit(serve(Inspector(models["decoder"], [{"text": evil}])).address + hash_of())
    before = found.page.locator("script, img").count()
    assert found.page.locator("#input textarea").input_value() == evil
    assert evil.replace(" ", "␣") in "".join(found.tokens("target").all_inner_texts())
    for title in each_panel(found, "decoder"):
        assert found.page.locator("script, img").count() == before, title
    found.page.goto(
        found.page.url.split("#")[0] + hash_of(text="<b>x</b>", panel="<img src=x onerror=alert(3)>", off="<script>")
    )
    found.page.reload()
    found.page.locator(".flow-picture svg").wait_for()  # an unknown panel is the first one
    assert found.page.locator("#input textarea").input_value() == "<b>x</b>"
    assert found.page.locator("main b").count() == 0


def test_a_pair_without_a_target_shows_what_the_model_writes(show_model: OpenModel, models: dict[str, Model]) -> None:
    found, model = show_model("encoder-decoder"), models["encoder-decoder"]
    found.run(SOURCE, "")
    written = model.encode_target(model.translate(SOURCE))[1:]
    assert found.tokens("written").count() == len(written) + 1
    found.run(SOURCE, TARGET)
    assert found.tokens("written").count() == len(model.encode_target(TARGET))
    assert found.tokens("source").count() == len(model.encode_source(SOURCE))


@pytest.mark.parametrize("name", ["decoder", "encoder-decoder"])
def test_nothing_moves_under_the_pointer(show_model: OpenModel, name: str) -> None:
    found = show_model(name, width=390, height=844)
    heights = set()
    for token in found.page.locator("#tokens .token").all():
        token.hover()
        found.settle()
        heights.add(found.page.locator("#tokens").bounding_box()["height"])  # type: ignore[index]
    assert len(heights) == 1
    found = show_model(name)
    assert found.page.locator("#tokens").bounding_box()["height"] < min(heights)  # type: ignore[index]


def test_special_tokens_show_no_bytes_and_the_colours_have_a_legend(show_model: OpenModel) -> None:
    found = show_model("encoder-decoder")
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
