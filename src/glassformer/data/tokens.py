"""Token ids on disk, memory-mapped, prepared once.

A prepared corpus is a folder of its cache, named after the hash of everything that decides its content:

    train.bin, valid.bin        the ids one after another, little-endian uint16, or uint32 above 65,536 tokens
    train.starts, valid.starts  where each document begins, little-endian int64
    tokens.json                 counts, and the sizes and SHA-256 of these files

A prepared corpus of pairs has two streams a side: train.source.bin, train.target.bin, valid.source.bin,
valid.target.bin, and `.starts` beside each. No special token is in them: an objective adds those, and knows which.

When several documents train, each is followed by the tokenizer's end token, so that documents are kept apart and a
model learns to end a text. For next-token prediction each also begins with a start token, so that a model learns to
begin one, and so that every token of the text is a target. Where one token does both (GPT-2's `<|endoftext|>`), it is
written once between two documents. A single text gets neither: a random window almost never holds its beginning, and
its last character is where the split ended it. Its ids are those of the text alone, as in nanoGPT.
"""

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from glassformer import files
from glassformer.data.corpus import Corpus, SplitSide
from glassformer.data.pairs import Pair, PairCorpus
from glassformer.data.sources import Piece, cut, joined
from glassformer.errors import UserError
from glassformer.seeds import Stream, seed_of
from glassformer.tokenization.tokenizer import Tokenizer

T = TypeVar("T")

FORMAT_VERSION = 1
SIDECAR = "tokens.json"
DTYPES = ("<u2", "<u4")
KEY = "[0-9a-f]{32}"  # what folders of the cache are called
BATCH_CHARACTERS = 1 << 20  # encoded at once: enough for every core, little for the memory
_NAMES: dict[SplitSide, str] = {"train": "the training text", "valid": "the validation text"}
_PAIR_NAMES = {"train": "training pairs", "valid": "validation pairs"}

Progress = Callable[[int, int], None]  # (bytes of text done, bytes in all); of pairs: their sides


