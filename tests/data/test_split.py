"""The held-out share: as close to the setting as whole units or a cut document allow."""

import itertools
import json
import random
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.config.run import LabelData, PairData
from glassformer.data.corpus import CUT, MIN_PART, MISSING, VALIDATES, Corpus, SplitSide, _part, held_out_documents
from glassformer.data.labels import LabelCorpus, Labelled, split_labelled
from glassformer.data.pairs import Pair, PairCorpus
from glassformer.data.split import held_out, split_records
from glassformer.data.texts import Piece
from runs import text_corpus

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


SEEDS = st.integers(0, 2**32)
MIXTURES = st.lists(st.tuples(st.integers(1, 300_000), st.integers(1, 120)), min_size=1, max_size=4)
"""Kinds of units: a size and a number of units of about this size."""


def mixture(kinds: list[tuple[int, int]], rng: random.Random) -> list[int]:
    """Return the shuffled weights of units, each within a tenth of the size of its kind."""
    weights = [max(1, round(size * rng.uniform(0.9, 1.1))) for size, n in kinds for _ in range(n)]
    rng.shuffle(weights)
    return weights


def assert_every_size_is_held_out(weights: list[int], chosen: Collection[int], fraction: float) -> None:
    """Check the held-out weight of every range of sizes: at most the rest of one group and two units off."""
    for low, high in itertools.combinations_with_replacement(range(20), 2):
        units = [unit for unit, weight in enumerate(weights) if 2**low <= weight < 2 ** (high + 1)]
        if units:
            held = sum(weights[unit] for unit in units if unit in chosen)
            largest = max(weights[unit] for unit in units)
            assert abs(held - fraction * sum(weights[unit] for unit in units)) <= 2 * largest


@settings(max_examples=200)
@given(MIXTURES, FRACTIONS, SEEDS)
def test_every_size_is_held_out_at_its_share(kinds: list[tuple[int, int]], fraction: float, seed: int) -> None:
    weights = mixture(kinds, random.Random(seed))
    chosen = held_out(weights, fraction)
    assert len(set(chosen)) == len(chosen) and (len(weights) == 1 or 0 < len(chosen) < len(weights))
    assert_every_size_is_held_out(weights, chosen, fraction)
    assert abs(sum(weights[unit] for unit in chosen) - fraction * sum(weights)) <= max(weights)


@settings(max_examples=100)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=40), FRACTIONS, st.data())
def test_units_for_training_are_never_held_out(counts: list[int], fraction: float, data: st.DataObject) -> None:
    training = data.draw(st.sets(st.sampled_from(range(len(counts))), min_size=1))
    chosen = held_out(counts, fraction, training=training)
    assert training.isdisjoint(chosen) and len(set(chosen)) == len(chosen)
    assert bool(chosen) == (len(training) < len(counts))


@pytest.mark.parametrize("n_long", [8, 9])
@pytest.mark.parametrize("n_short", [60, 100])
def test_poems_among_books_are_held_out_at_their_share(n_long: int, n_short: int) -> None:
    """A former rule put nearly all of the poems into validation, because no book fitted into the share."""
    lengths = np.array([200_000] * n_long + [900] * n_short)
    for seed in range(50):
        hashes = np.random.default_rng(seed).integers(1, 2**63, len(lengths)).astype(np.uint64)
        contents, part = held_out_documents(hashes, lengths, 0.1)
        held = np.isin(hashes, contents)
        assert held[n_long:].sum() == n_short / 10 and not held[:n_long].any()
        assert part is not None and part.n_characters == 20_000 * n_long and part.content in hashes[:n_long]


@settings(max_examples=80)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=40), FRACTIONS, SEEDS)
def test_keys_keep_the_share_and_do_not_depend_on_the_order(counts: list[int], fraction: float, seed: int) -> None:
    keys = [f"key {number}" for number, count in enumerate(counts) for _ in range(count)]
    chosen = set(split_records(keys, keys, fraction)[1])
    assert chosen and chosen < set(keys)
    assert_every_size_is_held_out(counts, {int(key.split()[1]) for key in chosen}, fraction)
    random.Random(seed).shuffle(keys)
    assert set(split_records(keys, keys, fraction)[1]) == chosen


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=3),
    FRACTIONS,
    SEEDS,
)
def test_rare_and_frequent_sources_and_texts_are_held_out_at_their_share(
    kinds: list[tuple[int, int]], fraction: float, seed: int
) -> None:
    counts = [*mixture(kinds, random.Random(seed)), 1, 1]
    units = [number for number, count in enumerate(counts) for _ in range(count)]
    pairs_of_units = [Pair(f"{number}", f"{i}") for i, number in enumerate(units)]
    _, pairs = split_records(pairs_of_units, [pair.source for pair in pairs_of_units], fraction)
    assert_every_size_is_held_out(counts, {int(pair.source) for pair in pairs}, fraction)
    records = [Labelled((f"{number}",), (f"{i % 2}",)) for i, number in enumerate(units)]
    _, found = split_labelled(records, fraction, outputs="regression")
    texts = {record.inputs[0] for record in found}
    assert texts == {pair.source for pair in pairs}
    _, found = split_labelled(records, fraction)
    assert abs(len(found) - len(pairs)) <= 4 * max(counts), "two texts are kept for training"


def test_a_key_with_many_records_does_not_end_the_search() -> None:
    """One key has 15 % of the records: for every position of its hash, a tenth of the others validates, or it does."""
    for draw in range(50):
        keys = [f"often {draw}"] * 150 + [f"{draw} {i}" for i in range(850)]
        chosen = set(split_records(keys, keys, 0.1)[1])
        assert len(chosen) in (85, 86) and f"often {draw}" not in chosen


