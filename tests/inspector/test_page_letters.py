"""Letters of every script in a browser: whole over their tokens, in the order of writing."""

import unicodedata

import pytest

from glassformer.inspection.capture import capture
from glassformer.model import Model
from inspector.browsing import Visit
from inspector.conftest import OpenModel

HEBREW, ARABIC, CHINESE, FAMILY = "שלום", "سلام", "漢字", "👨‍👩‍👧"


def letters(found: Visit) -> list[str]:
    return found.page.locator("#tokens .letter-text").all_inner_texts()


def lefts(found: Visit) -> list[float]:
    """Return the left edges of the tokens, in the order of the text."""
    edges = "(all) => all.sort((a, b) => a.dataset.index - b.dataset.index).map((x) => x.getBoundingClientRect().left)"
    edge: list[float] = found.tokens("target").evaluate_all(edges)
    return edge


def test_letters_are_whole_over_their_tokens(show_model: OpenModel, models: dict[str, Model]) -> None:
    found, tokenizer = show_model("decoder"), models["decoder"].tokenizer
    for text, shown in ((HEBREW, [*HEBREW]), (ARABIC, [*ARABIC]), (CHINESE, [*CHINESE]), (FAMILY, [FAMILY])):
        found.run(text)
        parts = tokenizer.tokens(tokenizer.encode(text))
        assert letters(found) == shown and all(part.startswith("<0x") for part in parts)
        assert found.tokens("target").count() >= len(parts), "each token is still a button"
        places = lefts(found)[-len(parts) :]
        is_right = text in (HEBREW, ARABIC)
        by_letter = [places[i] for i in range(0, len(parts), len(parts) // len(shown))]
        assert by_letter == sorted(by_letter, reverse=is_right), text
    found.run(f"ab {HEBREW} de")
    places = lefts(found)
    first, last = places[-11:-9], places[-2:]
    assert min(last) > max(first) and places[-9] > places[-3], "Hebrew inside English runs from right to left"


@pytest.mark.parametrize("panel", ["attention", "lens", "flow"])
def test_a_part_of_a_letter_is_named_by_the_letter(show_model: OpenModel, panel: str) -> None:
    found = show_model("decoder", {"panel": panel, "layer": 0, "head": 0})
    found.run("ש ab")
    if panel == "flow":
        named = found.page.locator(".flow-picture svg text").all_text_contents()
    else:
        [named, *_] = found.cells("Head" if panel == "attention" else "Logit lens")
    assert "ש·1/2" in " ".join(named) and "ש·2/2" in " ".join(named)


def test_a_predicted_part_of_a_letter_is_named_by_the_letter(show_model: OpenModel, models: dict[str, Model]) -> None:
    """After the first byte of ש, each second byte that gives a letter is named by that letter."""
    model = models["decoder"]
    trace = capture(model, text="ש", names=["logits"])
    position = trace.target.index("<0xD7>")
    found = show_model("decoder", {"text": "ש", "pos": position})
    shown = [row[0] for row in found.cells("Next token")[1:]]
    raw = model.tokenizer.tokens(trace["logits"][0, position].argsort(descending=True)[: len(shown)].tolist())
    assert shown == [after_d7(text) for text in raw]
    assert any(label.endswith("·2/2") for label in shown)


def after_d7(text: str) -> str:
    """Return the label of a token after the byte D7."""
    if not text.startswith("<0x") or len(text) != len("<0xD7>"):
        return text
    try:
        letter = bytes([0xD7, int(text[3:5], 16)]).decode()
    except UnicodeDecodeError:
        return text
    return text if unicodedata.category(letter) == "Cn" else f"{letter}·2/2"


def test_bytes_that_are_no_text_stay_bytes(show_model: OpenModel, models: dict[str, Model]) -> None:
    tokenizer = models["decoder"].tokenizer
    first, second, *_ = tokenizer.encode("ש")
    ids = [first, *tokenizer.encode("a"), second, first, second]
    found = show_model("decoder", {"ids": ",".join(map(str, ids)), "text": "x"})
    assert letters(found) == ["ש"]
    whole = tokenizer.tokens([first, second])
    parts = [word.removeprefix("<0x").removesuffix(">") for word in whole]
    assert found.tokens("target").all_inner_texts() == [whole[0], "a", whole[1], *parts]
