"""The flow in a browser: it is the first view, its numbers are those of the model, and it is walked with the keys."""

import re
from typing import TYPE_CHECKING

import pytest
import torch

from glassformer.apps.inspector.inspector import Inspector
from glassformer.inspection.attention_maps import attention_layers
from glassformer.inspection.capture import FLOW, capture
from glassformer.model import Model
from inspector.browsing import Open, Visit, given_to, hash_of, number
from inspector.conftest import OpenModel, Serve
from tolerances import printed

if TYPE_CHECKING:
    from playwright.sync_api import Route

LAST = {"decoder": "Prediction", "encoder": "Prediction", "encoder-decoder": "Final norm", "recurrent": "States"}
"""The last stage of the first stack: only an encoder without a decoder, or a decoder, predicts."""
READ = re.compile(r"(?:score = |.* = )(−?[\d.]+)$")


def lines(found: Visit) -> list[str]:
    return found.page.locator(".flow-numbers li").all_inner_texts()


def title(found: Visit) -> str:
    return found.page.locator("#panels .frame-heading h3").inner_text()


def walk(found: Visit) -> list[str]:
    """Press the right arrow key until the last step; return the titles from the shown one on."""
    titles = [title(found)]
    while not found.page.locator(".flow-next").is_disabled():
        found.page.keyboard.press("ArrowRight")
        found.settle()
        titles.append(title(found))
    return titles


def last_number(line: str) -> float:
    match = READ.match(line)
    assert match is not None, line
    return number(match[1])


@pytest.mark.parametrize("name", LAST)
def test_the_flow_is_the_first_view_and_is_walked_with_the_keys(show_model: OpenModel, name: str) -> None:
    found = show_model(name, {"panel": ""})
    page = found.page
    assert page.get_by_role("tab", selected=True).inner_text() == "Flow"
    rows = [row.locator("button:not(.closed-block)").all_inner_texts() for row in page.locator(".flow-row").all()]
    middle = "Recurrent step layer 0, forward" if name == "recurrent" else "Query, key, value"
    assert rows[0][:2] == ["Tokens", "Embedding"] and middle in rows[0] and rows[0][-1] == LAST[name]
    page.locator(".flow-picture").focus()
    n = int(title(found).split(" of ")[1].partition(":")[0])
    for i, stage in enumerate(rows[0]):
        assert title(found).startswith(f"{i + 1} of {n}: ") and title(found).endswith(stage)
        assert page.locator(".flow-picture svg image, .flow-picture svg text").count() > 3
        page.keyboard.press("ArrowRight")
        found.settle()
    if len(rows) == 1:
        assert title(found).startswith(f"{n} of"), "the last stage stays"
    else:
        assert title(found) == f"{len(rows[0]) + 1} of {n}: Decoder · Tokens", "the decoder follows the encoder"
        assert found.view()["flow"].startswith("decoder.")
        assert "begins with the start token" in found.page.locator(".flow-sentence").inner_text()
    page.keyboard.press("ArrowLeft")
    found.settle()
    assert title(found).endswith(rows[0][-2 if len(rows) == 1 else -1])
    assert found.view()["flow"].count(".") >= 3, "the address names the place"


@pytest.mark.parametrize(
    ("name", "stack", "part"), [("decoder", "decoder", "self_attn"), ("encoder-decoder", "decoder", "cross_attn")]
)
def test_the_formula_has_the_numbers_of_the_model(
    show_model: OpenModel, models: dict[str, Model], name: str, stack: str, part: str
) -> None:
    here, head = f"{stack}.blocks.0.{part}", 1
    trace = capture(models[name], **given_to(models[name]), names=FLOW)
    scores, weights = trace[f"{here}.scores"][0, head], trace[f"{here}.weights"][0, head]
    found = show_model(name, {"panel": "flow", "flow": f"{stack}.0.{head}.{part}.scores"})
    row = len(scores) - (1 if name == "decoder" else 2)  # the last position that does not predict the end is chosen
    key = int(weights[row].argmax())  # and its strongest key
    product, score, weight = lines(found)
    q, k = trace[f"{here}.query"][0, head, row], trace[f"{here}.key"][0, head, key]
    assert last_number(product) == printed(float(q @ k), decimals=3)
    assert last_number(score) == printed(float(scores[row, key]), decimals=3)
    assert last_number(weight) == printed(float(weights[row, key]), decimals=3)
    bars = found.page.locator(".flow-bars rect title").all_text_contents()
    assert [number(text.split(": ")[1]) for text in bars] == printed((q * k).tolist(), decimals=4)
    heading = found.page.locator(".flow-zoom h3").inner_text()
    assert f"row {row} " in heading and f"key {key} " in heading
    assert number(heading.split("sum ")[1]) == printed(float(q @ k), decimals=3)


