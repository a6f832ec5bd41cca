"""Rows of texts, pairs and tagged words, compared with rows written by hand."""

import pytest

from glassformer.common.errors import UserError
from glassformer.data.rows import encode_tagged, encode_texts
from glassformer.data.tokens import BpeDropout
from glassformer.tokenization.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return Tokenizer.train(["abcdef"], vocab_size=0, scheme="char")


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    """A tokenizer with one token per letter or space."""
    return Tokenizer.train(["xyz "], vocab_size=0, scheme="char")


def shown(tokenizer: Tokenizer, ids: list[int]) -> str:
    return " ".join(tokenizer.tokens(ids))


def test_a_text_and_a_pair(letters: Tokenizer) -> None:
    (alone, pair), n_cut = encode_texts(letters, [("ab",), ("ab", "c")], 16)
    assert shown(letters, alone.token_ids.tolist()) == "[CLS] a b [SEP]" and alone.token_types is None
    assert shown(letters, pair.token_ids.tolist()) == "[CLS] a b [SEP] c [SEP]" and pair.token_types is not None
    assert pair.token_types.tolist() == [0, 0, 0, 0, 1, 1] and n_cut == 0


def test_too_long_texts_are_truncated(letters: Tokenizer) -> None:
    (alone, pair), n_cut = encode_texts(letters, [("abcdef",), ("abcd", "ef")], 7)
    assert shown(letters, alone.token_ids.tolist()) == "[CLS] a b c d e [SEP]"
    assert shown(letters, pair.token_ids.tolist()) == "[CLS] a b [SEP] e f [SEP]" and n_cut == 2
    with pytest.raises(UserError, match="max_len is 3"):
        encode_texts(letters, [("a", "b")], 3)


def test_a_tag_is_at_the_first_token_of_its_word(pieces: Tokenizer) -> None:
    (row,), n_cut = encode_tagged(pieces, [("xy", "z")], 16, tags=[(3, 5)])
    assert row.labels is not None and n_cut == 0
    labels = [label for label in row.labels.tolist() if label != -100]
    places = [place for place, label in enumerate(row.labels.tolist()) if label != -100]
    assert labels == [3, 5] and places == [1, 3], "[CLS] x y ␣ z [SEP]: the second word begins with its space"
    assert pieces.decode(row.token_ids.tolist()) == "xy z"


def test_truncated_words_have_no_tag(pieces: Tokenizer) -> None:
    (row,), n_cut = encode_tagged(pieces, [("xy", "z", "x")], 6, tags=[(1, 2, 3)])
    assert n_cut == 1 and row.labels is not None and len(row.token_ids) == 6
    assert [label for label in row.labels.tolist() if label != -100] == [1, 2]


def test_dropout_gives_more_tokens_and_keeps_the_labels() -> None:
    words = Tokenizer.train(["abc abc def def"], vocab_size=100, scheme="word")
    whole, _ = encode_texts(words, [("abc def", "def")], 32)
    cut, _ = encode_texts(words, [("abc def", "def")], 32, dropout=BpeDropout(1.0))
    assert [len(row.token_ids) for row in (*whole, *cut)] == [3 + 3, 12 + 3], "a word has three letters and an end"
    assert words.decode(cut[0].token_ids.tolist()) == words.decode(whole[0].token_ids.tolist())
    (row,), _ = encode_tagged(words, [("abc", "def")], 32, tags=[(3, 5)], dropout=BpeDropout(1.0))
    assert row.labels is not None and row.labels.tolist() == [-100, 3, -100, -100, -100, 5, -100, -100, -100, -100]
    drawn = [encode_texts(words, [("abc def",)] * 9, 32, dropout=BpeDropout(0.5))[0] for _ in range(2)]
    assert [row.token_ids.tolist() for row in drawn[0]] == [row.token_ids.tolist() for row in drawn[1]]
    assert len({tuple(row.token_ids.tolist()) for row in drawn[0]}) > 1, "each text has a separate draw"
