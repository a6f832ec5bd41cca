"""The split: the side of each document, and that no text is on both sides."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.common.errors import UserError
from glassformer.data.corpus import Corpus, held_out_documents
from runs import text_corpus

Write = Callable[[str, str | bytes], Path]


def documents(corpus: Corpus, side: str) -> list[str]:
    found, parts = [], []
    for piece in corpus.pieces(side):
        parts.append(piece.text)
        if piece.ends_document:
            found.append("".join(parts))
            parts = []
    assert not parts, "the last piece of a side must end its document"
    return found


def jsonl(texts: Sequence[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("size", [1, 3, 1 << 16])
def test_one_document_is_cut_by_characters(
    write: Write, fraction: float, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.data.texts.PIECE_CHARACTERS", size)
    text = "".join(f"é{i}\r\n" for i in range(100))
    corpus = text_corpus(write("a.txt", b"\xef\xbb\xbf" + text.encode()), valid_fraction=fraction)
    text = text.replace("\r\n", "\n")
    cut = int(len(text) * (1 - fraction))
    assert documents(corpus, "train") == [text[:cut]]
    assert documents(corpus, "valid") == [text[cut:]]
    assert not corpus.plan.end_tokens


def test_the_cut_equals_nanogpts(write: Write) -> None:
    for n in (10, 99, 1_115_394):
        corpus = text_corpus(write(f"{n}.txt", "x" * n))
        assert corpus.plan.cut == int(n * 0.9)


@settings(max_examples=50)
@given(
    st.lists(st.text("ab \n", min_size=1, max_size=4).filter(str.strip), min_size=2, max_size=60),
    st.sampled_from([0.01, 0.1, 0.5, 0.9]),
)
def test_pitfall_22_equal_documents_are_never_on_both_sides(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], fraction: float
) -> None:
    path = tmp_path_factory.mktemp("split") / "a.jsonl"
    path.write_text(jsonl(texts))
    corpus = text_corpus(path, valid_fraction=fraction)
    if len(set(texts)) == 1:
        with pytest.raises(UserError, match=r"documents of .* are equal"):
            documents(corpus, "valid")
        return
    train, valid = documents(corpus, "train"), documents(corpus, "valid")
    assert train and valid
    assert not set(train) & set(valid)
    assert sorted(train + valid) == sorted(texts)


def test_the_side_of_a_document_does_not_depend_on_the_order(write: Write) -> None:
    texts = [f"document number {i}" for i in range(200)]
    forward, backward = (
        text_corpus(write(name, jsonl(order))) for name, order in (("a.jsonl", texts), ("b.jsonl", texts[::-1]))
    )
    assert set(documents(forward, "valid")) == set(documents(backward, "valid"))
    assert documents(forward, "train") == documents(backward, "train")[::-1]


def test_the_held_out_share_counts_characters() -> None:
    rng = np.random.default_rng(0)
    hashes = rng.integers(1 << 63, size=5000).astype(np.uint64)
    lengths = rng.integers(1, 1000, size=5000)
    contents, part = held_out_documents(hashes, lengths, 0.2)
    assert part is None and abs(lengths[np.isin(hashes, contents)].sum() / lengths.sum() - 0.2) < 0.001


def test_one_large_document_among_small_ones_is_trained_on() -> None:
    hashes, lengths = np.array([1, 2, 3], np.uint64), np.array([1_000_000, 30, 20])
    _, part = held_out_documents(hashes, lengths, 0.1)
    assert part is not None and part.content == 1 and part.begin > 899_000


def test_pitfall_22_documents_of_the_validation_text_are_left_out_of_training(write: Write) -> None:
    train = write("train.jsonl", jsonl(["a", "b", "c", "b"]))
    valid = write("valid.jsonl", jsonl(["b", "x"]))
    corpus = text_corpus(train, valid_path=str(valid))
    assert documents(corpus, "train") == ["a", "c"]
    assert documents(corpus, "valid") == ["b", "x"]
    assert corpus.plan.n_left_out == 2


def test_pitfall_22_the_same_text_on_both_sides_is_refused(write: Write) -> None:
    path, same = write("a.txt", "the same"), write("b.txt", "the same")
    with pytest.raises(UserError, match="is also in the validation text"):
        text_corpus(path, valid_path=str(same)).plan.end_tokens  # noqa: B018


def test_pitfall_22_a_tokenizer_learns_from_the_training_side_only(write: Write) -> None:
    corpus = text_corpus(write("a.txt", "a" * 90 + "ß" * 10))
    assert "".join(corpus.training_texts()) == "a" * 90


@pytest.mark.parametrize(
    ("content", "words"),
    [("x", "has 1 characters, too few to hold out a fraction of 0.1"), (" \n ", "contains only white space")],
)
def test_text_that_cannot_be_split_is_refused(write: Write, content: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        list(text_corpus(write("a.txt", content)).pieces("train"))


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_that_leaves_a_side_empty_is_refused(fraction: float) -> None:
    with pytest.raises(UserError, match="valid_fraction"):
        text_corpus("a.txt", valid_fraction=fraction)


def test_the_digest_depends_only_on_the_text_and_the_split(write: Write) -> None:
    def digest(name: str, content: str, **options: object) -> str:
        return text_corpus(write(name, content), **options).digest  # type: ignore[arg-type]

    first = digest("a.txt", "some text")
    write("g/1.txt", "some")
    assert first == digest("b.txt", "some text")
    others = [
        digest("c.txt", "some texT"),
        digest("d.txt", "some text", valid_fraction=0.2),
        digest("d.txt", "some text", text_field="body"),
        digest("d.txt", "some text", front_matter="drop"),
        digest("e.jsonl", "some text"),
        digest("f.txt", "some text", valid_path=str(write("v.txt", "v"))),
        text_corpus(write("g/2.txt", " text").parent).digest,
    ]
    assert len({first, *others}) == 8