def test_the_flow_opens_at_an_induction_head(open_model: OpenModel) -> None:
    found = open_model("decoder", {"panel": ""})
    page = found.page

    def with_induction(route: "Route") -> None:
        answer = route.fetch().json()
        others = [one for one in answer["ranked"] if one["name"] != "induction"]
        copying = next(one for one in answer["ranked"] if one["name"] == "induction")
        ranked = [copying | {"kind": "decoder", "layer": 1, "head": 0, "is_found": True}, *others]
        route.fulfill(json=answer | {"ranked": ranked})

    page.route("**/scores", with_induction)
    page.reload()
    found.settle()
    page.locator(".flow-stages button", has_text="Attention").first.click()
    found.settle()
    assert page.locator(".open-block .about").inner_text() == "block 1"
    assert "Block 1, head 0 is an induction head" in page.locator(".flow-sentence").inner_text()


def test_the_cross_attention_shows_the_encoder_and_the_line_of_a_source_token(
    show_model: OpenModel, models: dict[str, Model]
) -> None:
    found = show_model("encoder-decoder", {"panel": "flow", "flow": "decoder.0.0.cross_attn.scores"})
    weights = capture(models["encoder-decoder"], **given_to(models["encoder-decoder"]), names=FLOW)
    row = weights["decoder.blocks.0.cross_attn.weights"][0, 0, -2]
    titles = found.page.locator(".flow-picture path title").all_text_contents()
    key = int(row.argmax())
    assert {f"source token {key} → encoder → s → k", "s → v", f"value {key} → context"} < set(titles)
    assert any(title.startswith(f"key {key} → scores of row ") for title in titles)
    found.page.locator(".flow-picture text", has_text=re.compile("^encoder$")).click()
    found.settle()
    assert title(found).endswith("Encoder · Final norm") and found.view()["flow"].startswith("encoder.")


