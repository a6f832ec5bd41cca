"""Pairs as tokens: both sides, reused from the cache, prepared again after a change."""

from pathlib import Path

import numpy as np
import pytest

from glassformer.config.run import PairData
from glassformer.data.pair_rows import PairFile, encode_pairs, pair_rows, prepare_pairs
from glassformer.data.pairs import Pair, PairCorpus
from glassformer.data.tokens import SIDECAR, BpeDropout, TokenCache
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from runs import write_pairs


@pytest.fixture
def corpus(tmp_path: Path) -> PairCorpus:
    source, target = write_pairs(tmp_path)
    return PairCorpus(PairData(source=str(source), target=str(target)))


def tokenizers(corpus: PairCorpus) -> Tokenizers:
    train, _ = corpus.split
    of_target = Tokenizer.train([pair.target for pair in train], vocab_size=60, scheme="word")
    return Tokenizers(of_target, Tokenizer.train([pair.source for pair in train], vocab_size=0, scheme="char"))


def texts(pairs: PairFile, tokenizers: Tokenizers) -> list[Pair]:
    return [
        Pair(tokenizers.source.decode(e.source_ids), tokenizers.target.decode(e.token_ids))  # type: ignore[arg-type]
        for e in pair_rows(pairs).take(np.arange(pairs.n_pairs))
    ]


def test_both_sides_of_both_splits_decode_to_the_pairs(corpus: PairCorpus, tmp_path: Path) -> None:
    learned = tokenizers(corpus)
    splits = prepare_pairs(corpus, learned, TokenCache(tmp_path / "cache"))
    for prepared, pairs in zip((splits.train, splits.valid), corpus.split, strict=True):
        assert texts(prepared, learned) == pairs
        assert texts(encode_pairs(pairs, learned, "x"), learned) == pairs


def test_prepared_pairs_are_reused_and_damaged_ones_prepared_again(corpus: PairCorpus, tmp_path: Path) -> None:
    learned = tokenizers(corpus)
    cache = TokenCache(tmp_path / "cache")
    first = prepare_pairs(corpus, learned, cache)
    stamp = (first.folder / SIDECAR).stat().st_mtime_ns
    again = prepare_pairs(corpus, learned, cache)
    assert again.folder == first.folder and (again.folder / SIDECAR).stat().st_mtime_ns == stamp
    ids = first.folder / "train.source.bin"
    damaged = bytearray(ids.read_bytes())
    damaged[5] ^= 1
    ids.write_bytes(bytes(damaged))
    anew = prepare_pairs(corpus, learned, cache)
    assert texts(anew.train, learned) == corpus.split[0]
    assert prepare_pairs(corpus, Tokenizers(learned.source), cache).folder != first.folder
    assert prepare_pairs(corpus, learned, cache, dropout=BpeDropout(0.1)).folder != first.folder


def test_each_side_of_the_training_pairs_has_its_own_dropout(corpus: PairCorpus, tmp_path: Path) -> None:
    train, _ = corpus.split
    learn = [text for pair in train for text in (pair.source, pair.target)]
    tokenizer = Tokenizer.train(learn, vocab_size=300)

    def n_tokens(**dropout: BpeDropout) -> list[int]:
        splits = prepare_pairs(corpus, Tokenizers(tokenizer), TokenCache(tmp_path / "cache"), **dropout)
        return [
            int(x.sum()) for side in (splits.train, splits.valid) for x in (side.source_lengths, side.target_lengths)
        ]

    whole, source, target = n_tokens(), n_tokens(source_dropout=BpeDropout(0.5)), n_tokens(dropout=BpeDropout(0.5))
    assert source[0] > whole[0] and source[1:] == whole[1:]
    assert target[1] > whole[1] and target[:1] + target[2:] == whole[:1] + whole[2:]


def test_progress_reaches_the_end(corpus: PairCorpus, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    prepare_pairs(corpus, tokenizers(corpus), TokenCache(tmp_path / "cache", lambda *done: seen.append(done)))
    assert seen[-1] == (160, 160) and seen == sorted(seen)


def test_added_tokens_count_when_pairs_are_too_long(corpus: PairCorpus) -> None:
    tokenizer = Tokenizer.train(["abcdef"], vocab_size=0, scheme="char")
    pairs = [Pair("a" * n, "b" * m) for n, m in ((3, 3), (4, 3), (3, 4), (4, 4), (5, 1))]
    encoded = encode_pairs(pairs, Tokenizers(tokenizer), "x")
    kept, n_left_out = encoded.within(5, 4)
    assert n_left_out == 3 and kept.rows.tolist() == [0, 1]
    assert kept.source_lengths.tolist() == [3, 4] and kept.target_lengths.tolist() == [3, 3]
    assert kept.beginning(1).rows.tolist() == [0]
