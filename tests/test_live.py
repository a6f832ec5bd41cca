"""The models and the links that the workflow adds to the site."""

import re
import sys
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from glassformer.config import recipes
from glassformer.tasks.task import trainable_task

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture
def docs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    for name in ("live", "markup"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("docs")
def test_the_shipped_models_are_trained_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import live

    files = [tmp_path / name for name in ("train.de", "train.en", "val.de", "val.en")]
    for path in files:
        numbers = range(60) if path.stem == "train" else range(60, 70)
        said = "ein Hund läuft über" if path.suffix == ".de" else "a dog runs over"
        path.write_text("".join(f"{said} {i}\n" for i in numbers), "utf-8")
    pairs = [*map(str, files)]
    few: dict[str, Any] = {"train.max_steps": 1, "train.eval_every": 1, "tokenizer.vocab_size": 300}
    shipped = [one for one in live.SHIPPED if one.name == "translation"]
    monkeypatch.setattr(live, "SHIPPED", shipped)
    live.ship(tmp_path / "models", tmp_path / "runs", pairs, few)
    page, index = ((tmp_path / "models" / f"{name}.html").read_text("utf-8") for name in ("translation", "index"))
    assert len(page) < live.MOST_BYTES and "<script" in page
    assert 'href="translation.html#panel=alignment&amp;source=Ein%20Hund' in index and re.search(
        r" \d+\.\d BLEU\. .* stored in int8", index
    )
    monkeypatch.setattr(live, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="must have at most 1,000"):
        live.ship(tmp_path / "models", tmp_path / "again", pairs, few)


@pytest.mark.usefixtures("docs")
def test_the_figure_of_each_shipped_model_is_a_score_of_its_recipe() -> None:
    import live

    for one in live.SHIPPED:
        run = recipes.load(one.recipe)
        [*names] = [name for _, name, _, _ in Formatter().parse(one.figure) if name]
        assert names and set(names) <= set(trainable_task(run).metrics(run)), one.name


@pytest.mark.usefixtures("docs")
def test_the_readme_has_addresses_on_the_page_of_the_package() -> None:
    """PyPI shows the README without the files beside it."""
    import markup

    readme = (DOCS.parent / "README.md").read_text("utf-8")
    before, after = (
        re.findall(r"\]\(([^)]+)\)", text) for text in (readme, markup.absolute(readme, "owner/name", "v1"))
    )
    images = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", readme)
    assert len(before) == len(after) > 15 and all(link.startswith("https://") for link in after)
    for old, new in zip(before, after, strict=True):
        place = "raw.githubusercontent.com/owner/name" if old in images else "github.com/owner/name/blob"
        assert new == (old if ":" in old else f"https://{place}/v1/{old}")
        assert ":" in old or (DOCS.parent / old.partition("#")[0]).exists()


@pytest.mark.usefixtures("docs")
def test_links_of_a_repository_need_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import live
    import markup

    monkeypatch.delenv(markup.REPOSITORY, raising=False)
    assert markup.in_colab("course/05-attention.ipynb") == markup.shipped() == ""
    monkeypatch.setenv(markup.REPOSITORY, "owner/name")
    address = "https://colab.research.google.com/github/owner/name/blob/notebooks/course/05-attention.ipynb"
    assert address in markup.in_colab("course/05-attention.ipynb")
    assert "models/index.html" in live.frame("index") and "models" not in live.frame("course/05-attention")
