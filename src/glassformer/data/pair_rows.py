"""Pairs as token ids, encoded once and cached (`tokens.py`), and as rows of batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.data.batching import Example, Ids, Rows, taken
from glassformer.data.pairs import Pair, PairCorpus
from glassformer.data.texts import Piece
from glassformer.data.tokens import (
    NO_DROPOUT,
    SIDES,
    BpeDropout,
    Encoding,
    Splits,
    TokenCache,
    TokenFile,
    in_memory,
)
from glassformer.tokenization.tokenizer import Tokenizers

_PAIR_NAMES = {"train": "training pairs", "valid": "validation pairs"}


@dataclass(frozen=True, eq=False)
class PairFile:
    """The tokens of pairs: document i of both streams is a pair. `rows` has the indices of the pairs in use."""

    name: str  # name in messages
    source: TokenFile
    target: TokenFile
    rows: npt.NDArray[np.int64]  # (n_pairs,)

    @property
    def n_pairs(self) -> int:
        return len(self.rows)

    def unknown(self, tokenizers: Tokenizers) -> list[str]:
        """Return notes about the parts of sources and targets that are unknown to their tokenizers."""
        of_source = self.source.unknown(tokenizers.source, "the sources of the ")
        return of_source + self.target.unknown(tokenizers.target, "the targets of the ")

    @property
    def source_lengths(self) -> npt.NDArray[np.int64]:
        """(n_pairs,) number of ids of each source, without an end token."""
        return self.source.document_lengths[self.rows]

    @property
    def target_lengths(self) -> npt.NDArray[np.int64]:
        """(n_pairs,) number of ids of each target, without start or end token."""
        return self.target.document_lengths[self.rows]

    def within(self, source_max: int, target_max: int, added: tuple[int, int] = (1, 1)) -> tuple["PairFile", int]:
        """Return the pairs that fit a model, and the number of others; `added`: special tokens of (source, target)."""
        fits = (self.source_lengths + added[0] <= source_max) & (self.target_lengths + added[1] <= target_max)
        return replace(self, rows=self.rows[fits]), int((~fits).sum())

    def beginning(self, n_pairs: int) -> "PairFile":
        """Select the first `n_pairs` pairs."""
        return replace(self, rows=self.rows[:n_pairs])


PairSplits = Splits[PairFile]


def prepare_pairs(
    corpus: PairCorpus,
    tokenizers: Tokenizers,
    cache: TokenCache,
    *,
    dropout: BpeDropout = NO_DROPOUT,
    source_dropout: BpeDropout = NO_DROPOUT,
) -> PairSplits:
    """Return the tokens of a corpus of pairs: unchanged tokens from the cache, else the encoded pairs, as in `prepare`.

    The cache key is a hash of the pairs, the split, both tokenizers and dropout. `dropout` applies to the targets of
    the training pairs, and `source_dropout` to their sources. The progress counts texts: sources and targets.
    """
    encodings = {
        "source": Encoding(tokenizers.source, dropout=source_dropout),
        "target": Encoding(tokenizers.target, dropout=dropout),
    }
    without_dropout = {stem: replace(encoding, dropout=NO_DROPOUT) for stem, encoding in encodings.items()}

    def write(folder: Path) -> dict[str, Any]:
        texts = {}
        for side, pairs, of_side in zip(SIDES, corpus.split, (encodings, without_dropout), strict=True):
            for stem, encoding in of_side.items():
                texts[f"{side}.{stem}"] = _pieces_of(pairs, stem), encoding
        n_texts = 2 * sum(map(len, corpus.split))
        return {"pairs": corpus.name, **cache.write(folder, texts, n_texts, lambda part: len(part.starts))}

    # The seeds of dropout are part of the key only if there is dropout
    key: list[Any] = ["pairs", corpus.digest]
    key += [[encoding.tokenizer.fingerprint, encoding.dropout.share] for encoding in encodings.values()]
    key += sorted({dropout.seed, source_dropout.seed} - {0})
    names = {f"{side}.{stem}": name for side, name in _PAIR_NAMES.items() for stem in encodings}
    streams, folder = cache.streams(key, names, write)
    train, valid = (
        _whole(name, streams[f"{side}.source"], streams[f"{side}.target"]) for side, name in _PAIR_NAMES.items()
    )
    return PairSplits(train, valid, folder)


def encode_pairs(pairs: Sequence[Pair], tokenizers: Tokenizers, name: str) -> PairFile:
    """Encode some pairs in memory."""
    source = in_memory(_pieces_of(pairs, "source"), Encoding(tokenizers.source), name)
    target = in_memory(_pieces_of(pairs, "target"), Encoding(tokenizers.target), name)
    return _whole(name, source, target)


def _whole(name: str, source: TokenFile, target: TokenFile) -> PairFile:
    return PairFile(name, source, target, np.arange(source.n_documents))


def _pieces_of(pairs: Sequence[Pair], stem: str) -> Iterator[Piece]:
    return (Piece(getattr(pair, stem), ends_document=True) for pair in pairs)


def pair_rows(pairs: PairFile) -> Rows:
    """Make `Rows` of pairs; the length of a pair is the length of its longer side plus 1, for a start or end token."""
    lengths = np.maximum(pairs.source_lengths, pairs.target_lengths) + 1

    def side(tokens: TokenFile, rows: Ids) -> Iterator[Ids]:
        return map(partial(taken, tokens), tokens.document_starts[rows], tokens.document_lengths[rows])

    def take(places: Ids) -> list[Example]:
        sides = side(pairs.target, pairs.rows[places]), side(pairs.source, pairs.rows[places])
        return [Example(target, source_ids=source) for target, source in zip(*sides, strict=True)]

    return Rows(pairs.name, lengths, take)
