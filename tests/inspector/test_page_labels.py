"""The inspector of models with labels: every panel shows the numbers of `classify` and `tag`."""

from typing import TYPE_CHECKING, Any

import pytest

import glassformer
from glassformer.inspection.ablation import effects
from glassformer.inspection.capture import encoded
from glassformer.inspection.measures import measure_of
from glassformer.model import Model
from inspector.browsing import Open, Visit, hash_of, number, percents
from inspector.conftest import LABELS, Serve
from inspector.direct import Inspector
from tolerances import near, printed

if TYPE_CHECKING:
    from playwright.sync_api import Locator

TEXT = "the dog red"
POSITION = 2
"""Position of "dog", the second word, after the start token."""
OFF = "encoder.0.head.1"


def answer_of(model: Model) -> dict[str, float]:
    """Return what the verb of a model answers for `TEXT`; of a tagger, the tag of the second word."""
    if model.task.verb == "classify":
        return model.classify(TEXT)
    tag, probability = model.tag(TEXT)[1]
    return {tag: probability}


def sent(outcome: dict[str, Any]) -> dict[str, float]:
    """Return the same from an answer of the inspector: a run, or one side of an ablation."""
    if outcome["number"] is not None:
        return {"number": outcome["number"]}
    if outcome["labels"] is not None:
        return {label["name"]: label["probability"] for label in outcome["labels"]}
    _, tag, probability = outcome.get("positions", outcome.get("source"))[POSITION]["top"][0]
    return {tag: probability}


def shown(place: "Locator", answer: dict[str, float]) -> dict[str, float]:
    """Return the part of an answer that a place of the page shows, as labels with bars or as a number."""
    if "number" in answer:
        return {"number": number(place.locator(".number, .facts").first.inner_text())}
    names, texts = (place.locator(f".bar-{part}").all_inner_texts() for part in ("label", "text"))
    found = dict(zip(names, percents(texts), strict=True))
    return {name: found[name] for name in answer}


@pytest.mark.parametrize("kind", LABELS)
def test_every_answer_has_the_numbers_of_the_verb(labelled: dict[str, Model], kind: str) -> None:
    model = labelled[kind]
    inspector, intact = Inspector(model), answer_of(model)
    with model.ablate(OFF):
        without = answer_of(model)
    assert without != intact
    run = inspector.run(text=TEXT)
    ablated = inspector.ablate(run["run"], OFF)
    for found, expected in ((run, intact), (ablated["before"], intact), (ablated["after"], without)):
        assert sent(found) == near(expected)
    inputs = encoded(model, TEXT).inputs
    measured = effects(model.network, inputs, measure_of(model, inputs))
    assert inspector.effects(run["run"])["encoder"][0][1] == near(measured.heads("encoder")[0][1])
    assert ablated["after"]["loss"] == near(measured.heads("encoder")[0][1])


@pytest.mark.parametrize("kind", LABELS)
def test_every_panel_shows_the_numbers_of_the_verb(
    labelled: dict[str, Model], serve: Serve, visit: Open, kind: str
) -> None:
    model = labelled[kind]
    view = {"text": TEXT, "pos": POSITION, "panel": "ablation", "off": "encoder.0.1"}
    found: Visit = visit(serve(Inspector(model)).address + hash_of(**view))
    found.until("() => document.querySelector('#side .changes').textContent.includes('Without encoder.0')")
    intact = answer_of(model)
    with model.ablate(OFF):
        without = answer_of(model)
    card = found.page.locator("#side")
    before, after = (found.page.locator("#panels .pair > div").nth(i) for i in (0, 1))
    assert shown(before, intact) == printed(intact, decimals=3)
    assert shown(after, without) == shown(card, without) == printed(without, decimals=3)
    assert not found.frame("Change per position").is_visible(), "no token has a probability"
    explained = "The labels are independent"
    assert (explained in card.inner_text()) is (explained in found.frame("Parts").inner_text()) is model.is_multi_label
    effect = "mean |output after − output before|" if kind == "regression" else "KL(before ‖ after)"
    assert found.frame("Parts").locator(".formula").inner_text() == f"effect = {effect}"
    headings = {"regression": "Number", "tags": f"Labels at position {POSITION}: dog</w>"}
    assert headings.get(kind, "Labels") in found.page.locator("#panels h2:visible").all_inner_texts()
    formulas = {"multi_label": "p = sigmoid(logit)", "regression": "number = mean + std · output"}
    assert card.locator(".formula").inner_text() == formulas.get(kind, "p = softmax(logits)")
    found.open_tab("Heads")
    assert shown(card, intact) == printed(intact, decimals=3)
    assert model.folder is not None
    found.open_tab("Compare")
    earlier = glassformer.load(model.folder, step=int(found.view()["step"]))
    second = answer_of(earlier)
    facts = found.frame("Second model").inner_text()
    assert "nats per token" not in facts, "a label has no loss"
    assert not found.frame("Difference per token").is_visible(), "no token has a probability"
    if kind == "regression":
        assert f"number {intact['number']:.4f} (first), {second['number']:.4f} (second)" in facts
    else:
        assert shown(found.page.locator("#panels .bars").first, second) == printed(second, decimals=3)


@pytest.mark.parametrize("kind", LABELS)
def test_the_flow_names_the_vectors_that_the_labels_read(
    labelled: dict[str, Model], serve: Serve, visit: Open, kind: str
) -> None:
    found = visit(
        serve(Inspector(labelled[kind])).address + hash_of(text=TEXT, panel="flow", flow="encoder.0.0.output")
    )
    read = "The vector of the chosen token" if kind == "tags" else "The mean of the vectors of all tokens"
    if kind != "regression":  # a number has no probabilities, and so no last stage
        assert found.page.locator(".flow-sentence").inner_text().startswith(f"{read} gives a score")
