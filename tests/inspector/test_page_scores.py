"""Attribution, sets of texts and strongest texts: the answers equal the functions, and the page shows the answers."""

from dataclasses import asdict
from typing import Any

import pytest
import torch

from glassformer.apps.inspector import inspector as inspector_module
from glassformer.apps.inspector.worker import Worker
from glassformer.common.errors import UserError
from glassformer.inspection.ablation import MEANS, effects, effects_of_texts
from glassformer.inspection.attribution import logit_attribution
from glassformer.inspection.input_effects import input_effects
from glassformer.inspection.measures import logit_measure
from glassformer.inspection.patching import patch_pairs, patching_of, rank_correlation
from glassformer.inspection.strongest import strongest
from glassformer.model import Model
from inspector.browsing import TEXT, Visit, given_to, number
from inspector.conftest import OpenModel
from inspector.direct import Inspector
from tolerances import printed

LINES = ["abc de", "fgh abc de", "de de abc", "", "hij fgh", "abc fgh de", "cc dd"]
GIVEN = [line for line in LINES if line]
MORE = {"more_clean": ["abd de\ta", "abc de\tb"], "more_corrupted": ["abc de\tb", "abd de\td"]}
PAIR = ("abc de", "abd de", "a", "b")


@pytest.mark.parametrize(("family", "words"), [("decoder", ("a", "b")), ("encoder-decoder", ("hund", "katze"))])
def test_an_attribution_equals_the_function(models: dict[str, Model], family: str, words: tuple[str, str]) -> None:
    model = models[family]
    inspector = Inspector(model)
    run = inspector.run(**given_to(model))["run"]
    trace = inspector.runs[run].trace
    for position, token, against in ((None, None, None), (1, *words)):
        found = inspector.attribution(run, position=position, token=token or "", against=against or "")
        expected = logit_attribution(model, trace, token, against, position)
        terms = {name: asdict(term) | {"is_beyond": term.is_beyond} for name, term in expected.terms.items()}
        assert found["terms"] == terms and found["logit"] == expected.logit
        ids = [one for one in (expected.token, expected.against) if one is not None]
        assert [one for one in (found["token"], found["against"]) if one] == model.tokenizer.tokens(ids)
        assert found["position"] == (len(trace.target) - 1 if position is None else position)
        assert (found["cells"], found["rows"], found["columns"]) == expected.grid()


def test_only_models_whose_logits_are_sums_have_the_panel(models: dict[str, Model]) -> None:
    has_it = {family: Inspector(model).card()["is_additive"] for family, model in models.items()}
    norms = {family: getattr(model.config, "norm_order", None) for family, model in models.items()}
    assert has_it["decoder"] and not has_it["recurrent"] and not has_it["classifier"]
    assert all(norms[family] != "post" for family, found in has_it.items() if found)


@pytest.mark.parametrize("family", ["decoder", "encoder", "recurrent"])
def test_effects_over_texts_equal_the_function(models: dict[str, Model], family: str) -> None:
    model = models[family]
    lines = ["red dog\thund rot", "cat sees\tsieht katze"] if model.is_seq2seq else LINES
    inspector = Inspector(model)
    found = inspector.effects_of_set(lines, mean=True)
    expected = effects_of_texts(model, [line for line in lines if line], by_mean=True)
    assert found["n_texts"] == expected.n_texts and inspector.progress == (0, 0), "no work is left"
    assert found["loss"] == pytest.approx(expected.before)
    for part, beside in expected.beside_others().items():
        sent = found["beside"][str(part)]
        assert sent["mean"] == pytest.approx(beside.own.mean) and sent["is_beyond"] is beside.is_beyond
        assert sent["deviation"] == pytest.approx(beside.own.deviation)
    for given, message in (([" ", ""], "there is no text: write one per line"), (["a"] * 2001, "at most 2,000")):
        with pytest.raises(UserError, match=message):
            inspector.effects_of_set(given)


