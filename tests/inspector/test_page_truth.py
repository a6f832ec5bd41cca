"""One model, one text and one panel: parts of the inspector page that belong to another are dim, gone or named."""

from dataclasses import replace
from pathlib import Path

import pytest

import glassformer
from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.gallery import Gallery
from glassformer.apps.inspector.inspector import Inspector
from glassformer.config.run import GenerationConfig
from glassformer.config.schema import to_dict
from glassformer.config.written import to_toml
from glassformer.inspection.ablation import ablate
from glassformer.inspection.capture import capture
from glassformer.model import Model
from inspector.browsing import SOURCE, TARGET, TEXT, Open, Visit, hash_of, percents
from inspector.conftest import OpenModel, Serve
from tolerances import printed

LOADED = "() => document.querySelector('#side .facts').textContent.includes('can be chosen')"


def loss_shown(found: Visit) -> float:
    """Return the loss of the line above the tokens."""
    words = found.page.locator("#tokens .facts").inner_text().split()
    return float(words[1])


def loss_of(model: Model, text: str) -> float:
    return float(model.score(text, log=str).nats_per_token)


def test_two_tabs_keep_their_own_models(models: dict[str, Model], serve: Serve, visit: Open) -> None:
    model = models["decoder"]
    served = serve(Inspector(model))
    first = visit(served.address + hash_of(text=TEXT))
    second = visit(served.address + hash_of(text=TEXT, checkpoint=f"{model.folder}@10"))
    other = glassformer.load(model.folder, step=10)
    for text in ("abc", "fgh"):
        for found, expected in ((second, other), (first, model)):
            found.run(text)
            assert loss_shown(found) == printed(loss_of(expected, text), decimals=3)
            assert f"step {expected.step}" in found.page.locator("#header").inner_text()
    first.view()  # the address is written
    first.page.reload()
    first.tokens("target").first.wait_for()
    first.settle()
    assert loss_shown(first) == printed(loss_of(model, "fgh"), decimals=3)


def test_two_tabs_of_a_gallery_keep_their_own_models(
    models: dict[str, Model], serve: Serve, visit: Open, tmp_path: Path
) -> None:
    (tmp_path / "gallery").mkdir()
    for name, family in (("first", "decoder"), ("second", "encoder-decoder")):
        (tmp_path / f"{name}.toml").write_text(to_toml(to_dict(models[family].run)))
        folder = models[family].folder
        assert folder is not None
        (tmp_path / "gallery" / name).symlink_to(folder)
    sources = {name: str(tmp_path / f"{name}.toml") for name in ("first", "second")}
    served = serve(Inspector(None, gallery=Gallery(tmp_path / "gallery", sources)))
    tabs = {name: visit(served.address + hash_of()) for name in sources}
    for name, found in tabs.items():
        found.page.get_by_label(name, exact=True).get_by_role("button", name="Open").click()
        found.page.locator("#tokens .token").first.wait_for()
        found.settle()
    tabs["first"].run(TEXT)
    assert loss_shown(tabs["first"]) == printed(loss_of(models["decoder"], TEXT), decimals=3)
    tabs["second"].run(SOURCE, TARGET)
    score = models["encoder-decoder"].score(TARGET, source=SOURCE)
    assert loss_shown(tabs["second"]) == printed(float(score.nats_per_token), decimals=3)
    tabs["first"].open_tab("Logit lens")
    assert tabs["first"].status() == ""


def test_a_model_that_the_server_does_not_have_is_refused(models: dict[str, Model], serve: Serve, visit: Open) -> None:
    served = serve(Inspector(models["decoder"]))
    found = visit(served.address + hash_of(text=TEXT), refusals=True)
    found.show(hash_of(text=TEXT, checkpoint="runs/other@7"))
    found.page.get_by_role("button", name="Open ").wait_for()
    assert "has not opened the folder 'runs/other'" in found.status()
    assert found.page.locator("#tokens .token:visible").count() == 0
    found.page.get_by_role("button", name="Open ").click()
    found.tokens("target").first.wait_for()
    found.settle()
    assert loss_shown(found) == printed(loss_of(models["decoder"], TEXT), decimals=3)


@pytest.mark.parametrize("name", ["decoder", "encoder-decoder"])
def test_the_card_shows_the_ablated_model_beside_its_panel(
    show_model: OpenModel, models: dict[str, Model], name: str
) -> None:
    model = models[name]
    found = show_model(name, {"panel": "ablation", "kind": "decoder", "off": "decoder.0.1,decoder.0.ff", "pos": 2})
    found.until(LOADED)
    given = {"source": SOURCE, "target": TARGET} if model.is_seq2seq else {"text": TEXT}
    with ablate(model, ["decoder.0.head.1", "decoder.0.feed_forward"]):
        expected = capture(model, **given, names=["logits"])["logits"][0, 2].softmax(-1)
    card = found.page.locator("#side .bar-text").all_inner_texts()
    after = found.frame("Most probable tokens").locator(".pair > div").nth(1).locator(".bar-text").all_inner_texts()
    assert card[:5] == after, "one screen shows one number for one token"
    assert percents(card) == printed(expected.sort(descending=True).values[:15].tolist(), decimals=3)
    assert "Without decoder.0.head.1, decoder.0.feed_forward." in found.page.locator("#side .changes").inner_text()
    found.open_tab("Heads")
    found.until(LOADED)
    intact = capture(model, **given, names=["logits"])["logits"][0, 2].softmax(-1)
    shown = percents(found.page.locator("#side .bar-text").all_inner_texts())
    assert shown == printed(intact.sort(descending=True).values[:15].tolist(), decimals=3)
    assert found.page.locator("#side .changes").inner_text() == ""


