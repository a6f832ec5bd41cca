"""All heads in a browser: the lines of all layers, in one colour per head, and the table of scores and effects."""

import math
import re

from glassformer.inspection.ablation import Part, effects, effects_of_texts
from glassformer.inspection.attention_maps import attention_layers
from glassformer.inspection.capture import capture
from glassformer.inspection.head_scores import network_scores, random_scores
from glassformer.inspection.measures import logit_measure
from glassformer.model import Model
from glassformer.models.transformer import Transformer
from inspector.browsing import ROWS, TEXT, given_to
from inspector.conftest import OpenModel
from tolerances import printed

LINES = "#panels .grid-and-found svg path title"
READ = re.compile(r"layer (\d+), head (\d+): .* \((\d+)\) reads .* \((\d+)\), weight ([\d.]+)$")
Line = tuple[int, int, int, int]


def test_the_lines_are_the_weights_of_all_layers(open_model: OpenModel, models: dict[str, Model]) -> None:
    found, model = open_model("decoder", {"heads": "lines", "all": 1}), models["decoder"]
    layers = attention_layers(capture(model, **given_to(model)), "decoder")

    def shown() -> dict[Line, float]:
        found.settle()
        matches = [READ.search(text) for text in found.page.locator(LINES).all_text_contents()]
        assert None not in matches
        groups = [match.groups() for match in matches if match]
        return {(int(a), int(b), int(c), int(d)): float(weight) for a, b, c, d, weight in groups}

    lines = shown()
    heads = [(layer, head) for layer, x in enumerate(layers) for head in range(x.shape[1])]
    assert {(layer, head) for layer, head, *_ in lines} == set(heads)
    for (layer, head, row, key), weight in lines.items():
        assert abs(float(layers[layer][0, head, row, key]) - weight) < 0.008, "a weight is sent with 8 bits"
    n_large = sum(int((x > 0.06).sum()) for x in layers)
    assert len(lines) >= n_large, "no line of a large weight is left out"
    found.page.get_by_role("button", name="head 1", exact=True).click()
    assert shown() == {line: weight for line, weight in lines.items() if line[1] == 1}
    found.page.get_by_role("button", name="token under the pointer").first.click()
    last = layers[0].shape[2] - 1
    assert shown() == {line: weight for line, weight in lines.items() if line[1] == 1 and line[2] == last}


def test_the_table_of_heads_has_their_scores_and_effects(open_model: OpenModel, models: dict[str, Model]) -> None:
    found, model = open_model("decoder", {"heads": "table"}), models["decoder"]
    table, network = found.page.locator(".grid-and-found > .scroll-x .atlas"), model.network
    assert isinstance(network, Transformer)
    found.until("() => document.querySelector('.atlas')?.textContent.includes('switched off')")
    found.page.get_by_role("button", name="on this text").click()
    headings, *rows = table.locator("tr").evaluate_all(ROWS)
    assert all(name.endswith("this text") for name in headings[1:]), "the text of each column"
    names = [name.removesuffix("this text") for name in headings]
    inputs = capture(model, **given_to(model)).inputs
    scores = network_scores(network, inputs)["decoder"]
    changes = effects_of_texts(model, [TEXT]).changes
    assert names[0] == "head" and names[-1] == "switched off"
    for name, *values in rows:
        layer, head = map(int, name.split("."))
        for score, shown in zip(names[1:-1], values, strict=False):
            plain = score in ("entropy", "sharpness")
            value = scores[layer].heads[head][score] if plain else scores[layer].excess(head, score)
            assert shown == "–" if math.isnan(value) else float(shown.replace("−", "-")) == printed(value, 2)
        effect = changes[Part("decoder", layer, head=head)]
        assert float(values[-1].replace("−", "-")) == printed(effect, 3)
    order = [float(row[-1].replace("−", "-")) for row in rows]
    assert order == sorted(order, reverse=True)
    found.page.get_by_role("button", name="on repeated random tokens").click()
    assert all(name.endswith("random tokens") for name in table.locator("th[aria-sort]").all_inner_texts()[:-1])
    random = random_scores(model)["decoder"]
    for name, value, *_ in table.locator("tr").evaluate_all(ROWS)[1:]:
        layer, head = map(int, name.split("."))
        assert float(value.replace("−", "-")) == printed(random[layer].excess(head, "previous"), 2)
    table.get_by_role("button", name="previous").click()
    assert table.locator("th[aria-sort=descending]").inner_text().split("\n")[0] == "previous"
    arrow = "(heading) => getComputedStyle(heading.querySelector('button'), '::after').content"
    assert "↓" in table.locator("th[aria-sort=descending]").evaluate(arrow)
    assert table.locator("th[aria-sort=none]").first.evaluate(arrow) == "none"
    downwards = [row[1] for row in table.locator("tr").evaluate_all(ROWS)[1:]]
    table.get_by_role("button", name="previous").click()
    assert "↑" in table.locator("th[aria-sort=ascending]").evaluate(arrow)
    upwards = [float(row[1].replace("−", "-")) for row in table.locator("tr").evaluate_all(ROWS)[1:]]
    assert upwards == sorted(upwards) and sorted(upwards) == sorted(float(x.replace("−", "-")) for x in downwards)
    table.locator("tbody tr").first.get_by_role("button").click()
    found.settle()
    place = found.view()
    found.page.get_by_role("button", name="← all heads").click()
    found.until("(name) => document.activeElement.textContent === name", f"{place['layer']}.{place['head']}")
    found.page.get_by_role("button", name="table", exact=True).last.click()
    header, *saved = found.cells("Heads")
    assert header[-1] == "effect" and len(saved) == len(rows)


def test_the_table_of_heads_measures_the_logit_of_the_ablations(
    open_model: OpenModel, models: dict[str, Model]
) -> None:
    found = open_model("decoder", {"heads": "table", "measure": "logit", "answer": "a", "wrong": "b"})
    model = models["decoder"]
    table = found.page.locator(".grid-and-found > .scroll-x .atlas")
    found.until("() => document.querySelector('.atlas')?.textContent.includes('logit of a − logit of b')")
    inputs = capture(model, **given_to(model)).inputs
    expected = effects(model.network, inputs, logit_measure(model, inputs, "a", "b")).heads("decoder")
    for name, *_, value in table.locator("tr").evaluate_all(ROWS)[1:]:
        layer, head = map(int, name.split("."))
        assert float(value.replace("−", "-")) == printed(expected[layer][head], 3)
