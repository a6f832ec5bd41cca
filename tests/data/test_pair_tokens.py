"""Pairs as tokens: both sides, reused from the cache, prepared again after a change."""

from pathlib import Path

import numpy as np
import pytest

from glassformer.config.run import PairData
from glassformer.data.batching import pair_rows
from glassformer.data.pairs import Pair, PairCorpus
from glassformer.data.tokens import SIDECAR, PairFile, encode_pairs, prepare_pairs
from glassformer.tokenization.tokenizer import Tokenizer
from runs import write_pairs


@pytest.fixture
def corpus(tmp_path: Path) -> PairCorpus:
    source, target = write_pairs(tmp_path)
    return PairCorpus(PairData(source=str(source), target=str(target)))


def tokenizers(corpus: PairCorpus) -> tuple[Tokenizer, Tokenizer]:
    train, _ = corpus.split
    of_target = Tokenizer.train([pair.target for pair in train], vocab_size=60, scheme="word")
    return of_target, Tokenizer.train([pair.source for pair in train], vocab_size=0, scheme="char")


def texts(pairs: PairFile, tokenizer: Tokenizer, source_tokenizer: Tokenizer) -> list[Pair]:
    return [
        Pair(source_tokenizer.decode(e.source_ids), tokenizer.decode(e.token_ids))  # type: ignore[arg-type]
        for e in pair_rows(pairs).take(np.arange(pairs.n_pairs))
    ]


def test_both_sides_of_both_splits_decode_to_the_pairs(corpus: PairCorpus, tmp_path: Path) -> None:
    of_target, of_source = tokenizers(corpus)
    splits = prepare_pairs(corpus, of_target, of_source, tmp_path / "cache")
    for prepared, pairs in zip((splits.train, splits.valid), corpus.split, strict=True):
        assert texts(prepared, of_target, of_source) == pairs
        assert texts(encode_pairs(pairs, of_target, of_source, "x"), of_target, of_source) == pairs


def test_prepared_pairs_are_reused_and_damaged_ones_prepared_again(corpus: PairCorpus, tmp_path: Path) -> None:
    of_target, of_source = tokenizers(corpus)
    cache = tmp_path / "cache"
    first = prepare_pairs(corpus, of_target, of_source, cache)
    stamp = (first.folder / SIDECAR).stat().st_mtime_ns
    again = prepare_pairs(corpus, of_target, of_source, cache)
    assert again.folder == first.folder and (again.folder / SIDECAR).stat().st_mtime_ns == stamp
    ids = first.folder / "train.source.bin"
    damaged = bytearray(ids.read_bytes())
    damaged[5] ^= 1
    ids.write_bytes(bytes(damaged))
    anew = prepare_pairs(corpus, of_target, of_source, cache)
    assert texts(anew.train, of_target, of_source) == corpus.split[0]
    assert prepare_pairs(corpus, of_source, of_source, cache).folder != first.folder
    assert prepare_pairs(corpus, of_target, of_source, cache, dropout=0.1).folder != first.folder


def test_each_side_of_the_training_pairs_has_its_own_dropout(corpus: PairCorpus, tmp_path: Path) -> None:
    train, _ = corpus.split
    learn = [text for pair in train for text in (pair.source, pair.target)]
    tokenizer = Tokenizer.train(learn, vocab_size=300)

    def n_tokens(**dropout: float) -> list[int]:
        splits = prepare_pairs(corpus, tokenizer, tokenizer, tmp_path / "cache", **dropout)
        return [
            int(x.sum()) for side in (splits.train, splits.valid) for x in (side.source_lengths, side.target_lengths)
        ]

    whole, source, target = n_tokens(), n_tokens(source_dropout=0.5), n_tokens(dropout=0.5)
    assert source[0] > whole[0] and source[1:] == whole[1:]
    assert target[1] > whole[1] and target[:1] + target[2:] == whole[:1] + whole[2:]


def test_progress_reaches_the_end(corpus: PairCorpus, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    prepare_pairs(corpus, *tokenizers(corpus), tmp_path / "cache", progress=lambda *done: seen.append(done))
    assert seen[-1] == (160, 160) and seen == sorted(seen)


def test_added_tokens_count_when_pairs_are_too_long(corpus: PairCorpus) -> None:
    tokenizer = Tokenizer.train(["abcdef"], vocab_size=0, scheme="char")
    pairs = [Pair("a" * n, "b" * m) for n, m in ((3, 3), (4, 3), (3, 4), (4, 4), (5, 1))]
    encoded = encode_pairs(pairs, tokenizer, tokenizer, "x")
    kept, n_left_out = encoded.within(5, 4)
    assert n_left_out == 3 and kept.rows.tolist() == [0, 1]
    assert kept.source_lengths.tolist() == [3, 4] and kept.target_lengths.tolist() == [3, 3]
    assert kept.beginning(1).rows.tolist() == [0]