@settings(max_examples=80)
@given(MIXTURES, FRACTIONS, st.integers(0, 3), SEEDS)
def test_documents_keep_the_share(kinds: list[tuple[int, int]], fraction: float, n_copies: int, seed: int) -> None:
    rng = random.Random(seed)
    lengths = np.array(mixture(kinds, rng))
    hashes = np.array([rng.randrange(2**63) for _ in lengths], np.uint64)
    copied = np.array([rng.randrange(len(lengths)) for _ in range(n_copies)], np.int64)
    lengths, hashes = np.append(lengths, lengths[copied]), np.append(hashes, hashes[copied])
    if len(set(hashes.tolist())) == 1:
        return
    contents, part = held_out_documents(hashes, lengths, fraction)
    order = np.array(rng.sample(range(len(lengths)), len(lengths)))
    again, same_part = held_out_documents(hashes[order], lengths[order], fraction)
    assert set(again.tolist()) == set(contents.tolist()) and same_part == part
    wanted, held = fraction * lengths.sum(), np.isin(hashes, contents)
    reached = lengths[held].sum()
    if part is not None:
        copies = hashes == part.content
        assert not held[copies].any() and lengths[copies].max() == lengths[~held].max()
        reached += part.n_characters * copies.sum()
        assert wanted - copies.sum() < reached <= wanted
        assert 0 < part.begin < part.begin + part.n_characters == lengths[copies][0]
    assert 0 < reached < lengths.sum()
    units, unit_of = np.unique(hashes, return_inverse=True)
    weights = np.bincount(unit_of, weights=lengths).astype(int).tolist()
    whole = {unit for unit, content in enumerate(units) if content in contents}
    largest = max(weights).bit_length()
    below = [weight if weight.bit_length() < largest else 0 for weight in weights]  # a cut may be in the last group
    assert_every_size_is_held_out(below, whole, fraction)
    assert abs(reached - wanted) <= max(MISSING * wanted, 2 * MIN_PART * (n_copies + 1), min(weights))


def test_a_small_file_among_books_is_not_the_validation_text(write: Write) -> None:
    """Eight books and a readme: the end of the longest book validates, in every draw."""
    for draw in range(10):
        folder = write(f"{draw}/readme.txt", f"A readme of forty characters, number {draw:2}.\n").parent
        books = [prose(100 * draw + number, 6000 + 300 * number) for number in range(8)]
        for number, book in enumerate(books):
            write(f"{draw}/book{number}.txt", book)
        corpus = text_corpus(folder)
        train, valid = documents(corpus, "train"), documents(corpus, "valid")
        share = sum(map(len, valid)) / sum(map(len, train + valid))
        assert 0.085 < share < 0.115 and corpus.plan.valid_share == pytest.approx(share)
        assert corpus.news() == [
            "held out for validation: 0 of 1 documents of 10 to 99 characters; "
            "0 and the end of 1 of 8 documents of 1,000 to 9,999 characters"
        ]
        (cut,) = {text for text in train if text not in books and "readme" not in text}
        end = books[-1].removeprefix(cut)
        assert end in valid and cut + end == books[-1], "the largest book loses its end"
        assert cut.endswith("\n\n") and not end.startswith("\n"), "at a paragraph"
        lines = {line for text in train for line in text.split("\n")}
        assert lines.intersection(line for text in valid for line in text.split("\n")) <= {""}


@pytest.mark.parametrize(("between", "exact"), [("\n\n", False), ("\n", False), ("x", True)])
def test_a_document_is_cut_at_a_paragraph_or_a_line_if_possible(
    write: Write, between: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.data.texts.PIECE_CHARACTERS", 100)
    large, small = between.join(["y" * 47] * 200), "z" * 60
    corpus = text_corpus(write("a.jsonl", jsonl([small, large, large])), valid_fraction=0.1)
    wanted = int(0.1 * (2 * len(large) + 60) / 2)
    (part,) = set(documents(corpus, "valid"))
    assert documents(corpus, "valid") == [part, part] and large.endswith(part)
    assert documents(corpus, "train") == [small, large.removesuffix(part), large.removesuffix(part)]
    assert abs(len(part) - wanted) <= (0 if exact else 25) and (exact or not part.startswith("\n"))
    assert exact or large.removesuffix(part).endswith(between)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 3000), min_size=2, max_size=12), FRACTIONS, st.integers(1, 200))
def test_no_character_is_lost_and_none_is_on_both_sides(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], fraction: float, piece: int
) -> None:
    texts = [prose(number, size)[:size].strip() + "." for number, size in enumerate(sizes)]
    path = tmp_path_factory.mktemp("split") / "a.jsonl"
    path.write_text(jsonl(texts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("glassformer.data.texts.PIECE_CHARACTERS", piece)
        corpus = text_corpus(path, valid_fraction=fraction)
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
    again = text_corpus(backward, valid_fraction=fraction)
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
    pairs = PairCorpus(PairData(path=str(write("p.tsv", "\n".join(rows))), valid_fraction=0.3))
    (message,) = pairs.news()
    assert message.startswith("only 1.10% of the data could be held out for validation") and "30.00%" in message
    path = str(write("l.tsv", "\n".join(["text\tlabel", *(f"the same\t{i}" for i in range(90)), "rare\t1"])))
    labels = LabelCorpus(LabelData(path=path, outputs="regression", valid_fraction=0.3))
    assert labels.news() == [message]
    assert text_corpus(write("a.jsonl", jsonl(["a" * 199, "b"])), valid_fraction=0.3).news() == [
        "held out for validation: 1 of 1 documents of 1 to 9 characters; 0 of 1 documents of 100 to 999 characters",
        "only 0.50% of the data could be held out for validation, less than data.valid_fraction (30.00%); "
        "use more data, or set data.valid_path",
    ]
