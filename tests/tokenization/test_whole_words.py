"""Vocabularies of whole words: all learners are equal, transformers reads the file, rare words are [UNK]."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from glassformer.common.errors import UserError
from glassformer.tokenization import Tokenizer
from glassformer.tokenization.tokenizer import SPECIAL_TOKENS

TEXTS = ["the cat saw the dog .", "a dog did n't see the cat , or did it ?", "zebra the é é 日本 日本"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, vocab_size=0, scheme="whole_words")


def test_words_that_occur_twice_are_tokens_and_rarer_words_are_not(tokenizer: Tokenizer) -> None:
    counts = Counter(" ".join(TEXTS).split())
    frequent = {word for word, n in counts.items() if n >= 2}
    assert set(tokenizer.vocab) == frequent | set(tokenizer.special_tokens)
    assert tokenizer.decode(tokenizer.encode("the  zebra saw\tthe dog")) == "the [UNK] [UNK] the dog"
    assert tokenizer.frequencies is not None and tokenizer.unk_id is not None
    assert tokenizer.frequencies[tokenizer.unk_id] == sum(n for n in counts.values() if n == 1)
    assert all(tokenizer.frequencies[tokenizer.vocab[word]] == counts[word] for word in frequent)


def test_a_small_vocabulary_keeps_the_most_frequent_words(tokenizer: Tokenizer) -> None:
    n = len(tokenizer.special_tokens)
    short = Tokenizer.train(TEXTS, vocab_size=n + 3, scheme="whole_words")
    assert list(short.vocab)[n:] == ["the", "cat", "did"], (
        "four times, then those that occur twice in alphabetical order"
    )


@pytest.mark.parametrize("vocab_size", [0, 12, 400])
def test_the_vocabulary_is_that_of_the_rust_library(vocab_size: int, documents: list[str]) -> None:
    ours = Tokenizer.train(documents[:30], vocab_size=vocab_size, scheme="whole_words")
    rust = tokenizers.Tokenizer(tokenizers.models.WordLevel({}, unk_token="[UNK]"))
    rust.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.WordLevelTrainer(
        vocab_size=vocab_size or 2**31, min_frequency=2, special_tokens=list(SPECIAL_TOKENS), show_progress=False
    )
    rust.train_from_iterator(documents[:30], trainer)
    assert ours.vocab == rust.get_vocab()


@pytest.mark.parametrize("learner", ["glassformer", "tokenizers", "greatest_pair"])
def test_every_learner_gives_the_same_vocabulary_also_of_texts_with_special_tokens(learner: Any) -> None:
    texts = ["the [PAD] cat <|endoftext|> [EOS]", "the [PAD] cat [UNK][CLS]"] * 3
    found = Tokenizer.train(texts, vocab_size=0, scheme="whole_words", learner=learner)
    assert list(found.vocab) == [*SPECIAL_TOKENS, "cat", "the", "<|endoftext|>", "[UNK][CLS]"]
    assert set(found.encode("the [PAD] cat")) == {found.vocab["the"], found.vocab["cat"], found.unk_id}


def test_ids_equal_the_readable_encoder(mixed_lines: list[str], documents: list[str]) -> None:
    tokenizer = Tokenizer.train(documents, vocab_size=500, scheme="whole_words")
    for line, ids in zip(mixed_lines, tokenizer.encode_batch(mixed_lines), strict=True):
        assert ids == tokenizer.reference.encode(line) == tokenizer.encode_longest_match(line), repr(line)


def test_saving_keeps_it_and_transformers_reads_it(
    tokenizer: Tokenizer, tmp_path: Path, mixed_lines: list[str]
) -> None:
    transformers: Any = pytest.importorskip("transformers")
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.fingerprint == tokenizer.fingerprint and again.scheme == "whole_words"
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for line in [*mixed_lines, *TEXTS]:
        assert theirs(line, add_special_tokens=False)["input_ids"] == again.encode(
            line, allow_special=again.special_tokens
        )


def test_whole_words_have_pieces_explanations_and_reports(tokenizer: Tokenizer) -> None:
    assert [tokenizer.pieces[i] for i in tokenizer.encode("the dog")] == [b" the", b" dog"]
    assert "the" in str(tokenizer.explain("the zebra")) and tokenizer.report(TEXTS).n_unknown == 10
    more = tokenizer.with_special_tokens(["[SPAN_0]"])
    assert more.vocab["[SPAN_0]"] == tokenizer.vocab_size and more.encode("the cat") == tokenizer.encode("the cat")
    assert more.encode("[MASK] the", allow_special=["[MASK]"]) == [more.mask_id, more.vocab["the"]]
    assert more.encode("[MASK]") == [more.unk_id], "in a text it is an ordinary word"


@pytest.mark.parametrize(
    ("texts", "options", "words"),
    [
        (TEXTS, {"special_tokens": ("[PAD]",)}, "needs the special token"),
        (["a b c"], {}, "no word of the text occurs 2 times"),
        ([" \n"], {}, "there is no text"),
        (TEXTS, {"vocab_size": 3}, "a vocabulary of 3 is too small"),
    ],
)
def test_settings_without_a_vocabulary_are_named(texts: list[str], options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Tokenizer.train(texts, **{"vocab_size": 0, "scheme": "whole_words", **options})
