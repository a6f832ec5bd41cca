"""The exported page in a browser: a text that a visitor types is computed in the page, as Python computes it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer.inspection.capture import capture
from glassformer.model import Model
from inspector.browsing import Open, Visit, close, given_to, hash_of
from inspector.conftest import FAMILIES

OpenWeb = Callable[..., Visit]


@pytest.fixture
def open_web(models: dict[str, Model], visit: Open, tmp_path: Path) -> OpenWeb:
    """Export a model and open its page from the disk."""

    def open_page(name: str, view: dict[str, Any] | None = None, **options: Any) -> Visit:
        file = tmp_path / f"{name}.html"
        glassformer.export(models[name], file, to="web")
        return visit(file.as_uri() + hash_of(**given_to(models[name]), **(view or {})), **options)

    return open_page


def side(model: Model) -> str:
    """Return the side of the tokens at whose positions the model predicts."""
    return "target" if model.is_seq2seq or model.is_causal_lm else "source"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_typed_text_has_the_predictions_of_python(name: str, models: dict[str, Model], open_web: OpenWeb) -> None:
    page = open_web(name)
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
    n_shown = len(page.cells("Next token")) - 1
    assert page.cells("Next token")[1][0] == models[name].tokenizer.tokens([int(expected.indices[0])])[0]
    assert close(page.numbers("Next token")[:, 0], expected.values[:n_shown])
