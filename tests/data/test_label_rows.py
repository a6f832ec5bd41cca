"""Rows of texts, pairs and tagged words, by hand."""

import pytest

from glassformer.data.label_rows import encode_tagged, encode_texts
from glassformer.errors import UserError
from glassformer.tokenization.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return Tokenizer.train(["abcdef"], vocab_size=0, flavour="char")


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    """A token a letter, or a space."""
    return Tokenizer.train(["xyz "], vocab_size=0, flavour="char")


def shown(tokenizer: Tokenizer, ids: list[int]) -> str:
    return " ".join(tokenizer.tokens(ids))


def test_a_text_and_a_pair(letters: Tokenizer) -> None:
    (alone, pair), n_cut = encode_texts(letters, [("ab",), ("ab", "c")], 16, labels=[1.0, 0.0])
    assert shown(letters, alone.token_ids.tolist()) == "[CLS] a b [SEP]" and alone.token_types is None
    assert shown(letters, pair.token_ids.tolist()) == "[CLS] a b [SEP] c [SEP]" and pair.token_types is not None
    assert pair.token_types.tolist() == [0, 0, 0, 0, 1, 1] and (alone.label, pair.label, n_cut) == (1.0, 0.0, 0)


def test_what_is_too_long_loses_its_end(letters: Tokenizer) -> None:
    (alone, pair), n_cut = encode_texts(letters, [("abcdef",), ("abcd", "ef")], 7)
    assert shown(letters, alone.token_ids.tolist()) == "[CLS] a b c d e [SEP]"
    assert shown(letters, pair.token_ids.tolist()) == "[CLS] a b [SEP] e f [SEP]" and n_cut == 2
    with pytest.raises(UserError, match="max_len is 3"):
        encode_texts(letters, [("a", "b")], 3)


def test_a_tag_stands_at_the_first_token_of_its_word(pieces: Tokenizer) -> None:
    (row,), n_cut = encode_tagged(pieces, [("xy", "z")], 16, tags=[(3, 5)])
    assert row.labels is not None and n_cut == 0
    labels = [label for label in row.labels.tolist() if label != -100]
    places = [place for place, label in enumerate(row.labels.tolist()) if label != -100]
    assert labels == [3, 5] and places == [1, 3], "[CLS] x y ␣ z [SEP]: the second word begins with its space"
    assert pieces.decode(row.token_ids.tolist()) == "xy z"


def test_words_behind_the_end_have_no_tag(pieces: Tokenizer) -> None:
    (row,), n_cut = encode_tagged(pieces, [("xy", "z", "x")], 6, tags=[(1, 2, 3)])
    assert n_cut == 1 and row.labels is not None and len(row.token_ids) == 6
    assert [label for label in row.labels.tolist() if label != -100] == [1, 2]
