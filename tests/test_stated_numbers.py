"""Numbers in sentences agree with the outputs that the documents show."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
RESULTS = [ROOT / "docs" / name for name in ("results.md", "benchmarks.md")]
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MEASURED = re.compile(r"(?<![\w.,/#-])\d[\d,]*\.\d\d+(?![\w.]*\d)")
"""A number with two decimals or more: fewer are rounded too far to identify an output."""

WITHOUT_OUTPUT = {
    "README.md": {"3.11": "version of Python"},
    "inspector.md": {
        **dict.fromkeys(("3.09", "1.61", "0.07", "0.59"), "curves of the run, heads of its checkpoints"),
    },
    "masks-and-vectors.md": {"5.89": "unigram entropy, docs/results.md"},
    "own-text.md": {"6.44": "ln(626)"},
}
"""By file: numbers that no output shows, and their origin."""


def numbers(text: str) -> set[str]:
    return {number.replace(",", "") for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)}


def is_shown(stated: str, shown: set[str]) -> bool:
    """Return True if a number is one of the shown numbers, or is one of them rounded.

    A number that is not shown is found:

    >>> is_shown("0.71", {"0.7134"}), is_shown("0.74", {"0.7134"})
    (True, False)
    """
    n_decimals = len(stated.partition(".")[2])
    return any(f"{float(number.rstrip('.')):.{n_decimals}f}" == stated for number in shown)


def unexplained(path: Path, shown: set[str]) -> list[str]:
    sentences = BLOCK.sub("", path.read_text("utf-8"))
    stated = {number.replace(",", "") for number in MEASURED.findall(sentences)}
    return sorted(number for number in stated - set(WITHOUT_OUTPUT.get(path.name, ())) if not is_shown(number, shown))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.name)
def test_numbers_of_a_tutorial_are_in_its_outputs(path: Path) -> None:
    assert unexplained(path, numbers("".join(BLOCK.findall(path.read_text("utf-8"))))) == []


def test_numbers_of_the_front_page_are_in_an_output_or_a_table_of_results() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = numbers("".join(BLOCK.findall(readme)))
    for path in TUTORIALS:
        shown |= numbers("".join(BLOCK.findall(path.read_text("utf-8"))))
    for path in RESULTS:
        shown |= numbers(path.read_text("utf-8"))
    assert unexplained(ROOT / "README.md", shown) == []


def test_every_number_without_an_output_is_stated() -> None:
    documents = {path.name: path.read_text("utf-8") for path in [ROOT / "README.md", *TUTORIALS]}
    for name, known in WITHOUT_OUTPUT.items():
        assert all(number in documents[name] for number in known)
