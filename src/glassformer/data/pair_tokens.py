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
from glassformer.data.pair_files import Pair
from glassformer.data.pairs import PairCorpus
from glassformer.data.sources import Piece
from glassformer.data.tokens import (
    FORMAT_VERSION,
    KEY,
    SIDECAR,
    EncodedPart,
    TokenFile,
    await_streams,
    content_hash,
    encode_pieces,
    id_dtype,
    open_streams,
    write_stream,
)
from glassformer.tokenization.tokenizer import Tokenizer

Progress = Callable[[int, int], None]  # (pairs' sides done, sides in all)
NAMES = {"train": "training pairs", "valid": "validation pairs"}


@dataclass(frozen=True, eq=False)
class PairFile:
    """Two streams whose i-th documents belong together; `rows` says which of them are used, in order."""

    name: str  # what messages call it
    source: TokenFile
    target: TokenFile
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
    key = [FORMAT_VERSION, "pairs", corpus.digest]
    key += [[of_side.fingerprint, share] for of_side, share in of_sides.values()]
    key += [dropout_seed] if dropout_seed else []
    folder = cache_dir / content_hash(key)[:32]
    if (found := _open(folder, checks_hashes)) is not None:
        return found
    sides = dict(zip(NAMES, corpus.split, strict=True))
    n_sides, done = 2 * sum(map(len, sides.values())), 0
    files.clean_unfinished(cache_dir, KEY)
    with files.new_folder(folder) as temporary:
        sidecar: dict[str, Any] = {"format_version": FORMAT_VERSION, "pairs": corpus.name}
        for side, pairs in sides.items():
            for stem, (of_side, share) in of_sides.items():
                texts = [getattr(pair, stem) for pair in pairs]
                parts = _encoded(texts, of_side, share if side == "train" else 0.0, dropout_seed)
                sidecar[f"{side}.{stem}"] = write_stream(
                    temporary, f"{side}.{stem}", parts, id_dtype(of_side.vocab_size)
                )
                done += len(texts)
                if progress is not None:
                    progress(done, n_sides)
        files.write_json(temporary / SIDECAR, {"sha256": content_hash(sidecar), **sidecar})
    return await_streams(lambda: _open(folder), folder)


def encode_pairs(pairs: Sequence[Pair], tokenizer: Tokenizer, source_tokenizer: Tokenizer, name: str) -> PairFile:
    """The tokens of some pairs, in memory."""
    source = _in_memory([pair.source for pair in pairs], source_tokenizer, name)
    target = _in_memory([pair.target for pair in pairs], tokenizer, name)
    return PairFile(name, source, target, np.arange(len(pairs)))


def _in_memory(texts: Sequence[str], tokenizer: Tokenizer, name: str) -> TokenFile:
    parts = _encoded(texts, tokenizer, 0.0)
    dtype = id_dtype(tokenizer.vocab_size)
    return TokenFile(
        name=name,
        ids=np.concatenate([np.zeros(0, dtype), *(part.ids.astype(dtype) for part in parts)]),
        document_starts=np.concatenate([np.zeros(0, np.int64), *(part.starts for part in parts)]),
        n_bytes=sum(part.n_bytes for part in parts),
        n_characters=sum(part.n_characters for part in parts),
    )


def _encoded(texts: Sequence[str], tokenizer: Tokenizer, dropout: float, dropout_seed: int = 0) -> list[EncodedPart]:
    pieces = (Piece(text, ends_document=True) for text in texts)
    return list(encode_pieces(pieces, tokenizer, None, dropout=dropout, dropout_seed=dropout_seed))


def _open(folder: Path, checks_hashes: bool = True) -> PairSplits | None:
    names = {f"{side}.{stem}": name for side, name in NAMES.items() for stem in ("source", "target")}
    found = open_streams(folder, names, checks_hashes)
    if found is None:
        return None
    sides = {
        side: PairFile(
            name, found[f"{side}.source"], found[f"{side}.target"], np.arange(found[f"{side}.source"].n_documents)
        )
        for side, name in NAMES.items()
    }
    return PairSplits(sides["train"], sides["valid"], folder)
