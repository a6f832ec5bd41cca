"""The exported page in a browser: a text that a visitor types is computed in the page, as Python computes it."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import glassformer
from glassformer.apps.inspector.web_file import web_file
from glassformer.config.run import GenerationConfig
from glassformer.inference.generation import Generation
from glassformer.inspection.ablation import Part, effects, effects_of_texts
from glassformer.inspection.capture import capture
from glassformer.inspection.measures import measure_of
from glassformer.inspection.patching import patch_residual, patching_of
from glassformer.inspection.strongest import strongest
from glassformer.model import Model
from inspector.browsing import SOURCE, TEXT, Open, Visit, close, given_to, hash_of, number, visits
from inspector.conftest import FAMILIES, OpenModel, PageOf, shown
from tolerances import NETWORK, near, printed

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext


@pytest.fixture(scope="module")
def web_page_of(
    models: dict[str, Model], window: "BrowserContext", tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PageOf]:
    """Export a model and open its page from the disk, once for all tests."""
    folder = tmp_path_factory.mktemp("web")

    def open_page(name: str) -> Visit:
        glassformer.export(models[name], folder / f"{name}.html", to="web")
        return visit((folder / f"{name}.html").as_uri() + hash_of(**given_to(models[name])))

    with visits(window) as visit:
        yield cache(open_page)


@pytest.fixture
def show_web(models: dict[str, Model], web_page_of: PageOf) -> Iterator[OpenModel]:
    """Show a view of the exported page of a model."""
    yield from shown(models, web_page_of)


@pytest.fixture
def offline(window: "BrowserContext") -> Iterator[None]:
    """Block the network; `visits` also requires that no page of a file makes a request."""
    window.set_offline(True)
    yield
    window.set_offline(False)


def side(model: Model) -> str:
    """Return the side of the tokens at whose positions the model predicts."""
    if model.is_seq2seq:
        return "written"
    return "target" if model.is_causal_lm else "source"


@pytest.mark.usefixtures("offline")
def test_the_cell_of_a_notebook_shows_the_page(models: dict[str, Model], window: "BrowserContext") -> None:
    cell = models["decoder"].inspect("fgh abc de", in_cell=True)
    page, errors = window.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.set_content(f"<h1>A notebook</h1>{cell._repr_html_()}")
    frame = page.frame_locator("iframe")
    frame.locator(".flow-picture svg").wait_for()
    frame.get_by_role("button", name="whole page").wait_for()
    assert not frame.locator("#input").is_visible() and not frame.locator("#tabs").is_visible(), "the picture alone"
    frame.get_by_role("button", name="whole page").click()
    assert frame.locator("#input textarea").first.input_value() == "fgh abc de"
    frame.get_by_role("tab", name="Attention", exact=True).click()
    frame.locator("#panels .thumb").first.wait_for()
    frame.locator("body:not([data-unwritten])").wait_for()  # here, another page writes its view into the address
    assert errors == []
    page.close()


def test_a_cell_changes_no_model_and_is_short_as_text(models: dict[str, Model]) -> None:
    model = replace(models["decoder"], network=deepcopy(models["decoder"].network).to(torch.bfloat16).train())
    assert len(repr(model.inspect("abc", in_cell=True))) < 100
    assert model.network.training and {x.dtype for x in model.network.parameters()} == {torch.bfloat16}


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_typed_text_has_the_predictions_of_python(name: str, models: dict[str, Model], show_web: OpenModel) -> None:
    page = show_web(name, {"panel": "attention"})
    boxes = page.page.locator("#input textarea")
    texts = ("dog red", "hund rot") if models[name].is_seq2seq else ("fgh abc de",)
    for i, text in enumerate(texts):
        boxes.nth(i).fill(text)
    page.page.get_by_role("button", name="Run", exact=True).click()
    page.settle()
    given = {"source": texts[0], "target": texts[1]} if models[name].is_seq2seq else {"text": texts[0]}
    logits = capture(models[name], **given, names=["logits"])["logits"][0]
    page.page.locator(f'#tokens .token[data-side="{side(models[name])}"]').nth(1).click()
    page.settle()
    expected = logits[1].softmax(dim=0).sort(descending=True)
    rows = page.cells("Next token")[1:]
    assert rows[0][0] == models[name].tokenizer.tokens([int(expected.indices[0])])[0]
    assert close(torch.tensor([number(row[1]) for row in rows]), expected.values[: len(rows)])


def test_the_panels_show_what_the_server_shows(
    models: dict[str, Model], show_web: OpenModel, show_model: OpenModel
) -> None:
    """The scores of heads, the logit lens and the terms of a logit on the page equal those of a server."""
    for name in FAMILIES[:3]:
        web, served = show_web(name), show_model(name)
        for tab, card in (("Heads", "Heads"), ("Logit lens", "Logit lens"), ("Attribution", "Largest terms")):
            web.open_tab(tab)
            served.open_tab(tab)
            assert web.cells(card) == served.cells(card), (name, tab)
        for page in (web, served):
            page.open_tab("Input tokens")
        web.page.get_by_role("button", name="Measure", exact=True).click()
        web.settle()
        effects, expected = ([number(row[2]) for row in page.cells("Input tokens")[1:]] for page in (web, served))
        assert close(torch.tensor(effects), torch.tensor(expected)) and len(effects) > 3
        assert "this file computes no gradients" in web.frame("Input tokens").inner_text()


def test_two_texts_are_patched_in_the_page(models: dict[str, Model], show_web: OpenModel) -> None:
    page = show_web("decoder", {"panel": "patch"})
    texts = ("abc de", "abd de", "a", "b")
    page.page.locator(".more summary").click()
    for i, text in enumerate(texts):
        page.page.locator(".fields textarea").nth(i).fill(text)
    page.page.get_by_role("button", name="Patch", exact=True).click()
    page.settle()
    expected = patch_residual(models["decoder"].network, patching_of(models["decoder"], *texts))
    assert close(page.numbers("Patching"), expected.shares)
    shown = page.frame("Patching").inner_text()
    assert f"{expected.clean:.2f} (clean)" in shown.replace("−", "-")
    assert "this file computes no gradients" in shown and "rank correlation" not in shown


def test_a_file_of_the_visitor_is_searched_in_the_page(
    models: dict[str, Model], show_web: OpenModel, tmp_path: Path
) -> None:
    """Strongest texts and effects over the texts of a file equal the functions of Python."""
    lines = ["abc de", "fgh abc", "de fgh de", "c fgh", "ab ab ab"]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    page, model = show_web("decoder", {"panel": "unit", "unit": "decoder.1.neuron.3"}), models["decoder"]
    page.page.locator("input[type=file]:not([webkitdirectory])").first.set_input_files(tmp_path / "texts.txt")
    page.page.locator(".text-set:visible .about", has_text="5 texts").first.wait_for()  # the page reads the file
    page.page.get_by_role("button", name="Find", exact=True).click()
    page.settle()
    expected = strongest(model, lines, "decoder.1.neuron").texts(3)
    rows = page.cells("Unit")[1 : 1 + len(expected)]
    assert [int(row[0]) for row in rows] == [text.number + 1 for text in expected]
    assert [number(row[1]) for row in rows] == printed([text.strength for text in expected], decimals=3)
    page.open_tab("Ablation")
    page.page.locator("details.more summary:visible").click()
    page.page.locator("details.more textarea:visible").fill("\n".join(lines))
    page.page.get_by_role("button", name="Measure these texts").click()
    page.settle()
    changes = effects_of_texts(model, lines).changes
    shown = [number(x) for x in page.page.locator(".switch").all_inner_texts()]
    assert shown == printed([changes[part] for layer in (0, 1) for part in parts_of(layer)], decimals=2)


def test_generation_is_that_of_python(models: dict[str, Model], show_web: OpenModel) -> None:
    """Steps at temperature 0 write the text of `generate`."""
    page = show_web("decoder", {"panel": "steps", "temperature": 0})
    for _ in range(6):
        page.page.get_by_role("button", name="Step", exact=True).click()
        page.settle()
    written = page.frame("Step by step").locator(".token").all_inner_texts()
    model = models["decoder"]
    settings = model.writer.settings(GenerationConfig(temperature=0, max_new_tokens=6))
    generation = Generation(model.network, [model.writer.encode(TEXT).ids], settings)
    ids = [token for step in generation for token in step.values()]
    assert [text.replace("␣", " ") for text in written] == model.tokenizer.tokens(ids)


@pytest.mark.parametrize("name", ["encoder-decoder", "recurrent"])
def test_a_target_is_the_result_of_a_greedy_search(name: str, models: dict[str, Model], show_web: OpenModel) -> None:
    page = show_web(name, {"target": "", "panel": "attention"})
    expected = models[name].translate(SOURCE, beam=1)
    ids = models[name].translator.target_ids(expected)
    assert page.tokens("written").count() == len(ids)
    assert "The target is the result of a greedy search" in page.status()
    shown = page.tokens("written").all_inner_texts()
    assert [text.replace("␣", " ") for text in shown[:-1]] == models[name].tokenizer.tokens(ids[1:])


def test_only_panels_that_the_page_computes_are_offered(show_web: OpenModel) -> None:
    assert show_web("encoder-decoder").panels() == {
        "Flow": [],
        "Attention": ["Alignment", "Heads"],
        "Why": ["Logit lens", "Attribution", "Input tokens"],
        "Change": ["Ablation", "Patching"],
        "Write": [],
        "More": [],
    }


def test_a_text_that_the_model_cannot_read_is_refused_in_one_sentence(show_web: OpenModel) -> None:
    page = show_web("decoder")
    page.page.locator("#input textarea").fill("abc " * 40)
    page.page.get_by_role("button", name="Run", exact=True).click()
    page.settle()
    assert "and the model reads at most 32: shorten it" in page.status()
    assert "the text has an id outside the vocabulary" in show_web("decoder", {"ids": "5,9999"}).status()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_flow_shows_what_the_server_shows(name: str, show_web: OpenModel, show_model: OpenModel) -> None:
    web, served = show_web(name, {"panel": "flow"}), show_model(name, {"panel": "flow"})
    for _ in range(3):
        for page in (web, served):
            page.page.get_by_role("button", name="next →", exact=True).click()
            page.settle()
        assert numbers_of(web) == near(numbers_of(served), terms=NETWORK)


def numbers_of(page: Visit) -> list[float]:
    """Return all numbers of the table of the flow."""
    texts = [text for row in page.cells("Flow")[1:] for text in row[2].split(" ")]
    return [number(text) for text in texts]


def test_the_page_measures_an_ablation(models: dict[str, Model], visit: Open, tmp_path: Path) -> None:
    model = models["decoder"]
    file = tmp_path / "page.html"
    file.write_text(web_file(model), "utf-8")
    page = visit(file.as_uri() + hash_of(text=TEXT))
    page.open_tab("Ablation")
    page.page.get_by_role("button", name="Measure all").click()
    page.settle()
    trace = capture(model, text=TEXT, names=["logits"])
    found = effects(model.network, trace.inputs, measure_of(model, trace.inputs))
    shown = [number(x) for x in page.page.locator(".switch").all_inner_texts()]
    expected = [found.changes[part] for layer in (0, 1) for part in parts_of(layer)]
    assert shown == printed(expected, decimals=2)
    page.page.locator(".switch").first.click()
    page.settle()
    assert "with 1 part off" in page.frame("Parts").inner_text()


def parts_of(layer: int) -> list[Part]:
    """Return the parts of a layer of the decoder, in the order of the page."""
    heads = [Part("decoder", layer, head) for head in (0, 1)]
    return [*heads, Part("decoder", layer, feed_forward=True), Part("decoder", layer)]