def test_work_on_a_set_of_texts_ends_before_the_deadline(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Worker().deadline > inspector_module.MAX_SECONDS
    monkeypatch.setattr(inspector_module, "MAX_SECONDS", -1)
    inspector = Inspector(models["decoder"])
    message = "[01] of 2 took 0 s, and a request may take -1: give fewer or shorter texts"
    calls = (
        lambda: inspector.effects_of_set(GIVEN[:2]),
        lambda: inspector.patch(*PAIR, more_clean=["abd de\ta"], more_corrupted=["abc de\tb"]),
        lambda: inspector.strongest(GIVEN[:2], "decoder.0.head", 0),
    )
    for call in calls:
        with pytest.raises(UserError, match=message):
            call()
    assert inspector.effects_of_set(GIVEN[:1])["n_texts"] == 1, "the last text is always done"


@pytest.mark.parametrize("parts", ["positions", "heads"])
def test_patching_over_pairs_equals_the_function(models: dict[str, Model], parts: Any) -> None:
    model = models["decoder"]
    found = Inspector(model).patch(*PAIR, parts=parts, **MORE)
    texts = [PAIR, ("abd de", "abc de", "a", "b"), ("abc de", "abd de", "b", "d")]
    exact, estimated = patch_pairs(model.network, [patching_of(model, *both) for both in texts], parts)
    assert found["map"] == exact.shares.tolist() and found["estimate"] == estimated.shares.tolist()
    assert found["correlation"] == pytest.approx(rank_correlation(exact, estimated))
    assert found["n_texts"] == 3 and found["columns"] == exact.columns
    beside = exact.beside_others()
    assert found["beside"][1][0]["deviation"] == pytest.approx(beside[1, 0].own.deviation)
    for given, message in (
        ({"more_clean": ["abc"]}, "there are 1 more clean texts and 0 corrupted ones"),
        ({"more_clean": ["a"] * 201, "more_corrupted": ["b"] * 201}, "a request takes at most 200"),
        ({"more_clean": ["a\tb"], "more_corrupted": ["c d\te"]}, r"pair 2: the clean text has \d tokens"),
        ({"parts": "all"}, "parts: expected positions or heads, got 'all'"),
        ({"stack": "cross", "parts": "heads"}, "stack: expected encoder or decoder, got 'cross'"),
    ):
        with pytest.raises(UserError, match=message):
            Inspector(model).patch(*PAIR, **given)


def test_strongest_texts_equal_the_function_and_are_searched_once(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["decoder"]
    inspector, expected = Inspector(model), strongest(model, GIVEN, "decoder.1.neuron")
    searches: list[str] = []
    monkeypatch.setattr(
        "glassformer.apps.inspector.panels.tokens.strongest",
        lambda *given, **named: searches.append(given[2]) or expected,
    )
    for unit in (0, 3):
        found = inspector.strongest(LINES, "decoder.1.neuron", unit)
        assert (found["median"], found["high"]) == expected.baseline(unit)
        assert (found["n_texts"], found["n_units"]) == (len(GIVEN), expected.n_units)
        for sent, text in zip(found["texts"], expected.texts(unit), strict=True):
            assert (sent["number"], sent["strength"], sent["tokens"]) == (text.number, text.strength, text.tokens)
            assert sent["activity"][0] is None and sent["activity"][1:] == text.activity[1:]
    inspector.strongest(LINES, "decoder.0.neuron", 0)
    assert searches == ["decoder.1.neuron", "decoder.0.neuron"]
    with pytest.raises(UserError, match="there is no neuron 999"):
        inspector.strongest(LINES, "decoder.0.neuron", 999)
    lines = inspector.texts()["lines"]
    assert lines and all(line.strip() and "\n" not in line for line in lines)


def test_the_page_shows_the_scores(open_model: OpenModel, models: dict[str, Model]) -> None:
    found, model = open_model("decoder", {"panel": "attribution"}), models["decoder"]
    check_attribution(found, model)
    check_texts(found, model)
    check_ablation(found, model)
    check_patching(found, model)


def check_attribution(found: Visit, model: Model) -> None:
    expected = model.logit_attribution(TEXT)
    rows = {row[0]: row[1:] for row in found.cells("Attribution")[1:]}
    assert rows.keys() == expected.terms.keys()
    for name, term in expected.terms.items():
        shown = [number(cell) for cell in rows[name][:3]]
        assert shown == printed([term.value, term.mean, term.deviation], figures=3)
        assert (rows[name][3] == "yes") is term.is_beyond
    assert f"{expected.logit:.2f}".replace("-", "−") in found.frame("Attribution").locator(".detail").first.inner_text()
    fields = found.frame("Attribution").locator("input[type=text]")
    for field, token in zip(fields.all(), ("a", "b"), strict=True):
        field.fill(token)
        field.press("Enter")
        found.settle()
    assert found.view()["answer"] == "a" and found.view()["wrong"] == "b"
    pair = model.logit_attribution(TEXT, "a", "b")
    rows = {row[0]: row[1:] for row in found.cells("Attribution")[1:]}
    for name, term in pair.terms.items():
        shown = [number(cell) for cell in rows[name][:2]]
        assert shown == printed([term.value, term.deviation], figures=3), "a difference has no mean"
    assert "random token" not in found.page.locator("#panels").inner_text()
    check_input_tokens(found, model)


def check_input_tokens(found: Visit, model: Model) -> None:
    found.open_tab("Input tokens")
    expected = input_effects(model, model.trace(TEXT), "a", "b")
    assert found.numbers("Input tokens", 2)[:, 0].numpy() == printed(expected.exact.numpy(), figures=3)
    shown = found.frame("Input tokens").locator(".token").all_inner_texts()
    assert [number(text.split("\u2002")[1]) for text in shown] == printed(expected.exact.tolist(), decimals=2)
    facts = found.frame("Input tokens").locator(".detail").first.inner_text().replace("−", "-")
    assert f": {expected.logit:.2f}; rank correlation" in facts and f" {expected.correlation:.2f}" in facts
    check_logits_of_ablations(found, model)


def check_logits_of_ablations(found: Visit, model: Model) -> None:
    """The measure is the difference of the logits of the fields; both grids of replacements are kept."""
    found.open_tab("Ablation")
    card, grids = found.frame("Parts"), []
    card.get_by_role("button", name="a logit at the position").click()
    for mean in (False, True):
        card.get_by_role("button", name="replace by the mean" if mean else "replace by 0").click()
        found.settle()
        trace = model.trace(TEXT, names=[*MEANS, "logits"])
        measure = logit_measure(model, trace.inputs, "a", "b")
        expected = effects(model.network, trace.inputs, measure, means=trace if mean else None)
        grids.append(found.numbers("Parts"))
        assert grids[-1][:, :2].numpy() == printed(torch.tensor(expected.heads("decoder")).numpy(), figures=3)
    assert "as the change of this number: logit of a − logit of b" in card.inner_text()
    low, high = (number(text) for text in card.locator(".legend > span:not(.legend-bar)").all_inner_texts())
    assert high == -low == printed(float(grids[-1][:, :2].abs().max()), decimals=2)
    requests = len(found.requests)
    card.get_by_role("button", name="replace by 0").click()
    found.settle()
    assert torch.equal(found.numbers("Parts"), grids[0]) and len(found.requests) == requests
    card.get_by_role("button", name="loss of the text").click()


def check_texts(found: Visit, model: Model) -> None:
    found.open_tab("Units")
    card = found.frame("Unit")
    card.locator("summary", has_text="the texts that are searched").click()
    card.locator("textarea").fill("\n".join(LINES))
    card.get_by_role("combobox").select_option("decoder.1.neuron")
    card.get_by_role("spinbutton").fill("3")
    for _ in range(2):  # the page is drawn while the field has the focus
        found.page.locator("#header button[title*=dark]").evaluate("(button) => button.click()")
        found.settle()
    card.get_by_role("spinbutton").press("Enter")
    card.get_by_role("button", name="Find").click()
    found.settle()
    expected = strongest(model, GIVEN, "decoder.1.neuron")
    texts, (median, _) = expected.texts(3), expected.baseline(3)
    raised, lowered = (list(side.items()) for side in expected.tokens(3))
    rows = found.cells("Unit")[1:]
    moved, rows = rows[len(texts) :], rows[: len(texts)]
    assert [row[0] for row in moved] == [token.replace(" ", "␣") for token, _ in raised + lowered]
    assert [number(row[1]) for row in moved] == printed([effect for _, effect in raised + lowered], figures=4)
    assert card.locator(".unit-facts svg").is_visible() is (len(GIVEN) >= 10), "the histogram"
    assert [int(row[0]) - 1 for row in rows] == [text.number for text in texts]
    assert [number(row[1]) for row in rows] == printed([text.strength for text in texts], figures=4)
    assert number(rows[0][2]) == printed(median, figures=4)
    assert card.locator(".strong-texts .token").count() == sum(len(text.tokens) for text in texts)
    assert found.view()["unit"] == "decoder.1.neuron.3"
    card.get_by_role("button", name="texts of the model").click()
    found.settle()
    assert card.locator("textarea").input_value().splitlines() == Inspector(model).texts()["lines"]


def check_ablation(found: Visit, model: Model) -> None:
    found.open_tab("Ablation")
    card = found.frame("Parts")
    card.locator("summary", has_text="a set of texts").click()
    card.locator("textarea").fill("\n".join(LINES))
    card.get_by_role("button", name="Measure these texts").click()
    found.settle()
    expected = effects_of_texts(model, GIVEN).beside_others()
    rows = {row[0]: row[1:] for row in found.cells("Parts")[1:]}
    assert rows.keys() == {str(part) for part in expected}
    for part, beside in expected.items():
        own = beside.own
        numbers = [own.mean, own.deviation, *own.quartiles, beside.baseline]
        assert [number(x) for x in rows[str(part)][:6]] == printed(numbers, figures=3)
        assert (rows[str(part)][6] == "yes") is beside.is_beyond
    switch = found.page.get_by_role("switch", name="decoder.0.1")
    assert "mean of the others" in (switch.get_attribute("title") or "")
    assert f"Means over {len(GIVEN)} texts" in card.inner_text()


def check_patching(found: Visit, model: Model) -> None:
    found.open_tab("Patching")
    card = found.frame("Patching")
    card.locator("summary", has_text="more pairs").click()
    for field, text in zip(card.locator(".fields textarea").all(), PAIR, strict=True):
        field.fill(text)
    card.get_by_role("button", name="heads", exact=True).click()
    card.get_by_role("button", name="Patch", exact=True).click()
    found.settle()
    pair = patching_of(model, *PAIR)
    exact, estimated = patch_pairs(model.network, [pair], "heads")
    assert found.numbers("Patching").numpy() == printed(exact.shares.numpy(), figures=3)
    card.get_by_role("button", name="estimate by the gradient").click()
    assert found.numbers("Patching").numpy() == printed(estimated.shares.numpy(), figures=3)
    correlation = f"{rank_correlation(exact, estimated):.2f}".replace("-", "−")
    assert f"rank correlation of exact and estimate {correlation}" in card.inner_text()
    for area, lines in zip(card.locator(".text-set textarea").all(), MORE.values(), strict=True):
        area.fill("\n".join(lines))
    card.get_by_role("button", name="Patch", exact=True).click()
    found.settle()
    rows = found.cells("Patching")[1:]
    assert "means over 3 pairs" in card.inner_text() and len(rows) == exact.shares.numel()
