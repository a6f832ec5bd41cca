"""The lines of all layers in a browser: one colour per head, and the lines of the chosen token and head only."""

import re

from glassformer.inspection.attention_maps import attention_layers
from glassformer.inspection.capture import capture
from glassformer.model import Model
from inspector.browsing import given_to
from inspector.conftest import OpenModel

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
