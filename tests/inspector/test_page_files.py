"""The inspector page without a model, and what it saves."""

import csv
import io
import json
import shutil
import struct
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import glassformer
from glassformer.apps.inspector.gallery import RECIPES, Gallery
from glassformer.config.schema import to_dict
from glassformer.config.written import to_toml
from glassformer.inspection.attention_maps import attention_layers
from glassformer.inspection.capture import capture
from glassformer.model import Model
from glassformer.store import checkpoint
from glassformer.store.lock import locked
from glassformer.store.model_directory import publish
from inspector.browsing import TEXT, Open, given_to, hash_of
from inspector.conftest import OpenModel, Serve
from inspector.direct import Inspector
from runs import tiny_run, write_text
from tolerances import is_close


def test_the_gallery_offers_four_models(serve: Serve, visit: Open, tmp_path: Path) -> None:
    found = visit(serve(Inspector(None, gallery=Gallery(tmp_path))).address)
    cards = found.page.locator(".gallery-card")
    assert cards.locator("h3").all_inner_texts() == list(RECIPES)
    assert cards.get_by_role("button", name="Train", exact=True).count() == 4
    assert all(len(text) > 20 for text in cards.locator(".about").all_inner_texts())
    for width, height in ((1280, 800), (390, 844)):
        found.page.set_viewport_size({"width": width, "height": height})
        found.settle()
        assert not found.page.locator("#input").is_visible()
        assert found.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_model_of_the_gallery_is_opened(models: dict[str, Model], serve: Serve, visit: Open, tmp_path: Path) -> None:
    run = models["decoder"].run
    for name in ("first", "second"):
        (tmp_path / f"{name}.toml").write_text(to_toml(to_dict(run)))
    assert models["decoder"].folder is not None
    (tmp_path / "gallery").mkdir()
    (tmp_path / "gallery" / "first").symlink_to(models["decoder"].folder)
    gallery = Gallery(tmp_path / "gallery", {name: str(tmp_path / f"{name}.toml") for name in ("first", "second")})
    found = visit(serve(Inspector(None, gallery=gallery)).address + hash_of())
    found.page.get_by_label("first", exact=True).get_by_role("button", name="Open").click()
    found.tokens("target").first.wait_for()
    assert "tiny" in found.page.title()
    found.page.get_by_role("button", name="gallery", exact=True).click()
    found.page.locator(".gallery-card").first.wait_for()
    assert found.page.locator(".gallery-card").count() == 2 and not found.page.locator("#tokens").is_visible()


def test_a_run_before_its_first_checkpoint_shows_its_training(
    models: dict[str, Model], serve: Serve, visit: Open, tmp_path: Path
) -> None:
    """The page opens the model when the run publishes its first checkpoint, some time after it is complete."""
    folder, finished = tmp_path / "run", models["decoder"].folder
    assert finished is not None
    folder.mkdir()
    (folder / "run.toml").write_text(to_toml(to_dict(tiny_run(write_text(tmp_path)))))
    log = folder / "metrics.jsonl"
    log.write_text("".join(json.dumps({"step": i, "train/loss": 5 - i / 10}) + "\n" for i in range(4)))
    with locked(folder):
        found = visit(serve(Inspector(None, folder=folder)).address)
        assert found.page.locator("h2", has_text="Waiting for the first checkpoint").count() == 1
        found.until("() => document.querySelector('.live-facts')?.textContent.includes('running')")
        facts = found.page.locator(".live-facts")
        assert "3 of 20" in facts.inner_text() and "4.7" in facts.inner_text()
        with log.open("a") as file:
            file.write('{"step": 12, "train/loss": 2.5}\n')
        found.until("() => document.querySelector('.live-facts').textContent.includes('12 of 20')")
        assert found.cells("Loss")[-1] == ["12", "2.5"]
        shutil.copytree(checkpoint.path_of(finished, 10), checkpoint.path_of(folder, 10))
        for _ in range(2):  # the second question is asked after that
            with found.page.expect_response("**/api/live?since=0"):
                pass
        assert found.page.locator("h2", has_text="Waiting for the first checkpoint").count() == 1
        publish(checkpoint.path_of(folder, 10), folder, 10)
        found.tokens("target").first.wait_for(state="attached")
    assert "step 10" in found.page.locator("#header").inner_text()
    assert found.page.locator("h2", has_text="Waiting for the first checkpoint").count() == 0


