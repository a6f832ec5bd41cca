"""The splitter gives the chunks of the `tokenizers` library, and the cache of chunks gives the ids of Rust."""

import pickle
import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.tokenization import chunks
from glassformer.tokenization.chunks import BORDER, Splitter, count_chunks
from glassformer.tokenization.schemes import SCHEMES, Scheme, pipeline, symbols_of
from glassformer.tokenization.tokenizer import Tokenizer

SPLIT: list[Scheme] = ["byte", "whitespace", "word", "whole_words"]
COMMON = "abAZ09 \t\n\r\x0b\x0c\x1c\x85\xa0'’!.,-_`\u200b\u2028\u3000éüßжд中文ก็ा🤣👍🏽\u0301²½Ⅷ٣␣Ġ\ufffd\x00"
MIXED = st.text(st.one_of(st.sampled_from(COMMON), st.characters(exclude_categories=["Cs"])), max_size=30)
SPACES = st.text(st.sampled_from(" \t\n\r\xa0\u2028\u3000\x1c"), max_size=4)
PARTS = st.sampled_from(["", "a", "Don't", "'re'", "12", "x1!", "é²", "中文", "[MASK]", "<s>", "␣\ufffd", "\x00", "☃☃"])
SPACED = st.lists(st.tuples(PARTS, SPACES), max_size=8).map(lambda pairs: "".join(a + b for a, b in pairs))
"""Words, special tokens and unknown characters between runs of white space."""


def ids_of_library(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Return the ids by the library, where special tokens in a text are ordinary text."""
    rust = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    rust.encode_special_tokens = True
    rows = [encoding.ids for encoding in rust.encode_batch(texts, add_special_tokens=False)]
    if tokenizer.scheme != "whole_words":
        return rows
    special = {tokenizer.vocab[token] for token in tokenizer.special_tokens}  # a model of words finds them all the same
    return [[tokenizer.vocab["[UNK]"] if i in special else i for i in row] for row in rows]


@pytest.mark.parametrize("scheme", SPLIT)
@settings(max_examples=100)
@given(text=MIXED)
def test_chunks_equal_those_of_the_library(scheme: Scheme, text: str) -> None:
    split = pipeline(scheme).chunks
    found = Splitter(scheme).split(text)
    assert [split(chunk) for chunk in found] == [[symbols] for symbols in split(text)]
    assert [symbols_of(chunk, scheme) for chunk in found] == split(text)


@pytest.mark.parametrize("scheme", SPLIT)
@settings(max_examples=100)
@given(texts=st.lists(st.one_of(MIXED, SPACED), max_size=4))
def test_the_chunks_of_words_are_those_of_the_text(scheme: Scheme, texts: list[str]) -> None:
    splitter, text = Splitter(scheme), BORDER.join(texts)
    words = splitter.words(text)
    assert "".join(words) == text
    assert [chunk for word in words for chunk in splitter.split(word)] == splitter.split(text)


@settings(max_examples=60)
@given(texts=st.lists(st.one_of(MIXED, SPACED), max_size=4))
def test_ids_of_any_text_equal_those_of_the_library(texts: list[str], with_and_without_merges: list[Tokenizer]) -> None:
    for tokenizer in with_and_without_merges:
        expected = ids_of_library(tokenizer, texts)
        assert tokenizer.encode_batch(texts) == expected == [tokenizer.reference.encode(text) for text in texts]


@pytest.fixture(scope="module")
def with_and_without_merges(documents: list[str]) -> list[Tokenizer]:
    """Tokenizers of all schemes that know few characters beyond ASCII."""
    schemes: list[Scheme] = [*SCHEMES, "whole_words"]
    return [Tokenizer.train([*documents[:20], "é ²\t"], vocab_size=n, scheme=f) for f in schemes for n in (0, 500)]


def test_unknown_characters_of_a_line_have_one_id() -> None:
    tokenizer = Tokenizer.train(["ab\n"], vocab_size=0, scheme="char")
    assert tokenizer.encode_batch(["xxa\nxx\n\nxbx", "", "xx", "x"]) == [[1, 8, 7, 1, 7, 7, 1, 9, 1], [], [1], [1]]
    without = Tokenizer.train(["ab"], vocab_size=0, scheme="char", special_tokens=("[UNK]",))
    assert without.encode("x\nx") == [0, 0], "an unknown line end belongs to the run before it"


@pytest.mark.parametrize("scheme", SPLIT)
def test_every_character_of_the_basic_plane_has_the_class_of_the_library(scheme: Scheme) -> None:
    characters = [chr(i) for i in range(0x10000) if not 0xD800 <= i <= 0xDFFF]
    random.Random(0).shuffle(characters)
    text = "".join(f"{c}a{c} 1{c}!" for c in characters)
    assert [symbols_of(chunk, scheme) for chunk in Splitter(scheme).split(text)] == pipeline(scheme).chunks(text)


@pytest.mark.parametrize("scheme", SPLIT)
def test_counts_equal_those_of_the_library(scheme: Scheme) -> None:
    texts = ["to be␣ to be\ufffd", "Don't\n\n  be 12", "", "é é to"]
    expected = [symbols for text in texts for symbols in pipeline(scheme).chunks(text)]
    found = count_chunks(texts, scheme)
    assert found == {symbols: expected.count(symbols) for symbols in expected}
    assert list(found) == list(dict.fromkeys(expected)), "equal counts are learned in the order of the text"


@pytest.mark.parametrize("scheme", SPLIT)
def test_ids_equal_those_of_the_library_with_a_full_cache(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MAX_KEPT", 5)
    texts = ["the cat sat on the mat, the cat's 12 mats", "no\n\n  cat é zzz", "", " ", "the " * 50]
    special = ("[UNK]",) if scheme != "byte" else ()
    vocab_size = 300 if scheme == "byte" else 40
    tokenizer = Tokenizer.train(texts[:1], vocab_size=vocab_size, scheme=scheme, special_tokens=special)
    expected = ids_of_library(tokenizer, texts)
    assert tokenizer.encode_batch(texts) == expected == tokenizer.encode_batch(texts)
    assert [tokenizer.encode(text) for text in texts] == expected


@pytest.mark.parametrize("scheme", SPLIT)
def test_ids_of_joined_and_cut_texts_equal_those_of_the_library(
    scheme: Scheme, mixed_lines: list[str], documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "BLOCK_CHARACTERS", 200)
    texts = ["", *mixed_lines[:1000], "", *documents[:15], ""]
    tokenizer = Tokenizer.train(texts, vocab_size=1500, scheme=scheme)
    expected = ids_of_library(tokenizer, texts)
    assert tokenizer.encode_batch(texts) == expected
    assert pickle.loads(pickle.dumps(tokenizer)).encode_batch(texts) == expected


def test_a_text_whose_chunks_do_not_repeat_is_encoded_by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "MIN_TEXT", 100)
    tokenizer = Tokenizer.train(["the cat sat on the mat"] * 3, vocab_size=300, scheme="byte")
    repeats, differs = "the cat sat " * 20, " ".join(map(str, range(100, 200)))
    for text, splits in ((repeats, True), (differs, False), (repeats, False)):
        assert tokenizer.encode(text) == ids_of_library(tokenizer, [text])[0]
        assert (tokenizer._codec._ids_of is not None) == splits  # type: ignore[union-attr]
