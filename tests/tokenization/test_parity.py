"""Merges and ids equal those of the `tokenizers` library and of `transformers`."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from glassformer.tokenization import SCHEMES, Scheme, Tokenizer
from glassformer.tokenization.schemes import BYTE_TO_CHARACTER, pipeline


@pytest.fixture(scope="module")
def hf_tokenizers(tokenizers_by_scheme: dict[Scheme, Tokenizer], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`transformers.PreTrainedTokenizerFast` on the unchanged file of each tokenizer of glassformer."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setenv("HF_HUB_OFFLINE", "1")
        warnings.simplefilter("ignore")  # warnings of the library's imports
        from transformers import PreTrainedTokenizerFast
    folder: Path = tmp_path_factory.mktemp("tokenizers")
    loaded = {}
    for scheme, tokenizer in tokenizers_by_scheme.items():
        tokenizer.save(folder / f"{scheme}.json")
        loaded[scheme] = PreTrainedTokenizerFast(tokenizer_file=str(folder / f"{scheme}.json"))
    return loaded


def train_with_tokenizers(
    texts: list[str], pre_tokenizer: pre_tokenizers.PreTokenizer | None, alphabet: list[str]
) -> dict[str, Any]:
    """Return the model of a tokenizer that the library trains, without code of glassformer."""
    theirs = tokenizers.Tokenizer(models.BPE())
    if pre_tokenizer is not None:
        theirs.pre_tokenizer = pre_tokenizer
    theirs.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, min_frequency=2, show_progress=False),
    )
    model: dict[str, Any] = json.loads(theirs.to_str())["model"]
    return model


@pytest.mark.parametrize("scheme", ["byte", "char", "whitespace"])
def test_merges_equal_the_tokenizers_library(scheme: Scheme, documents: list[str]) -> None:
    texts = [line for document in documents for line in document.splitlines(keepends=True)]
    if scheme == "byte":
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        model = train_with_tokenizers(texts, pre_tokenizers.ByteLevel(add_prefix_space=False), alphabet)
    elif scheme == "whitespace":
        model = train_with_tokenizers(texts, pre_tokenizers.Whitespace(), [])
    else:
        model = train_with_tokenizers(texts, None, [])  # each line is one word
    ours = Tokenizer.train(texts, vocab_size=2000, scheme=scheme, special_tokens=())
    assert ours.merges == [tuple(pair) for pair in model["merges"]]
    assert ours.vocab == model["vocab"]
    assert ours.vocab_size == 2000


@settings(max_examples=150)
@given(
    lines=st.lists(st.text("ab", min_size=1, max_size=30) | st.text("abcd é\n", min_size=1, max_size=20), min_size=1),
    vocab_size=st.integers(12, 60),
    min_frequency=st.integers(0, 3),
)
def test_merges_equal_the_tokenizers_library_on_any_text(lines: list[str], vocab_size: int, min_frequency: int) -> None:
    ours, theirs = (
        Tokenizer.train(
            lines,
            vocab_size=vocab_size,
            scheme="char",
            learner=learner,
            special_tokens=(),
            min_frequency=min_frequency,
        )
        for learner in ("glassformer", "tokenizers")
    )
    assert (ours.vocab, ours.merges) == (theirs.vocab, theirs.merges)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_both_learners_give_the_same_tokenizer(scheme: Scheme, documents: list[str]) -> None:
    ours = Tokenizer.train(documents[:30], vocab_size=800, scheme=scheme)
    theirs = Tokenizer.train(documents[:30], vocab_size=800, scheme=scheme, learner="tokenizers")
    assert ours.vocab == theirs.vocab
    assert ours.merges == theirs.merges
    assert theirs.frequencies is None


def test_the_byte_alphabet_equals_the_tokenizers_library() -> None:
    assert sorted(BYTE_TO_CHARACTER) == sorted(pre_tokenizers.ByteLevel.alphabet())
    for byte in range(128):
        ((chunk, _),) = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(chr(byte))
        assert chunk == BYTE_TO_CHARACTER[byte]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ids_equal_the_readable_encoder_on_mixed_lines(
    scheme: Scheme, tokenizers_by_scheme: dict[Scheme, Tokenizer], mixed_lines: list[str]
) -> None:
    tokenizer, lines = tokenizers_by_scheme[scheme], mixed_lines[:2500]
    for line, ids in zip(lines, tokenizer.encode_batch(lines), strict=True):
        assert ids == tokenizer.reference.encode(line), repr(line)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_transformers_reads_the_file_with_equal_ids_and_text(
    scheme: Scheme,
    tokenizers_by_scheme: dict[Scheme, Tokenizer],
    mixed_lines: list[str],
    hf_tokenizers: Any,
) -> None:
    ours, theirs, lines = tokenizers_by_scheme[scheme], hf_tokenizers[scheme], mixed_lines[:2500]
    assert len(theirs) == ours.vocab_size
    # The only difference: transformers reads special tokens in a text, so they are allowed here too.
    ids = ours.encode_batch(lines, allow_special=ours.special_tokens)
    assert theirs(lines, add_special_tokens=False)["input_ids"] == ids
    for row in ids[::5]:
        text = theirs.decode(row, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert ours.decode(row, skip_special=False) == text


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_file_is_unchanged_by_the_tokenizers_library(
    scheme: Scheme, tokenizers_by_scheme: dict[Scheme, Tokenizer]
) -> None:
    ours = tokenizers_by_scheme[scheme]
    again = Tokenizer.from_json(tokenizers.Tokenizer.from_str(ours.to_json()).to_str())
    assert (again.vocab, again.merges, again.scheme) == (ours.vocab, ours.merges, scheme)


def test_a_chunk_of_the_char_scheme_is_a_line(mixed_lines: list[str]) -> None:
    for text in ["\n".join(mixed_lines[:50]), "a\n\n\nb\n", "\n", "a", ""]:
        parts = text.split("\n")
        expected = [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
        assert pipeline("char").chunks(text) == expected