def test_the_card_shows_the_ablated_labels(show_model: OpenModel, models: dict[str, Model]) -> None:
    found = show_model("classifier", {"panel": "ablation", "off": "encoder.0.all"})
    with ablate(models["classifier"], ["encoder.0"]):
        expected = models["classifier"].classify(TEXT)
    found.until("() => document.querySelector('#side .changes').textContent.includes('Without encoder.0.')")
    labels, texts = (found.page.locator(f"#side .bar-{part}").all_inner_texts() for part in ("label", "text"))
    shown = dict(zip(labels, texts, strict=True))
    assert percents(list(shown.values())) == printed([expected[name] for name in shown], decimals=3)


def test_the_probabilities_of_the_model_are_the_default(models: dict[str, Model], serve: Serve, visit: Open) -> None:
    model = replace(models["decoder"], generation=GenerationConfig(temperature=0.7, top_k=50))
    found = visit(serve(Inspector(model)).address + hash_of(text=TEXT, pos=2))
    found.until(LOADED)
    own = capture(model, TEXT)["logits"][0, 2].softmax(-1).sort(descending=True).values[:15]
    texts = found.page.locator("#side .bar-text")
    assert percents(texts.all_inner_texts()) == printed(own.tolist(), decimals=3)
    found.set_slider("temperature", 0.7)
    changes = found.page.locator("#side .changes")
    assert "temperature 0.7" in changes.inner_text()
    assert [text.split(" → ")[0] for text in texts.all_inner_texts()] == [f"{100 * p:.1f} %" for p in own.tolist()]
    found.page.get_by_role("button", name="rules of generate").click()
    found.settle()
    assert "temperature 0.7, top-k 50." in changes.inner_text()
    found.page.get_by_role("button", name="reset").click()
    found.settle()
    assert changes.inner_text() == ""


def test_results_of_a_former_text_are_dim(open_model: OpenModel) -> None:
    found = open_model("decoder", refusals=True)
    box, dim = found.page.locator("#input textarea"), "document.body.classList.contains('is-old')"
    assert not found.page.evaluate(dim)
    box.fill("another")
    assert found.page.evaluate(dim)
    box.fill(TEXT)
    assert not found.page.evaluate(dim), "the results belong to this text"
    box.fill("a" * 100)
    found.page.get_by_role("button", name="Run", exact=True).click()
    found.until("() => document.getElementById('status').textContent.includes('the text has')")
    opacity = "(selector) => Number(getComputedStyle(document.querySelector(selector)).opacity)"
    assert all(found.page.evaluate(opacity, selector) < 0.6 for selector in ("#tokens", ".columns"))
    found.run("fgh")
    assert not found.page.evaluate(dim)
    assert all(found.page.evaluate(opacity, selector) == 1 for selector in ("#tokens", ".columns"))


def test_a_target_leaves_with_its_source(show_model: OpenModel) -> None:
    found = show_model("encoder-decoder")
    source, target = (found.page.locator("#input textarea").nth(i) for i in range(2))
    assert target.input_value() == TARGET
    source.fill("red cat")
    assert target.input_value() == ""
    target.fill("katze")
    source.fill("red cat sees")
    assert target.input_value() == "katze", "the person has written it for this source"
    with found.page.expect_response("**/api/run"):
        found.page.get_by_role("button", name="Run", exact=True).click()
    found.settle()
    source.fill("red")
    assert target.input_value() == ""


def test_patching_keeps_line_ends_and_names_unknown_characters(
    open_model: OpenModel, models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_data, "unknown", lambda tokenizer, text: "A sentence." if "d" in text else "")
    found = open_model("decoder", {"panel": "patch"})
    fields = found.page.locator(".fields textarea")
    found.page.locator(".more summary").click()
    for i, text in enumerate(("a\nb c", "a\nd c", "a", "b")):
        fields.nth(i).fill(text)
    with found.page.expect_request("**/api/patch") as request:
        found.page.get_by_role("button", name="Patch", exact=True).click()
    sent = request.value.post_data_json
    assert (sent["clean"], sent["corrupted"]) == ("a\nb c", "a\nd c")
    found.settle()
    assert found.page.locator(".unknown").inner_text() == "A sentence."
    labels = found.cells("Patching")[0][1:]
    ids = [models["decoder"].prompt_ids(text) for text in ("a\nb c", "a\nd c")]
    assert len(labels) == len(ids[0]) == len(ids[1]) and any("\n" in label for label in labels)
    dim = "document.querySelector('#panels .heatmap').classList.contains('is-former')"
    assert not found.page.evaluate(dim)
    fields.nth(1).fill("a\ne c")
    assert found.page.evaluate(dim), "the map belongs to the former text"


def test_position_8_has_one_meaning(show_model: OpenModel, models: dict[str, Model]) -> None:
    """The card names the token of the row of tokens at the selected position; of a pair, also the token before it."""
    for name, side, wanted in (
        ("decoder", "target", "after position 1: {1}"),
        ("encoder", "source", "at position 1: {1}"),
        ("encoder-decoder", "written", "at row 1: “{0}” predicts “{1}”"),
    ):
        found = show_model(name)
        wanted = wanted.format(*found.tokens(side).all_inner_texts())
        found.tokens(side).nth(1).click()
        found.until("(words) => document.querySelector('#side .detail').textContent === words", wanted)
    found.until(LOADED)
    expected = float(capture(models[name], source=SOURCE, target=TARGET)["logits"][0, 1].softmax(-1).max())
    shown = found.page.locator("#side .bar-text").first.inner_text()
    assert percents([shown])[0] == printed(expected, decimals=3)
