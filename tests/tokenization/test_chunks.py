"""The splitter gives the chunks of the `tokenizers` library, and the cache of chunks gives the ids of Rust."""

import pickle
import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.tokenization import chunks, scheme_codec
from glassformer.tokenization.chunks import Splitter, count_chunks
from glassformer.tokenization.pretokenize import Scheme, pipeline
from glassformer.tokenization.tokenizer import Tokenizer

SPLIT: list[Scheme] = ["byte", "whitespace", "word", "whole_words"]
COMMON = "abAZ09 \t\n\r\x0b\x0c\x1c\x85\xa0'’!.,-_`\u200b\u2028\u3000éüßжд中文ก็ा🤣👍🏽\u0301²½Ⅷ٣␣Ġ\ufffd\x00"
MIXED = st.text(st.one_of(st.sampled_from(COMMON), st.characters(exclude_categories=["Cs"])), max_size=30)


@pytest.mark.parametrize("scheme", SPLIT)
@settings(deadline=None, max_examples=200)
@given(text=MIXED)
def test_chunks_equal_those_of_the_library(scheme: Scheme, text: str) -> None:
    split = pipeline(scheme).chunks
    found = Splitter(scheme).split(text)
    assert [split(chunk) for chunk in found] == [[symbols] for symbols in split(text)]


@pytest.mark.parametrize("scheme", SPLIT)
def test_every_character_of_the_basic_plane_has_the_class_of_the_library(scheme: Scheme) -> None:
    characters = [chr(i) for i in range(0x10000) if not 0xD800 <= i <= 0xDFFF]
    random.Random(0).shuffle(characters)
    text = "".join(f"{c}a{c} 1{c}!" for c in characters)
    split = pipeline(scheme).chunks
    assert [symbols for chunk in Splitter(scheme).split(text) for symbols in split(chunk)] == split(text)


@pytest.mark.parametrize("scheme", SPLIT)
def test_counts_equal_those_of_the_library(scheme: Scheme) -> None:
    texts = ["to be␣ to be\ufffd", "Don't\n\n  be 12", "", "é é to"]
    expected = [symbols for text in texts for symbols in pipeline(scheme).chunks(text)]
    found = count_chunks(texts, scheme)
    assert found == {symbols: expected.count(symbols) for symbols in expected}
    assert list(found) == list(dict.fromkeys(expected)), "equal counts are learned in the order of the text"


@pytest.mark.parametrize("scheme", scheme_codec.SPLIT_HERE)
def test_ids_equal_those_of_the_library_with_a_full_cache(scheme: Scheme, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheme_codec, "MAX_CHUNKS", 5)
    texts = ["the cat sat on the mat, the cat's 12 mats", "no\n\n  cat é zzz", "", " ", "the " * 50]
    special = ("[UNK]",) if scheme != "byte" else ()
    vocab_size = 300 if scheme == "byte" else 40
    tokenizer = Tokenizer.train(texts[:1], vocab_size=vocab_size, scheme=scheme, special_tokens=special)
    rust = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    expected = [encoding.ids for encoding in rust.encode_batch(texts, add_special_tokens=False)]
    assert tokenizer.encode_batch(texts) == expected == tokenizer.encode_batch(texts)
    assert [tokenizer.encode(text) for text in texts] == expected


@pytest.mark.parametrize("scheme", scheme_codec.SPLIT_HERE)
def test_ids_of_joined_and_cut_texts_equal_those_of_the_library(
    scheme: Scheme, mixed_lines: list[str], documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "BLOCK_CHARACTERS", 200)
    texts = ["", *mixed_lines[:3000], "", *documents[:40], ""]
    tokenizer = Tokenizer.train(texts, vocab_size=1500, scheme=scheme)
    rust = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    rust.encode_special_tokens = True
    expected = [encoding.ids for encoding in rust.encode_batch(texts, add_special_tokens=False)]
    assert tokenizer.encode_batch(texts) == expected
    assert pickle.loads(pickle.dumps(tokenizer)).encode_batch(texts) == expected


def test_a_text_whose_chunks_do_not_repeat_is_encoded_by_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheme_codec, "MIN_TEXT", 100)
    tokenizer = Tokenizer.train(["the cat sat on the mat"] * 3, vocab_size=300, scheme="byte")
    rust = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    repeats, differs = "the cat sat " * 20, " ".join(map(str, range(100, 200)))
    for text, splits in ((repeats, True), (differs, False), (repeats, False)):
        assert tokenizer.encode(text) == rust.encode(text, add_special_tokens=False).ids
        assert (tokenizer._codec._splitter is not None) == splits  # type: ignore[union-attr]
