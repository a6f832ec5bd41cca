"""The models and the links that the workflow adds to the site."""

import sys
from pathlib import Path
from typing import Any

import pytest

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
        path.write_text("".join(f"{'Hund' if path.suffix == '.de' else 'dog'} {i}\n" for i in numbers))
    pairs = [*map(str, files)]
    few: dict[str, Any] = {"train.max_steps": 1, "train.eval_every": 1, "tokenizer.vocab_size": 300}
    shipped = [one for one in live.SHIPPED if one.name == "translation"]
    monkeypatch.setattr(live, "SHIPPED", shipped)
    live.ship(tmp_path / "models", tmp_path / "runs", pairs, few)
    page, index = ((tmp_path / "models" / f"{name}.html").read_text("utf-8") for name in ("translation", "index"))
    assert len(page) < live.MOST_BYTES and "<script" in page
    assert 'href="translation.html"' in index and "weights in int8" in index and "loss " in index
    monkeypatch.setattr(live, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="must have at most 1,000"):
        live.ship(tmp_path / "models", tmp_path / "again", pairs, few)


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
