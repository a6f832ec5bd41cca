"""Pairs as token ids, prepared once and memory-mapped: `tokens`, with two streams a side.

    train.source.bin, train.target.bin, valid.source.bin, valid.target.bin    ids, and `.starts` beside each

No special token is in them: an objective adds those, and knows which.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer import files
from glassformer.data import tokens
from glassformer.data.pairs import Pair, PairCorpus
from glassformer.data.sources import Piece
from glassformer.tokenization.tokenizer import Tokenizer

Progress = Callable[[int, int], None]  # (pairs' sides done, sides in all)
NAMES = {"train": "training pairs", "valid": "validation pairs"}


@dataclass(frozen=True, eq=False)
class PairFile:
    """Two streams whose i-th documents belong together; `rows` says which of them are used, in order."""

    name: str  # what messages call it
    source: tokens.TokenFile
    target: tokens.TokenFile
    rows: npt.NDArray[np.int64]  # (n_pairs,)

    @property
    def n_pairs(self) -> int:
        return len(self.rows)

    @property
    def source_lengths(self) -> npt.NDArray[np.int64]:
        """(n_pairs,) ids of each source, without an end token."""
        return self.source.document_lengths[self.rows]

    @property
    def target_lengths(self) -> npt.NDArray[np.int64]:
        """(n_pairs,) ids of each target, without start or end token."""
        return self.target.document_lengths[self.rows]

    def within(self, source_max: int, target_max: int, added: tuple[int, int] = (1, 1)) -> tuple["PairFile", int]:
        """The pairs that fit a model, and how many do not: `added` tokens, such as an end, stand around both sides."""
        fits = (self.source_lengths + added[0] <= source_max) & (self.target_lengths + added[1] <= target_max)
        return replace(self, rows=self.rows[fits]), int((~fits).sum())

    def beginning(self, n_pairs: int) -> "PairFile":
        """The first pairs."""
        return replace(self, rows=self.rows[:n_pairs])


@dataclass(frozen=True)
class PairSplits:
    """Both sides of a corpus; `folder` is where they lie on disk."""

    train: PairFile
    valid: PairFile
    folder: Path


def prepare_pairs(
    corpus: PairCorpus,
    tokenizer: Tokenizer,
    source_tokenizer: Tokenizer,
    cache_dir: Path,
    *,
    dropout: float = 0.0,
    source_dropout: float = 0.0,
    dropout_seed: int = 0,
    progress: Progress | None = None,
    checks_hashes: bool = True,
) -> PairSplits:
    """The tokens of a corpus of pairs, with the guarantees of `tokens.prepare`.

    Found by the hash of the pairs, the split and both tokenizers; altered files are prepared anew. `dropout`
    leaves merges out of the training pairs' targets (BPE-dropout), `source_dropout` out of their sources, the same
    ones for the same `dropout_seed`.
    """
    of_sides = {"source": (source_tokenizer, source_dropout), "target": (tokenizer, dropout)}
    key = [tokens.FORMAT_VERSION, "pairs", corpus.digest]
    key += [[of_side.fingerprint, share] for of_side, share in of_sides.values()]
    key += [dropout_seed] if dropout_seed else []
    folder = cache_dir / tokens.content_hash(key)[:32]
    if (found := _open(folder, checks_hashes)) is not None:
        return found
    sides = dict(zip(NAMES, corpus.split, strict=True))
    n_sides, done = 2 * sum(map(len, sides.values())), 0
    files.clean_unfinished(cache_dir, tokens.KEY)
    with files.new_folder(folder) as temporary:
        sidecar: dict[str, Any] = {"format_version": tokens.FORMAT_VERSION, "pairs": corpus.name}
        for side, pairs in sides.items():
            for stem, (of_side, share) in of_sides.items():
                texts = [getattr(pair, stem) for pair in pairs]
                parts = _encoded(texts, of_side, share if side == "train" else 0.0, dropout_seed)
                sidecar[f"{side}.{stem}"] = tokens.write_stream(
                    temporary, f"{side}.{stem}", parts, tokens.id_dtype(of_side.vocab_size)
                )
                done += len(texts)
                if progress is not None:
                    progress(done, n_sides)
        files.write_json(temporary / tokens.SIDECAR, {"sha256": tokens.content_hash(sidecar), **sidecar})
    return tokens.await_streams(lambda: _open(folder), folder)


def encode_pairs(pairs: Sequence[Pair], tokenizer: Tokenizer, source_tokenizer: Tokenizer, name: str) -> PairFile:
    """The tokens of some pairs, in memory."""
    sources = _encoded([pair.source for pair in pairs], source_tokenizer)
    targets = _encoded([pair.target for pair in pairs], tokenizer)
    source, target = tokens.in_memory(sources, source_tokenizer, name), tokens.in_memory(targets, tokenizer, name)
    return PairFile(name, source, target, np.arange(len(pairs)))


def _encoded(
    texts: Sequence[str], tokenizer: Tokenizer, dropout: float = 0.0, dropout_seed: int = 0
) -> list[tokens.EncodedPart]:
    pieces = (Piece(text, ends_document=True) for text in texts)
    return list(tokens.encode_pieces(pieces, tokenizer, None, dropout=dropout, dropout_seed=dropout_seed))


def _open(folder: Path, checks_hashes: bool = True) -> PairSplits | None:
    names = {f"{side}.{stem}": name for side, name in NAMES.items() for stem in ("source", "target")}
    found = tokens.open_streams(folder, names, checks_hashes)
    if found is None:
        return None
    sides = {
        side: PairFile(
            name, found[f"{side}.source"], found[f"{side}.target"], np.arange(found[f"{side}.source"].n_documents)
        )
        for side, name in NAMES.items()
    }
    return PairSplits(sides["train"], sides["valid"], folder)