def test_the_newest_model_of_a_run_is_offered_in_all_panels(
    models: dict[str, Model], serve: Serve, visit: Open, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert models["decoder"].folder is not None
    shutil.copytree(models["decoder"].folder, folder)
    publish(checkpoint.path_of(folder, 10), folder, 10)
    inspector = Inspector(glassformer.load(folder))
    with locked(folder):
        found = visit(serve(inspector).address + hash_of(text=TEXT))
        newer = found.page.locator("#newer")
        assert not newer.is_visible() and "step 10" in found.page.locator("#header").inner_text()
        publish(checkpoint.path_of(folder, 20), folder, 20)
        newer.wait_for()
    for title in ("Heads", "Logit lens", "Training"):
        found.open_tab(title)
        assert newer.inner_text().startswith("The page shows the model of step 10; the newest one is of step 20.")
    found.page.reload()
    newer.get_by_role("button", name="Open step 20").click()
    newer.wait_for(state="hidden")
    found.settle()
    assert "step 20" in found.page.locator("#header").inner_text() and inspector.card()["step"] == 10, (
        "other tabs keep theirs"
    )
    assert found.status() == "" and found.tokens("target").count() > 3


def test_the_page_saves_what_it_shows(open_model: OpenModel, models: dict[str, Model]) -> None:
    found = open_model("decoder", {"layer": 1, "head": 1})
    weights = attention_layers(capture(models["decoder"], **given_to(models["decoder"])), "decoder")[1][0, 1]
    labels = found.cells("Head")[0][1:]
    card = found.frame("Head")
    saved = {}
    for form in ("SVG", "PNG", "CSV", "JSON"):
        card.locator("summary").click()
        with found.page.expect_download() as download:
            card.get_by_role("button", name=form, exact=True).click()
        assert download.value.suggested_filename == f"attention-decoder-1-1.{form.lower()}"
        saved[form] = Path(download.value.path()).read_bytes()
    rows = list(csv.reader(io.StringIO(saved["CSV"].decode())))
    assert rows[0][1:] == labels and [row[0] for row in rows[1:]] == labels
    assert is_close(torch.tensor([[float(x) for x in row[1:]] for row in rows[1:]]), weights)
    data = json.loads(saved["JSON"])
    assert [data[name] for name in ("kind", "layer", "head")] == ["decoder", 1, 1] and data["columns"] == labels
    assert is_close(torch.tensor(data["weights"]), weights)
    root = ElementTree.fromstring(saved["SVG"])
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    assert len(root.findall(f"{space}rect")) == weights.numel() + 1, "one per cell, and the paper"
    texts = [text.text for text in root.findall(f"{space}text")]
    assert sum(
        text in [f"{i} {label.replace(' ', '␣')}" for i, label in enumerate(labels)] for text in texts
    ) == 2 * len(labels)
    assert saved["PNG"][:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", saved["PNG"][16:24])
    assert width == 2 * round(float(root.attrib["width"])) and height == 2 * round(float(root.attrib["height"]))


SAVE_ALL = """async (card) => {
    const saved = [], make = URL.createObjectURL, click = HTMLAnchorElement.prototype.click;
    let blob;
    const menu = card.querySelector("details.menu");
    const opened = new Promise((resolve) => menu.addEventListener("toggle", resolve));
    menu.open = true;
    await opened;
    URL.createObjectURL = (one) => { blob = one; return make.call(URL, one); };
    for (const button of menu.querySelectorAll(".menu-items button:not([hidden])")) {
        const [name, text] = await new Promise((resolve, reject) => {
            setTimeout(() => reject(new Error(`${button.textContent}: nothing was saved`)), 60_000);
            HTMLAnchorElement.prototype.click = async function () { resolve([this.download, await blob.text()]); };
            button.click();
        });
        saved.push([name, text]);
    }
    [URL.createObjectURL, HTMLAnchorElement.prototype.click] = [make, click];
    return saved;
}"""
"""Saves all formats of a card without a download: Chromium asks before the 11th one of a page."""


@pytest.mark.parametrize(
    ("name", "panel", "cards"),
    [
        ("decoder", "attention", ["Tokens", "Next token", "Heads"]),
        ("encoder-decoder", "alignment", ["Alignment", "Alignment matrix"]),
        ("decoder", "lens", ["Logit lens"]),
        ("encoder-decoder", "beam", ["Beam search", "Results"]),
        ("decoder", "steps", ["Step by step", "Branches"]),
        ("decoder", "training", ["Loss"]),
    ],
)
def test_each_card_saves_all_formats(show_model: OpenModel, name: str, panel: str, cards: list[str]) -> None:
    found = show_model(name, {"panel": panel})
    found.page.locator("#panels section").first.wait_for()
    for title in cards:
        card = found.frame(title)
        assert len(found.cells(title)) > 1, title
        saved = {file.rpartition(".")[2]: text for file, text in card.evaluate(SAVE_ALL)}
        is_list = title in ("Results", "Branches")  # a list has no picture
        assert [*saved] == ["svg", "png"] * (not is_list) + ["csv", "json"]
        assert all(len(text) > 20 for text in saved.values())
        if not is_list:
            ElementTree.fromstring(saved["svg"])
        json.loads(saved["json"])