@pytest.mark.parametrize("name", ["decoder", "encoder-decoder"])
def test_the_numbers_of_a_cell_are_those_of_the_trace(
    show_model: OpenModel, models: dict[str, Model], name: str
) -> None:
    """The words for a cell under the pointer, and the bars of a strip that was clicked."""
    part = "self_attn" if name == "decoder" else "cross_attn"
    found = show_model(name, {"panel": "flow", "flow": f"decoder.0.1.{part}.heads"})
    trace = capture(models[name], **given_to(models[name]), names=FLOW)
    query = trace[f"decoder.blocks.0.{part}.query"][0, 1]
    strip = found.page.locator(".flow-picture image", has=found.page.locator("title", has_text=f"{part}.query"))
    row = 1
    strip.nth(row).hover(position={"x": 1, "y": 3})
    under = found.page.locator(".flow-under").inner_text()
    cell = query[row].tolist()[: max(1, query.shape[1] // 24)]
    assert under.startswith(f"q of row {row} ") and f" {len(query[row])}" in under
    assert number(re.split(r" is |: ", under)[-1].split(",")[0]) == printed(cell[0], decimals=3 + (len(cell) == 1))
    strip.nth(row).click()
    found.settle()
    bars = found.page.locator(".flow-bars rect title").all_text_contents()
    assert [number(text.split(": ")[1]) for text in bars] == printed(query[row].tolist(), decimals=4)
    weights = trace[f"decoder.blocks.0.{part}.weights"][0, 1]
    found.page.locator(".flow-stages button", has_text="Attention").first.click()
    found.settle()
    matrix = found.page.locator(".flow-picture image:not(:has(title))").last.bounding_box()
    assert matrix is not None
    n_rows, n_keys = weights.shape
    found.page.mouse.move(
        matrix["x"] + 0.5 * matrix["width"] / n_keys, matrix["y"] + (row + 0.5) * matrix["height"] / n_rows
    )
    under = found.page.locator(".flow-under").inner_text()
    assert under.startswith(f"weights of row {row} ") and ", key 0 " in under
    assert number(under.split(": ")[-1]) == printed(float(weights[row, 0]), decimals=4)


@pytest.mark.parametrize(
    ("name", "place", "tensors"),
    [
        ("decoder", "decoder.0.1.self_attn.heads", {"q": "query", "k": "key", "v": "value"}),
        ("decoder", "decoder.0.0.ff", {"neurons": "ff.activations"}),
        ("encoder", "encoder.0.0.self_attn.heads", {"q": "query", "k": "key", "v": "value"}),
        ("encoder-decoder", "decoder.0.1.cross_attn.heads", {"q": "query"}),
        ("recurrent", "decoder.0.0.cell0", {"s": "decoder.hidden"}),
        ("recurrent", "encoder.0.0.memory", {"memory": "encoder.memory"}),
    ],
)
def test_the_table_has_the_vectors_of_the_trace(
    show_model: OpenModel, models: dict[str, Model], name: str, place: str, tensors: dict[str, str]
) -> None:
    trace = capture(models[name], **given_to(models[name]), names=FLOW)
    stack, block, head, *stage = place.split(".")
    found = show_model(name, {"panel": "flow", "flow": place})
    rows = found.cells("Flow")[1:]
    for label, tensor in tensors.items():
        part = f"{stage[0]}." if stage[-1] == "heads" else ""
        full = tensor if tensor in trace else f"{stack}.blocks.{block}.{part}{tensor}"
        x = trace[full][0]
        x = x[int(head)] if x.ndim == 3 else x
        shown = torch.tensor([[number(word) for word in cells[2].split()] for cells in rows if cells[0] == label])
        assert shown.numpy() == printed(x[: len(shown)].numpy(), decimals=3)


def test_the_gates_of_an_encoder_belong_to_its_tokens(show_model: OpenModel, models: dict[str, Model]) -> None:
    """The backward cells read from the last token to the first; the rows of the page are in the order of the text."""
    trace = capture(models["recurrent"], **given_to(models["recurrent"]), names=FLOW)
    found = show_model("recurrent", {"panel": "flow", "flow": "encoder.0.0.cell1"})
    shown = torch.tensor(
        [[number(word) for word in cells[2].split()] for cells in found.cells("Flow")[1:] if cells[0] == "h"]
    )
    assert shown.numpy() == printed(trace["encoder.cells.0.backward.state"][0].flip(0).numpy(), decimals=3)
    width = shown.shape[1]
    assert shown.numpy() == printed(trace["encoder.memory"][0][:, width:].numpy(), decimals=3)


def test_a_click_chooses_the_token_the_block_and_the_panel(show_model: OpenModel, models: dict[str, Model]) -> None:
    found = show_model("decoder", {"panel": "flow", "flow": "decoder.0.1.self_attn.scores"})
    page = found.page
    before = lines(found)
    page.locator('.flow-picture text[data-index="2"]').first.click()
    found.settle()
    assert found.view()["pos"] == "2" and lines(found) != before
    page.get_by_role("button", name="block 1", exact=True).click()
    found.settle()
    assert found.view()["flow"].startswith("decoder.1.1.")
    page.get_by_role("button", name="Open this head in Attention").click()
    found.settle()
    view = found.view()
    assert (view["panel"], view["layer"], view["head"]) == ("attention", "1", "1")


def test_the_picture_is_in_the_first_screen(open_model: OpenModel) -> None:
    found = open_model("decoder", {"panel": ""})
    for width, height in ((1280, 800), (390, 844)):
        found.page.set_viewport_size({"width": width, "height": height})
        found.settle()
        box = found.page.locator(".flow-picture").bounding_box()
        assert box is not None and box["y"] + 120 < height
        assert found.page.evaluate("document.documentElement.scrollWidth") <= width, "only the picture is scrolled"


def test_arrow_keys_choose_a_token_and_the_name_of_the_picture_has_it(show_model: OpenModel) -> None:
    found = show_model("decoder", {"panel": "flow"})
    picture = found.page.locator(".flow-picture")
    last = found.tokens("target").count() - 1
    picture.focus()
    found.page.keyboard.press("ArrowDown")
    found.page.keyboard.press("ArrowUp")
    found.settle()
    assert int(found.view()["pos"]) == last - 1, "the last token has none below it"
    assert f"token {last - 1}: " in (picture.get_attribute("aria-label") or "")
    assert "1 of " in (picture.get_attribute("aria-label") or "")


def test_a_lecture_shows_the_stage_alone_with_its_norm_and_the_choice_of_the_block(show_model: OpenModel) -> None:
    found = show_model("decoder", {"panel": "flow", "flow": "decoder.0.0.self_attn.norm"})
    columns = found.page.locator(".flow-picture svg text")
    blocks = found.page.locator("#panels .field", has_text="block").locator("select")
    assert {"q", "k", "v", "weights"} <= set(columns.all_text_contents()) and not blocks.is_visible()
    found.page.get_by_role("button", name="lecture", exact=True).click()
    found.settle()
    shown = set(columns.all_text_contents())
    assert {"token", "norm", "q", "k", "v"} <= shown and not {"weights", "x"} & shown
    assert title(found) == "3 of 7: block 0 · Query, key, value"
    blocks.select_option("1")
    found.settle()
    assert title(found) == "3 of 7: block 1 · Query, key, value"
    found.page.keyboard.press("ArrowRight")
    found.settle()
    assert title(found) == "4 of 7: block 1 · Attention", "the arrow keys do not change the block"
    assert not any("…" in text for text in columns.all_text_contents()), "no title is cut"
    found.page.keyboard.press("Escape")


def test_the_arrow_keys_go_through_the_steps_of_a_lecture(show_model: OpenModel) -> None:
    found = show_model("encoder-decoder", {"panel": "flow", "visit": 1})
    page = found.page
    page.get_by_role("tab", name="Flow").click()
    page.keyboard.press("l")
    found.settle()
    page.evaluate("document.activeElement.blur()")
    titles = walk(found)
    assert len(titles) <= 16 and not any("Norm" in one for one in titles), titles
    assert [one.split(": ")[1] for one in titles][:3] == [
        "Encoder · Tokens",
        "Encoder · Embedding",
        "Encoder · Query, key, value",
    ]
    assert titles[-1].endswith("Decoder · Prediction")
    legend = page.locator("#panels .about", has_text="A row is a token")
    assert not legend.is_visible(), "it was read at the first step"
    sizes = page.evaluate("parseFloat(getComputedStyle(document.querySelector('.flow-sentence')).fontSize)")
    zoom = page.evaluate("parseFloat(getComputedStyle(document.querySelector('#panels')).zoom)")
    assert sizes * zoom >= 22
    page.keyboard.press("ArrowLeft")
    found.settle()
    assert title(found).startswith(f"{len(titles) - 1} of ")
    page.keyboard.press("Escape")


def test_the_flow_opens_with_the_head_whose_weights_change_most(
    show_model: OpenModel, models: dict[str, Model]
) -> None:
    model = models["encoder-decoder"]
    found = show_model("encoder-decoder", {"panel": "flow"})
    for name in ("Embedding", "Attention (cross)"):
        found.page.locator(".flow-row").nth(1).get_by_role("button", name=name, exact=True).click(timeout=5000)
        found.settle()
    layers = attention_layers(capture(model, **given_to(model)), "cross")
    change = {
        (layer, head): float((rows * (rows / rows.mean(0)).log()).sum())
        for layer, heads in enumerate(layers)
        for head, rows in enumerate(heads[0])
    }
    layer, head = max(change, key=lambda place: change[place])
    assert found.view()["flow"] == f"decoder.{layer}.{head}.cross_attn.scores"
    sentence = found.page.locator(".flow-sentence").inner_text()
    assert f"the weights of block {layer}, head {head} change most" in sentence


def test_a_map_has_the_tokens_of_its_columns_and_lines_end_at_the_source(show_model: OpenModel) -> None:
    found = show_model("encoder-decoder", {"panel": "flow", "flow": "decoder.0.0.cross_attn.values", "pos": 1})
    page = found.page
    page.keyboard.press("l")
    found.settle()
    picture = page.locator(".flow-picture svg")
    source = picture.locator('text[data-side="source"]')
    box, line = source.last.bounding_box(), page.locator(".flow-picture path[stroke-width='2']")
    assert box is not None
    for one in line.all():
        path = one.bounding_box()
        assert path is not None
        is_apart = path["x"] > box["x"] + box["width"] or path["x"] + path["width"] < box["x"]
        assert is_apart, "no line through the tokens of the source"
    page.keyboard.press("ArrowLeft")
    found.settle()
    keys = picture.locator('text[data-side="source"]').all_text_contents()
    n = found.page.evaluate("document.querySelectorAll('#tokens .token[data-side=source]').length")
    assert len(keys) == 2 * n and keys[:n] == keys[n:], "above the scores, and above the weights"
    page.keyboard.press("Escape")


def test_the_chosen_row_is_in_a_low_window(open_model: OpenModel) -> None:
    found = open_model("decoder", {"panel": "", "text": "abc de fgh abc"}, height=720)
    found.until("() => document.querySelector('.flow-picture svg text[font-weight]')")
    row = found.page.locator(".flow-picture svg text[data-side=target][font-weight]").bounding_box()
    assert row is not None and row["y"] + row["height"] < 720


def test_the_residual_connection_begins_at_the_vector_that_the_sublayer_reads(show_model: OpenModel) -> None:
    found = show_model("decoder", {"panel": "flow", "flow": "decoder.1.0.self_attn.values"})
    paths = (
        "[...document.querySelectorAll('.flow-picture path')].filter((one) => one.textContent.startsWith('residual'))"
    )
    begins = found.page.evaluate(f"{paths}.map((one) => parseFloat(one.getAttribute('d').slice(1)))")
    texts = "[...document.querySelectorAll('.flow-picture text')]"
    fold = found.page.evaluate(f"{texts}.find((one) => one.textContent === 'block 0').getBBox().x")
    assert begins and min(begins) > fold - 20, "at or after the folded block 0"
    found.page.get_by_role("button", name="lecture", exact=True).click()
    found.settle()
    assert found.page.evaluate(f"{paths}.length") == 1, "from the folded block, which gives the vector x"
    found.page.keyboard.press("Escape")


def test_a_label_names_the_rows_that_it_reads_and_is_joined_to_them(
    labelled: dict[str, Model], serve: Serve, visit: Open
) -> None:
    found = visit(serve(Inspector(labelled["classes"])).address + hash_of(panel="flow", flow="encoder.0.0.output"))
    page = found.page
    assert page.locator(".flow-sentence").inner_text().endswith("The label reads all rows.")
    assert "label, from all rows" in page.locator(".flow-picture svg text").all_text_contents()
    titles = page.locator(".flow-picture path title").all_text_contents()
    rows = page.locator(".flow-picture svg text[data-index][font-size='12.5']")
    assert sum(title.endswith("→ prediction") for title in titles) == rows.count() > 1


def test_a_strip_names_its_row_and_a_neuron_leads_to_its_strongest_texts(show_model: OpenModel) -> None:
    found = show_model("decoder", {"panel": "flow", "flow": "decoder.1.0.ff"})
    strips = found.page.locator(".flow-picture image title").all_text_contents()
    assert any(re.fullmatch(r"row 0: .*, decoder\.blocks\.1\.ff\.activations", title) for title in strips)
    neuron = found.page.locator(".flow-numbers button").first
    number_of = neuron.inner_text().split(":")[0]
    neuron.click()
    found.settle()
    view = found.view()
    assert (view["panel"], view["unit"]) == ("unit", f"decoder.1.neuron.{number_of}")
    found.page.go_back()
    found.settle()
    bar = found.page.locator(".flow-bars rect:has(title)").nth(5)
    value = bar.locator("title").text_content() or ""
    bar.hover(force=True)  # a line lies over the smallest bars
    assert found.page.locator(".flow-under").inner_text() == f"number 5 is {value.split(': ')[1]}"
    bar.click(force=True)
    found.settle()
    assert found.view()["unit"] == "decoder.1.neuron.5"
