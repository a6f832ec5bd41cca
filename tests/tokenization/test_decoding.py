"""Decoding: the text that each scheme gives, at once and as a stream."""

import codecs
import random
from typing import get_args

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.common.errors import UserError
from glassformer.tokenization import SCHEMES, Scheme, Tokenizer
from glassformer.tokenization.schemes import readable

Trained = dict[Scheme, Tokenizer]

TEXT = "to be, or not to be, that is the question:\nwhether 'tis nobler in the mind to suffer"


@settings(max_examples=300)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_pitfall_27_bytes_are_lossless(only_bytes: Tokenizer, text: str) -> None:
    assert only_bytes.decode(only_bytes.encode(text)) == text


def test_pitfall_27_bytes_are_lossless_on_mixed_lines(tokenizers_by_scheme: Trained, mixed_lines: list[str]) -> None:
    tokenizer = tokenizers_by_scheme["byte"]
    lines = mixed_lines[:4000]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(lines)] == lines
    sampled = "".join(chr(i) for i in range(0, 0x110000, 61) if not 0xD800 <= i < 0xE000)
    assert tokenizer.decode(tokenizer.encode(sampled)) == sampled


def test_known_characters_decode_to_the_text(mixed_lines: list[str]) -> None:
    tokenizer = Tokenizer.train(mixed_lines, vocab_size=0, scheme="char", special_tokens=())
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(mixed_lines)] == mixed_lines


def test_pitfall_29_words_decode_with_single_spaces(tokenizers_by_scheme: Trained) -> None:
    tokenizer = tokenizers_by_scheme["word"]
    for text in ["", "one", "  two \t words\n", "isn't it?  Yes.", " "]:
        assert tokenizer.decode(tokenizer.encode(text)) == " ".join(text.split())


def test_pitfall_29_whitespace_decodes_to_separate_tokens(tokenizers_by_scheme: Trained) -> None:
    tokenizer = tokenizers_by_scheme["whitespace"]
    ids = tokenizer.encode("The statements,  unlowerable.")
    assert len(ids) > 4  # some word is more than one token
    assert tokenizer.decode(ids) == " ".join(tokenizer.tokens(ids))
    assert tokenizer.decode(ids).replace(" ", "") == "Thestatements,unlowerable."


@pytest.mark.parametrize("scheme", SCHEMES)
def test_special_tokens_are_skipped_by_default(scheme: Scheme, tokenizers_by_scheme: Trained) -> None:
    tokenizer = tokenizers_by_scheme[scheme]
    ids = [2, *tokenizer.encode("the"), 3, 0, 0]
    assert tokenizer.decode(ids) == "the"
    assert tokenizer.decode(ids, skip_special=False).replace(" ", "") == "[BOS]the[EOS][PAD][PAD]"
    assert tokenizer.tokens(ids)[-3:] == ["[EOS]", "[PAD]", "[PAD]"]


def test_special_tokens_need_not_be_ascii() -> None:
    tokenizer = Tokenizer.train([TEXT], vocab_size=0, special_tokens=["<début du texte>"])
    (special,) = tokenizer.encode("<début du texte>", allow_special=["<début du texte>"])
    assert tokenizer.decode([special], skip_special=False) == "<début du texte>"
    assert tokenizer.tokens([special]) == ["<début du texte>"]


@pytest.mark.parametrize("wrong", [-1, 10_000])
def test_an_id_out_of_range_is_an_error(wrong: int, characters: Tokenizer) -> None:
    for use in (characters.decode, characters.tokens):
        with pytest.raises(UserError, match=f"{wrong} is not a token id: the vocabulary has the ids 0 to"):
            use([7, wrong])


def test_pitfall_30_the_ids_are_exactly_the_rows_of_an_embedding(tokenizers_by_scheme: Trained) -> None:
    for tokenizer in tokenizers_by_scheme.values():
        assert sorted(tokenizer.vocab.values()) == list(range(tokenizer.vocab_size))
        assert [tokenizer.id_to_token(i) for i in range(tokenizer.vocab_size)] == list(tokenizer.vocab)
        assert tokenizer.vocab_size == len(tokenizer.special_tokens) + len(tokenizer.merges) + len(
            [token for token in tokenizer.vocab if len(token) == 1]
        )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_pitfall_36_a_stream_never_cuts_a_character(
    scheme: Scheme, tokenizers_by_scheme: Trained, mixed_lines: list[str]
) -> None:
    tokenizer = tokenizers_by_scheme[scheme]
    for line in mixed_lines[:2000]:
        ids = tokenizer.encode(line)
        stream = tokenizer.stream()
        shown = [stream.push(i) for i in ids]
        if "\ufffd" not in line and "␣" not in line:
            assert "\ufffd" not in "".join(shown)
        assert "".join(shown) + stream.flush() == tokenizer.decode(ids)


def test_pitfall_36_the_bytes_of_one_character_wait_for_the_last() -> None:
    tokenizer = Tokenizer.train(["x"], vocab_size=0)
    ids = tokenizer.encode("é🙂")
    stream = tokenizer.stream()
    assert [stream.push(i) for i in ids] == ["", "é", "", "", "", "🙂"]
    assert stream.flush() == ""
    assert stream.push(ids[0]) == ""
    assert stream.flush() == "\ufffd"


def test_a_stream_of_any_ids_equals_decoding_at_once(tokenizers_by_scheme: Trained) -> None:
    tokenizer = tokenizers_by_scheme["byte"]
    rust = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randint(0, 20))]
        stream = tokenizer.stream(skip_special=False)
        text = "".join([*map(stream.push, ids), stream.flush()])
        assert text == tokenizer.decode(ids, skip_special=False)
        assert text == rust.decode(ids, skip_special_tokens=False)


def test_tokens_of_bytes_are_readable() -> None:
    assert readable(b"caf\xc3\xa9 \xe2\x98") == "café <0xE2><0x98>"
    assert readable(codecs.BOM_UTF8) == "\ufeff"


@pytest.mark.parametrize("scheme", get_args(Scheme))
def test_prompt_and_stream_together_equal_the_decoded_ids(
    scheme: Scheme, tokenizers_by_scheme: Trained, mixed_lines: list[str]
) -> None:
    """Random ids, and texts cut between two tokens: prompt and stream together give the whole text."""
    whole_words = Tokenizer.train(mixed_lines[:1000], vocab_size=300, scheme="whole_words")
    tokenizer, rng = (tokenizers_by_scheme | {"whole_words": whole_words})[scheme], random.Random(0)
    n_spaces = 0
    for line in mixed_lines[:1500]:
        ids = tokenizer.encode(line)
        if rng.random() < 0.5:
            ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randint(0, 12))]
        cut = rng.randint(0, len(ids))
        prompt, new = ids[:cut], ids[cut:]
        shown = "".join(map(tokenizer.stream().push, prompt))
        stream = tokenizer.stream(after=prompt)
        continuation = "".join([*map(stream.push, new), stream.flush()])
        assert shown + continuation == tokenizer.decode(ids)
        n_spaces += bool(shown) and continuation.startswith(" ")
    assert n_spaces > 20


def test_a_stream_after_an_id_out_of_range_is_an_error(characters: Tokenizer) -> None:
    with pytest.raises(UserError, match="10000 is not a token id"):
        characters.stream(after=[7, 10_000])