@dataclass(frozen=True, eq=False)
class TokenFile:
    """A stream of token ids and where its documents begin; mapped from disk, or in memory."""

    name: str  # what messages call it: "the training text"
    ids: npt.NDArray[np.uint16] | npt.NDArray[np.uint32]  # (n_tokens,)
    document_starts: npt.NDArray[np.int64]  # (n_documents,), the first is 0; a start token is part of its document
    n_bytes: int  # of the text as UTF-8
    n_characters: int
    n_shared: int = 0  # tokens that end one document and start the next: 1 where one token does both, else 0

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    @property
    def n_documents(self) -> int:
        return len(self.document_starts)

    @property
    def document_lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each document, its start and end tokens included."""
        return np.diff(self.document_starts, append=self.n_tokens - self.n_shared) + self.n_shared


@dataclass(frozen=True)
class Splits(Generic[T]):
    """Both sides of a corpus; `folder` is where they lie on disk."""

    train: T
    valid: T
    folder: Path


TokenSplits = Splits[TokenFile]


def prepare(
    corpus: Corpus,
    tokenizer: Tokenizer,
    cache_dir: Path,
    *,
    start_id: int | None = None,
    dropout: float = 0.0,
    dropout_seed: int = 0,
    progress: Progress | None = None,
    checks_hashes: bool = True,
) -> TokenSplits:
    """The tokens of a corpus: from the cache when they are there, whole and unaltered; else encoded.

    Found by content: by the hash of the text, of the split and of the tokenizer. A folder whose files have
    changed (size or SHA-256) is prepared anew, and a preparation that dies leaves nothing that a later one
    would accept. Memory holds some pieces of the text, or the longest document where the tokenizer must read it whole
    (`Tokenizer.encodes_in_pieces`). `progress(done, total)` counts bytes of text.

    `start_id` is put before each document; None puts nothing there.

    `dropout` is the share of merges left out of the training side (BPE-dropout, Provilkov et al. 2020). It is
    the same for the same `dropout_seed`; the validation side never has any.

    Without `checks_hashes` the ids of a prepared folder are compared by size alone: for a process of several, of which
    another has compared the hashes.
    """
    key: list[Any] = [FORMAT_VERSION, corpus.digest, tokenizer.fingerprint, dropout]
    key += [dropout_seed] if dropout_seed else []
    key += ["start", start_id] if start_id is not None else []
    folder = cache_dir / content_hash(key)[:32]
    if (found := _open(folder, checks_hashes)) is not None:
        return found
    n_bytes = corpus.n_bytes
    done = 0

    def advance(part: EncodedPart) -> EncodedPart:
        nonlocal done
        done += part.n_bytes
        if progress is not None:
            progress(done, n_bytes)
        return part

    end_id = tokenizer.eos_id if corpus.plan.end_tokens else None
    files.clean_unfinished(cache_dir, KEY)
    with files.new_folder(folder) as temporary:
        sidecar: dict[str, Any] = {"format_version": FORMAT_VERSION, "text": corpus.name, "end_id": end_id}
        if start_id is not None:
            sidecar["start_id"] = start_id
        for side in _NAMES:
            parts = encode_pieces(
                corpus.pieces(side),
                tokenizer,
                end_id,
                start_id,
                dropout=dropout if side == "train" else 0.0,
                dropout_seed=dropout_seed,
                always_in_pieces=corpus.reading == 1,
            )
            sidecar[side] = write_stream(temporary, side, map(advance, parts), tokenizer)
            if not sidecar[side]["n_tokens"]:
                raise UserError(f"{_NAMES[side]} ({corpus.name}) gives no token at all; give more text")
        files.write_json(temporary / SIDECAR, {"sha256": content_hash(sidecar), **sidecar})
    return await_streams(lambda: _open(folder), folder)


def encode_text(
    tokenizer: Tokenizer, documents: Iterable[str], *, start_id: int | None = None, name: str = "the text"
) -> TokenFile:
    """The tokens of whole documents, in memory: for a small text that is not worth a place in the cache.

    Each document begins with `start_id`, if there is one. The rule for end tokens is that of `prepare`: one after each
    document, none when there is a single one.
    """
    rest = iter(documents)
    first = list(itertools.islice(rest, 2))
    end_id = tokenizer.eos_id if len(first) > 1 else None
    pieces = (piece for document in itertools.chain(first, rest) for piece in cut([document]))
    parts = list(encode_pieces(pieces, tokenizer, end_id, start_id))
    if not sum(len(part.ids) for part in parts):
        raise UserError(f"{name} gives no token at all; give more text")
    return in_memory(parts, tokenizer, name, _n_shared(start_id, end_id))


def _n_shared(start_id: int | None, end_id: int | None) -> int:
    return int(start_id is not None and start_id == end_id)


@dataclass(frozen=True, eq=False)
class EncodedPart:
    """Some pieces as ids."""

    ids: npt.NDArray[np.int64]  # start and end tokens included
    starts: npt.NDArray[np.int64]  # in the whole stream, of the documents that begin in this part
    n_bytes: int
    n_characters: int


def in_memory(parts: Sequence[EncodedPart], tokenizer: Tokenizer, name: str, n_shared: int = 0) -> TokenFile:
    """One stream of all parts."""
    dtype = id_dtype(tokenizer.vocab_size)
    return TokenFile(
        name=name,
        ids=np.concatenate([np.zeros(0, dtype), *(part.ids.astype(dtype) for part in parts)]),
        document_starts=np.concatenate([np.zeros(0, np.int64), *(part.starts for part in parts)]),
        n_bytes=sum(part.n_bytes for part in parts),
        n_characters=sum(part.n_characters for part in parts),
        n_shared=n_shared,
    )


def encode_pieces(
    pieces: Iterable[Piece],
    tokenizer: Tokenizer,
    end_id: int | None,
    start_id: int | None = None,
    *,
    dropout: float = 0.0,
    dropout_seed: int = 0,
    always_in_pieces: bool = False,
) -> Iterator[EncodedPart]:
    """Encode a stream of pieces, about a million characters at a time.

    Each document has `start_id` before it and `end_id` after it, but not where the split cut it. Where the two are the
    same token, it stands once between two documents, cut or not.

    The ids are those of whole documents. A tokenizer that may join what stands on the two sides of a cut encodes each
    document whole, which takes memory for all of it, unless it is to encode `always_in_pieces`.
    """
    if not (tokenizer.encodes_in_pieces or always_in_pieces):
        pieces = joined(pieces)
    n_tokens, begins, is_shared = 0, True, bool(_n_shared(start_id, end_id))
    for number, batch in enumerate(_batches(pieces)):
        texts = [piece.text for piece in batch]
        ids: list[int] = []
        starts: list[int] = []
        encoded = tokenizer.encode_batch(texts, dropout=dropout, seed=seed_of(dropout_seed, Stream.BPE_DROPOUT, number))
        for piece, piece_ids in zip(batch, encoded, strict=True):
            if begins:
                n_before = n_tokens + len(ids)
                if n_before and is_shared:
                    starts.append(n_before - 1)
                else:
                    starts.append(n_before)
                    ids += [] if start_id is None or piece.is_cut_before else [start_id]
            ids += piece_ids
            if piece.ends_document and end_id is not None and (is_shared or not piece.is_cut_after):
                ids.append(end_id)
            begins = piece.ends_document
        n_tokens += len(ids)
        yield EncodedPart(
            np.array(ids, dtype=np.int64),
            np.array(starts, dtype=np.int64),
            n_bytes=sum(len(text.encode()) for text in texts),
            n_characters=sum(map(len, texts)),
        )


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    n_characters = 0
    for piece in pieces:
        batch.append(piece)
        n_characters += len(piece.text)
        if n_characters >= BATCH_CHARACTERS:
            yield batch
            batch, n_characters = [], 0
    if batch:
        yield batch


def content_hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def id_dtype(vocab_size: int) -> str:
    return DTYPES[vocab_size > 1 << 16]


def write_stream(folder: Path, stem: str, parts: Iterable[EncodedPart], tokenizer: Tokenizer) -> dict[str, Any]:
    """Writes one stream as its parts arrive, and returns its part of the sidecar."""
    n_tokens = n_documents = n_bytes = n_characters = 0
    dtype = id_dtype(tokenizer.vocab_size)
    paths = _stream_paths(folder, stem)
    with open(paths[0], "wb") as ids_file, open(paths[1], "wb") as starts_file:
        for part in parts:
            ids_file.write(part.ids.astype(dtype).tobytes())
            starts_file.write(part.starts.astype("<i8").tobytes())
            n_tokens += len(part.ids)
            n_documents += len(part.starts)
            n_bytes += part.n_bytes
            n_characters += part.n_characters
    return {
        "n_tokens": n_tokens,
        "n_documents": n_documents,
        "n_bytes": n_bytes,
        "n_characters": n_characters,
        "dtype": dtype,
        "files": {path.name: {"n_bytes": path.stat().st_size, "sha256": files.sha256(path)} for path in paths},
    }


def _open(folder: Path, checks_hashes: bool = True) -> TokenSplits | None:
    """Maps a prepared folder; None when it is not there, or its files are not those that were written."""
    found = open_streams(folder, {side: _NAMES[side] for side in _NAMES}, checks_hashes)
    return None if found is None else TokenSplits(found["train"], found["valid"], folder)


def open_streams(folder: Path, names: Mapping[str, str], checks_hashes: bool = True) -> dict[str, TokenFile] | None:
    """The streams of a prepared folder by their stems; None when anything in it is not what was written.

    `names` gives for each stem what messages call it. Without `checks_hashes` the files of ids, which are large, are
    compared by size alone.
    """
    if not folder.is_dir():
        return None
    try:
        sidecar = files.read_json(folder / SIDECAR)
        if sidecar.pop("sha256") != content_hash(sidecar):
            raise ValueError(f"{folder / SIDECAR} is not what was written")
        n_shared = _n_shared(sidecar.get("start_id"), sidecar.get("end_id"))
        return {
            stem: _open_stream(folder, stem, sidecar[stem], name, n_shared, checks_hashes)
            for stem, name in names.items()
        }
    except (UserError, OSError, AttributeError, KeyError, TypeError, ValueError):
        return None


def await_streams(open_folder: Callable[[], T | None], folder: Path) -> T:
    """What was just written to `folder`; another process that prepared the same may be putting its own in place."""
    for _ in range(20):
        if (prepared := open_folder()) is not None:
            return prepared
        time.sleep(0.1)
    raise UserError(f"the tokens just written to {folder} read back altered: the disk is not to be trusted")


def _open_stream(
    folder: Path, stem: str, described: dict[str, Any], name: str, n_shared: int, checks_hashes: bool
) -> TokenFile:
    paths = ids_path, starts_path = _stream_paths(folder, stem)
    dtype = described["dtype"]
    counts = (described["n_bytes"], described["n_characters"])
    if dtype not in DTYPES or any(type(count) is not int for count in counts):
        raise ValueError(f"{folder / SIDECAR} does not describe {stem}")
    for path in paths:
        written = described["files"][path.name]
        is_hashed = checks_hashes or path == starts_path
        if path.stat().st_size != written["n_bytes"] or (is_hashed and files.sha256(path) != written["sha256"]):
            raise ValueError(f"{path} is not what was written")
    return TokenFile(
        name=name,
        # as a plain array: the same mapping, but a slice of a memmap takes several times as long
        ids=np.asarray(np.memmap(ids_path, dtype, mode="r")) if ids_path.stat().st_size else np.zeros(0, dtype),
        document_starts=np.fromfile(starts_path, "<i8"),
        n_bytes=described["n_bytes"],
        n_characters=described["n_characters"],
        n_shared=n_shared,
    )


def _stream_paths(folder: Path, stem: str) -> tuple[Path, Path]:
    return folder / f"{stem}.bin", folder / f"{stem}.starts"


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


PairSplits = Splits[PairFile]


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
    """The tokens of a corpus of pairs, with the guarantees of `prepare`.

    Found by the hash of the pairs, the split and both tokenizers; altered files are prepared anew. `dropout`
    leaves merges out of the training pairs' targets (BPE-dropout), `source_dropout` out of their sources, the same
    ones for the same `dropout_seed`.
    """
    of_sides = {"source": (source_tokenizer, source_dropout), "target": (tokenizer, dropout)}
    key = [FORMAT_VERSION, "pairs", corpus.digest]
    key += [[of_side.fingerprint, share] for of_side, share in of_sides.values()]
    key += [dropout_seed] if dropout_seed else []
    folder = cache_dir / content_hash(key)[:32]
    if (found := _open_pairs(folder, checks_hashes)) is not None:
        return found
    sides = dict(zip(_PAIR_NAMES, corpus.split, strict=True))
    n_sides, done = 2 * sum(map(len, sides.values())), 0
    files.clean_unfinished(cache_dir, KEY)
    with files.new_folder(folder) as temporary:
        sidecar: dict[str, Any] = {"format_version": FORMAT_VERSION, "pairs": corpus.name}
        for side, pairs in sides.items():
            for stem, (of_side, share) in of_sides.items():
                texts = [getattr(pair, stem) for pair in pairs]
                parts = _encoded_texts(texts, of_side, share if side == "train" else 0.0, dropout_seed)
                sidecar[f"{side}.{stem}"] = write_stream(temporary, f"{side}.{stem}", parts, of_side)
                done += len(texts)
                if progress is not None:
                    progress(done, n_sides)
        files.write_json(temporary / SIDECAR, {"sha256": content_hash(sidecar), **sidecar})
    return await_streams(lambda: _open_pairs(folder), folder)


def encode_pairs(pairs: Sequence[Pair], tokenizer: Tokenizer, source_tokenizer: Tokenizer, name: str) -> PairFile:
    """The tokens of some pairs, in memory."""
    sources = _encoded_texts([pair.source for pair in pairs], source_tokenizer)
    targets = _encoded_texts([pair.target for pair in pairs], tokenizer)
    return _whole(name, in_memory(sources, source_tokenizer, name), in_memory(targets, tokenizer, name))


def _whole(name: str, source: TokenFile, target: TokenFile) -> PairFile:
    return PairFile(name, source, target, np.arange(source.n_documents))


def _encoded_texts(
    texts: Sequence[str], tokenizer: Tokenizer, dropout: float = 0.0, dropout_seed: int = 0
) -> list[EncodedPart]:
    pieces = (Piece(text, ends_document=True) for text in texts)
    return list(encode_pieces(pieces, tokenizer, None, dropout=dropout, dropout_seed=dropout_seed))


def _open_pairs(folder: Path, checks_hashes: bool = True) -> PairSplits | None:
    names = {f"{side}.{stem}": name for side, name in _PAIR_NAMES.items() for stem in ("source", "target")}
    found = open_streams(folder, names, checks_hashes)
    if found is None:
        return None
    train, valid = (
        _whole(name, found[f"{side}.source"], found[f"{side}.target"]) for side, name in _PAIR_NAMES.items()
    )
    return PairSplits(train, valid, folder)
