"""Scores of text against values by hand, other implementations and common mistakes."""

import functools
import math
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.common.errors import UserError
from glassformer.evaluation import text
from glassformer.evaluation.text import (
    bleu,
    bleu_tok_lc,
    chrf,
    edit_distance,
    error_rate,
    exact_match,
    lc_norm_tok,
    word_error_rate,
)

words = st.lists(st.sampled_from("abc"), max_size=6)


def recursive_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Compute the edit distance by its recursive definition."""

    @functools.cache
    def distance(i: int, j: int) -> int:
        if i == 0 or j == 0:
            return i + j
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + int(a[i - 1] != b[j - 1]))

    return distance(len(a), len(b))


@settings(max_examples=100)
@given(words, words, words)
def test_edit_distance_follows_its_definition_and_is_a_metric(a: list[str], b: list[str], c: list[str]) -> None:
    assert edit_distance(a, b) == recursive_distance(a, b) == edit_distance(b, a)
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


def test_bleu_by_hand() -> None:
    """Precisions 5/6, 3/5, 2/4, 1/3 at the reference's length; then a right output, two tokens too short."""
    full = bleu(["the cat sat on a mat"], [["the cat sat on the mat"]])
    assert full.score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    short = bleu(["the cat sat on"], [["the cat sat on the mat"]])
    assert short.score == pytest.approx(100 * math.exp(1 - 6 / 4))
    assert "case:mixed" in full.signature and "tok:13a" in full.signature and "nrefs:1|" in full.signature


def test_bleu_sums_counts_over_the_corpus() -> None:
    hypotheses, references = ["a b c d", "x b c d e f"], [["a b c d"], ["a b c d e f"]]
    matches, totals = (9, 7, 5, 3), (10, 8, 6, 4)
    expected = 100 * math.prod(m / t for m, t in zip(matches, totals, strict=True)) ** 0.25
    assert bleu(hypotheses, references).score == pytest.approx(expected)


def test_bleu_takes_any_number_of_references() -> None:
    """An n-gram counts if any reference has it; the reference length is the nearest one."""
    score = bleu(["a b c d", "e f g h"], [["a b c x", "y b c d"], ["e f g h"]])
    assert score.score == pytest.approx(100 * (8 / 8 * 6 / 6 * 4 / 4 * 1 / 2) ** 0.25)
    assert "nrefs:var" in score.signature


def test_chrf_by_hand() -> None:
    """The hypothesis has 2 of 3 characters and 1 of 2 pairs of "abc", and no others; F₂ = 5PR / (4P + R)."""
    recall = (2 / 3 + 1 / 2) / 2
    score = chrf(["ab"], [["abc"]])
    assert score.score == pytest.approx(100 * 5 * recall / (4 + recall))
    assert "nc:6" in score.signature and "nw:0" in score.signature


@pytest.mark.parametrize(
    ("lang", "plain", "tokens"),
    [
        ("en", "The dog's owner can't go.", "the dog &apos;s owner can &apos;t go ."),
        ("de", "Heute gibt's Brot.", "heute gibt &apos; s brot ."),
        ("en", "A T-shirt (red) & a hat…", "a t-shirt ( red ) &amp; a hat ..."),
        ("de", "Ein Schild sagt: „Ja“.", "ein schild sagt : &quot; ja &quot; ."),
        ("en", "A sign says “Yes”.", "a sign says &quot; yes . &quot;"),
        ("de", "Es kostet ca. 3,50 Euro.", "es kostet ca. 3,50 euro ."),
        ("fr", "L'homme court.", "l&apos; homme court ."),
    ],
)
def test_lowercased_normalised_tokens(lang: str, plain: str, tokens: str) -> None:
    assert lc_norm_tok(plain, lang) == tokens
    assert lc_norm_tok(tokens, lang) == tokens, "a second call must not change tokens"


@settings(max_examples=100)
@given(
    st.lists(
        st.sampled_from(["The", "man's", "dogs'", "don't", '"Yes"', "T-Shirt,", "a&b", "3.5", "(x)", "so!"]), min_size=1
    )
)
def test_normalisation_is_idempotent(pieces: list[str]) -> None:
    once = lc_norm_tok(" ".join(pieces))
    assert lc_norm_tok(once) == once


def test_tok_lc_gives_equal_scores_for_text_and_tokens() -> None:
    plain, tokens = "The man's dog runs, and it's fast.", "the man &apos;s dog runs , and it &apos;s fast ."
    for hypothesis in (plain, tokens):
        for reference in (plain, tokens):
            assert bleu_tok_lc([hypothesis], [[reference]]).score == pytest.approx(100)
    assert "tok:none" in bleu_tok_lc([plain], [[plain]]).signature
    assert bleu([plain.lower()], [[plain]]).score < 99, "plain BLEU keeps the case"


def test_error_rate_by_hand() -> None:
    """One edit of 4 symbols and two of 2 make 3 / 6, not the mean of the rates; the nearest reference counts."""
    hypotheses = [list("abcd"), list("xy")]
    references = [[list("abce"), list("qqqq")], [list("vw")]]
    assert error_rate(hypotheses, references) == pytest.approx(50)
    assert error_rate(hypotheses, [list(reversed(texts)) for texts in references]) == pytest.approx(50)
    assert error_rate([[]], [[list("ab")]]) == 100
    assert error_rate([list("abc")], [[["d"]]]) == 300, "insertions count"


@settings(max_examples=50)
@given(words, st.lists(words.filter(bool), min_size=1, max_size=4))
def test_error_rate_does_not_depend_on_the_order_of_references(hypothesis: list[str], texts: list[list[str]]) -> None:
    rate = error_rate([hypothesis], [texts])
    assert rate == error_rate([hypothesis], [texts[::-1]])
    assert (rate == 0) == (hypothesis in texts)


def test_a_word_is_right_when_any_pronunciation_matches() -> None:
    hypotheses, references = ["T AH", "T OW", "K"], [["T EY", "T AH"], ["T UW"], ["K"]]
    assert word_error_rate(hypotheses, references) == pytest.approx(100 / 3)
    assert exact_match(hypotheses, references) == pytest.approx(200 / 3)


def test_empty_input_is_an_error() -> None:
    for bad in (([], []), (["a"], []), (["a"], [[]])):
        for score in (bleu, chrf, exact_match):
            with pytest.raises(ValueError, match=r"hypothes"):
                score(*bad)
    with pytest.raises(ValueError, match="all empty"):
        error_rate([["a"]], [[[]]])


@pytest.mark.parametrize(("package", "score"), [("sacrebleu", bleu), ("sacremoses", bleu_tok_lc)])
def test_a_missing_package_error_names_its_extra(package: str, score: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    text._moses.cache_clear()
    assert callable(score)
    with pytest.raises(UserError, match=r"pip install 'glassformer\[eval\]'"):
        score(["a"], [["a"]])
