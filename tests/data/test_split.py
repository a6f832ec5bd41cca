"""The held-out share: as close to the setting as whole units or a cut document allow."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.config.run import NEWEST_READING, LabelData, PairData
from glassformer.data import sources
from glassformer.data.corpus import CUT, MIN_PART, MISSING, VALIDATES, Corpus, SplitSide, _part, held_out_filled
from glassformer.data.labels import LabelCorpus
from glassformer.data.pairs import PairCorpus
from glassformer.data.records import filled, held_out_keys, nearest
from glassformer.data.sources import Piece

Write = Callable[[str, str | bytes], Path]
FRACTIONS = st.sampled_from([0.01, 0.05, 0.1, 0.2, 0.5, 0.9])


def jsonl(texts: list[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def prose(seed: int, n_characters: int) -> str:
    """Return paragraphs of lines of words; each seed has different words, so that no two texts share a line."""
    rng = random.Random(seed)
    text = ""
    while len(text) < n_characters:
        words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 9))) + str(seed) for _ in range(8)]
        text += " ".join(words) + ("\n\n" if rng.random() < 0.5 else "\n")
    return text


def documents(corpus: Corpus, side: str) -> list[str]:
    found, parts = [], []
    for piece in corpus.pieces(side):  # type: ignore[arg-type]
        parts.append(piece.text)
        if piece.ends_document:
            found.append("".join(parts))
            parts = []
    assert not parts
    return found


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=2, max_size=60), FRACTIONS)
def test_the_share_is_within_half_of_the_lightest_unit_left(weights: list[int], fraction: float) -> None:
    wanted = fraction * sum(weights)
    first = filled(weights, wanted)
    chosen = nearest(weights, first, wanted)
    assert len(set(chosen)) == len(chosen) and 0 < len(chosen) < len(weights)
    left = sorted(weights[unit] for unit in range(len(weights)) if unit not in first)
    assert wanted - left[0] < sum(weights[unit] for unit in first) <= wanted
    if len(chosen) > 1 and len(left) > 1:
        assert abs(sum(weights[unit] for unit in chosen) - wanted) <= left[0] / 2


def test_a_unit_that_fits_exactly_is_chosen() -> None:
    assert filled([5, 4, 1], 5) == [0] and filled([2, 3, 1], 5) == [0, 1]


@settings(max_examples=80, derandomize=True, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=40), FRACTIONS, st.randoms(use_true_random=False))
def test_keys_keep_the_share_and_do_not_depend_on_the_order(
    counts: list[int], fraction: float, rng: random.Random
) -> None:
    keys = [f"key {number}" for number, count in enumerate(counts) for _ in range(count)]
    chosen = held_out_keys(keys, fraction)
    left = [count for number, count in enumerate(counts) if f"key {number}" not in chosen]
    assert chosen and left and chosen < set(keys)
    if len(chosen) > 1 and len(left) > 1:
        assert abs(sum(key in chosen for key in keys) - fraction * len(keys)) <= max(counts) / 2
        assert sum(key in chosen for key in keys) > fraction * len(keys) - min(left)
    rng.shuffle(keys)
    assert held_out_keys(keys, fraction) == chosen


def test_a_key_with_many_records_does_not_end_the_search() -> None:
    """One key has 15 % of the records: for every position of its hash, a tenth of the records validates."""
    for draw in range(50):
        keys = [f"often {draw}"] * 150 + [f"{draw} {i}" for i in range(850)]
        chosen = held_out_keys(keys, 0.1)
        assert sum(key in chosen for key in keys) == 100


@settings(max_examples=80, derandomize=True, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 2**63), st.integers(1, 100_000)), min_size=2, max_size=40), FRACTIONS, st.data()
)
def test_documents_keep_the_share(units: list[tuple[int, int]], fraction: float, data: st.DataObject) -> None:
    units = list(dict(units).items())
    units += data.draw(st.lists(st.sampled_from(units), max_size=3))  # copies
    hashes = np.array([unit[0] for unit in units], np.uint64)
    lengths = np.array([unit[1] for unit in units])
    contents, part = held_out_filled(hashes, lengths, fraction)
    wanted, held = fraction * lengths.sum(), np.isin(hashes, contents)
    if part is None:
        left = [lengths[hashes == one].sum() for one in np.unique(hashes[~held])]
        if len(contents) > 1 and len(left) > 1:
            short = abs(lengths[held].sum() - wanted) <= max(MISSING * wanted, min(left) / 2)
            assert short or min(left) < 2 * MIN_PART * len(units)
        return
    copies = hashes == part.content
    assert not held[copies].any() and lengths[copies].max() == lengths[~held].max()
    reached = lengths[held].sum() + part.n_characters * copies.sum()
    assert wanted - copies.sum() < reached <= wanted
    assert 0 < part.begin < part.begin + part.n_characters == lengths[copies][0]


def test_a_small_file_among_books_is_not_the_validation_text(write: Write) -> None:
    """Eight books and a readme: with the old rule, most draws hold out only the readme."""
    for draw in range(10):
        folder = write(f"{draw}/readme.txt", f"A readme of forty characters, number {draw:2}.\n").parent
        books = [prose(100 * draw + number, 6000 + 300 * number) for number in range(8)]
        for number, book in enumerate(books):
            write(f"{draw}/book{number}.txt", book)
        corpus = Corpus([folder])
        train, valid = documents(corpus, "train"), documents(corpus, "valid")
        share = sum(map(len, valid)) / sum(map(len, train + valid))
        assert 0.085 < share < 0.115 and corpus.plan.valid_share == pytest.approx(share)
        assert corpus.news() == []
        (cut,) = set(train) - set(books)
        end = books[-1].removeprefix(cut)
        assert end in valid and cut + end == books[-1], "the largest book loses its end"
        assert cut.endswith("\n\n") and not end.startswith("\n"), "at a paragraph"
        lines = {line for text in train for line in text.split("\n")}
        assert lines.intersection(line for text in valid for line in text.split("\n")) <= {""}


@pytest.mark.parametrize(("between", "exact"), [("\n\n", False), ("\n", False), ("x", True)])
def test_a_document_is_cut_at_a_paragraph_or_a_line_if_possible(
    write: Write, between: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "PIECE_CHARACTERS", 100)
    large, small = between.join(["y" * 47] * 200), "z" * 60
    corpus = Corpus([write("a.jsonl", jsonl([small, large, large]))], valid_fraction=0.1)
    wanted = int((0.1 * (2 * len(large) + 60) - 60) / 2)
    (part,) = set(documents(corpus, "valid")) - {small}
    assert documents(corpus, "valid") == [small, part, part] and large.endswith(part)
    assert documents(corpus, "train") == [large.removesuffix(part)] * 2
    assert abs(len(part) - wanted) <= (0 if exact else 25) and (exact or not part.startswith("\n"))
    assert exact or large.removesuffix(part).endswith(between)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=2, max_size=12), FRACTIONS, st.integers(1, 200))
def test_no_character_is_lost_and_none_is_on_both_sides(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], fraction: float, piece: int
) -> None:
    texts = [prose(number, size)[:size].strip() + "." for number, size in enumerate(sizes)]
    path = tmp_path_factory.mktemp("split") / "a.jsonl"
    path.write_text(jsonl(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "PIECE_CHARACTERS", piece)
        corpus = Corpus([path], valid_fraction=fraction)
        train, valid = documents(corpus, "train"), documents(corpus, "valid")
    assert train and valid
    is_cut = corpus.plan.side == CUT
    whole = [text for text, cut in zip(texts, is_cut, strict=True) if not cut]
    held = [text for text, side in zip(texts, corpus.plan.side, strict=True) if side == VALIDATES]
    assert set(held) <= set(valid) and set(held).isdisjoint(train)
    assert sorted(text for text in train + valid if text in whole) == sorted(whole)
    if is_cut.any():
        (place,) = np.flatnonzero(is_cut)
        (head,), (tail,) = set(train) - set(whole), set(valid) - set(whole)
        assert head + tail == texts[place] and corpus.plan.cut == len(head)
    backward = path.with_name("b.jsonl")
    backward.write_text(jsonl(texts[::-1]))
    again = Corpus([backward], valid_fraction=fraction)
    assert sorted(documents(again, "valid")) == sorted(valid) and sorted(documents(again, "train")) == sorted(train)


@pytest.mark.parametrize("cut", range(1, 12))
def test_pieces_of_a_cut_document_meet_at_the_cut(cut: int) -> None:
    pieces = [Piece("abcd", False), Piece("efgh", False), Piece("ijkl", True)]
    sides: dict[SplitSide, list[Piece]] = {"train": [], "valid": []}
    for side, found in sides.items():
        found += [part for i, piece in enumerate(pieces) if (part := _part(piece, cut - 4 * i, side)) is not None]
    train, valid = sides["train"], sides["valid"]
    assert ("".join(p.text for p in train), "".join(p.text for p in valid)) == (
        "abcdefghijkl"[:cut],
        "abcdefghijkl"[cut:],
    )
    assert [p.is_cut_before for p in valid] == [True] + [False] * (len(valid) - 1)
    assert [p.is_cut_after for p in train] == [False] * (len(train) - 1) + [True]
    assert [p.ends_document for p in train] == [p.is_cut_after for p in train] and valid[-1].ends_document


def test_a_share_that_is_not_reached_is_reported(write: Write) -> None:
    rows = ["source\ttarget", *(f"the same\t{i}" for i in range(90)), "rare\tx"]
    pairs = PairCorpus(PairData(path=str(write("p.tsv", "\n".join(rows))), valid_fraction=0.3, reading=NEWEST_READING))
    (message,) = pairs.news()
    assert message.startswith("only 1.10% of the data could be held out for validation") and "30.00%" in message
    path = str(write("l.tsv", "\n".join(["text\tlabel", *(f"the same\t{i}" for i in range(90)), "rare\t1"])))
    labels = LabelCorpus(LabelData(path=path, outputs="regression", valid_fraction=0.3, reading=NEWEST_READING))
    assert labels.news() == [message]
    assert Corpus([write("a.jsonl", jsonl(["a" * 199, "b"]))], valid_fraction=0.3).news() == [
        "only 0.50% of the data could be held out for validation, less than data.valid_fraction (30.00%); "
        "use more data, or set data.valid_path"
    ]


def test_the_older_rule_keeps_its_sides_and_digests(write: Write) -> None:
    """The expected values were computed by the code before `data.reading` was added."""
    texts = [f"document number {i} " * (i * i % 17 + 1) for i in range(30)] + ["a readme"]
    corpus = Corpus([write("a.jsonl", jsonl(texts))], reading=1)
    assert np.flatnonzero(corpus.plan.side).tolist() == [21, 22]
    assert corpus.digest == "b5a4e30676be5668a3bf9662b2eac303b5a9a342204a8c41b30879e87a33dcf0"
    rows = [f"source {i % 13}\ttarget {i}\n" for i in range(60)]
    pairs = PairData(path=str(write("p.tsv", "source\ttarget\n" + "".join(rows))))
    assert pairs.reading == 1
    assert PairCorpus(pairs).digest == "aa3a714076e8c1ef97d3f8a42a414cb65520100ea042ddf3c386654165887cd8"
    rows = [f"text {i % 23}\t{'ab'[i % 23 % 2]}\n" for i in range(60)]
    labels = LabelData(path=str(write("l.tsv", "text\tlabel\n" + "".join(rows))))
    assert LabelCorpus(labels).digest == "44d62cde76389b76c9e0930529a1a8d26bbd77abb4588860867337887b520968"
