"""Token ids of a corpus, encoded once, cached on disk and memory-mapped.

An encoded corpus is a folder of the cache. Its name is a hash of the text, the tokenizer and all settings:

    train.bin, valid.bin        concatenated ids, little-endian uint16, or uint32 for more than 65,536 tokens
    train.starts, valid.starts  index of the first id of each document, little-endian int64
    tokens.json                 counts, and the sizes and SHA-256 of these files

A corpus of pairs has two streams per side: train.source.bin, train.target.bin, valid.source.bin,
valid.target.bin, each with a `.starts` file. They contain no special tokens: the objective adds them.

With several training documents, each ends with the tokenizer's end token. It separates documents, and a model
learns to end a text. For next-token prediction each document also begins with a start token: a model learns to begin
a text, and every token of the text is a target. If one token has both roles (GPT-2's `<|endoftext|>`), it is written
once between two documents. A single document gets no start and end token, as in nanoGPT: random windows almost never
contain its beginning, and its end is only the place of the split.
"""

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from glassformer import files
from glassformer.data.corpus import Corpus, SplitSide
from glassformer.data.pairs import Pair, PairCorpus
from glassformer.data.texts import Piece, cut, joined
from glassformer.errors import UserError, is_out_of_memory
from glassformer.seeds import Stream, seed_of
from glassformer.tokenization.processes import in_order
from glassformer.tokenization.tokenizer import Tokenizer

T = TypeVar("T")

FORMAT_VERSION = 1
SIDECAR = "tokens.json"
DTYPES = ("<u2", "<u4")
KEY = "[0-9a-f]{32}"  # pattern of the folder names in the cache
BATCH_CHARACTERS = 1 << 20  # encoded at once: enough work for every core, at low memory use
PAYS_FROM = 8 << 20  # characters after which worker processes encode: they start in the time of about this text
_NAMES: dict[SplitSide, str] = {"train": "the training text", "valid": "the validation text"}
_PAIR_NAMES = {"train": "training pairs", "valid": "validation pairs"}

Progress = Callable[[int, int], None]  # called with (bytes of text done, total bytes); for pairs: numbers of texts


@dataclass(frozen=True, eq=False)
class TokenFile:
    """A stream of token ids and the starts of its documents; memory-mapped from disk, or in memory."""

    name: str  # name in messages, such as "the training text"
    ids: npt.NDArray[np.uint16] | npt.NDArray[np.uint32]  # (n_tokens,)
    document_starts: npt.NDArray[np.int64]  # (n_documents,), the first is 0; a start token belongs to its document
    n_bytes: int  # size of the text as UTF-8
    n_characters: int
    n_shared: int = 0  # 1 if the end token of a document is also the start token of the next, else 0

    @property
    def n_tokens(self) -> int:
        return len(self.ids)

    @property
    def n_documents(self) -> int:
        return len(self.document_starts)

    @property
    def document_lengths(self) -> npt.NDArray[np.int64]:
        """Number of tokens of each document, start and end tokens included."""
        return np.diff(self.document_starts, append=self.n_tokens - self.n_shared) + self.n_shared


@dataclass(frozen=True)
class Splits(Generic[T]):
    """Training and validation side of a corpus, and their folder on disk."""

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
    in_every_rank: bool = False,
) -> TokenSplits:
    """Return the tokens of a corpus: from the cache if complete and unchanged, else by encoding the text.

    The cache key is a hash of the text, the split, the tokenizer, `start_id` and dropout. A folder with changed
    files (size or SHA-256) is encoded again. An interrupted run leaves no folder that a later run would use.
    A large text is encoded by one worker process per processor (`tokenization/processes.py`), with the same result.
    Memory holds some pieces of the text, or some documents if the tokenizer needs whole documents
    (`Tokenizer.encodes_in_pieces`). `progress(done, total)` counts bytes of text.

    `start_id` is put before each document; without it, documents have no start token.

    `dropout` is the probability of skipping a merge in the training text (BPE-dropout, Provilkov et al. 2020),
    reproducible by `dropout_seed`. The validation text is encoded without dropout.

    With `checks_hashes=False` only the size of the ids is checked, if another process of the run checks the hashes.
    With `in_every_rank` all ranks of a run encode at the same time, and share the processors.
    """
    key: list[Any] = [FORMAT_VERSION, corpus.digest, tokenizer.fingerprint, dropout]
    key += [dropout_seed] if dropout_seed else []
    key += ["start", start_id] if start_id is not None else []
    folder = cache_dir / content_hash(key)[:32]
    if (found := _open(folder, checks_hashes)) is not None:
        return found
    n_bytes, done = corpus.n_bytes, 0

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
            encoded = encode_pieces(
                corpus.pieces(side),
                tokenizer,
                end_id,
                start_id,
                dropout=dropout if side == "train" else 0.0,
                dropout_seed=dropout_seed,
                in_every_rank=in_every_rank,
            )
            with closing(encoded) as parts:  # an error ends the worker processes at once
                sidecar[side] = write_stream(temporary, side, map(advance, parts), tokenizer)
            if not sidecar[side]["n_tokens"]:
                raise UserError(f"{_NAMES[side]} ({corpus.name}) has no tokens; use more text")
        files.write_json(temporary / SIDECAR, {"sha256": content_hash(sidecar), **sidecar})
    return await_streams(lambda: _open(folder), folder)


def encode_text(
    tokenizer: Tokenizer, documents: Iterable[str], *, start_id: int | None = None, name: str = "the text"
) -> TokenFile:
    """Encode whole documents in memory, for a small text that needs no cache.

    Each document begins with `start_id`, if given. As in `prepare`, each of several documents ends with the end token.
    """
    rest = iter(documents)
    first = list(itertools.islice(rest, 2))
    end_id = tokenizer.eos_id if len(first) > 1 else None
    pieces = (piece for document in itertools.chain(first, rest) for piece in cut([document]))
    parts = list(encode_pieces(pieces, tokenizer, end_id, start_id))
    if not sum(len(part.ids) for part in parts):
        raise UserError(f"{name} has no tokens; use more text")
    return in_memory(parts, tokenizer, name, _n_shared(start_id, end_id))


def _n_shared(start_id: int | None, end_id: int | None) -> int:
    return int(start_id is not None and start_id == end_id)


@dataclass(frozen=True, eq=False)
class EncodedPart:
    """The ids of some consecutive pieces."""

    ids: npt.NDArray[np.uint16] | npt.NDArray[np.uint32]  # start and end tokens included
    starts: npt.NDArray[np.int64]  # positions in the whole stream of the documents that begin in this part
    n_bytes: int
    n_characters: int


def in_memory(parts: Sequence[EncodedPart], tokenizer: Tokenizer, name: str, n_shared: int = 0) -> TokenFile:
    """Concatenate all parts to one stream in memory."""
    dtype = id_dtype(tokenizer.vocab_size)
    return TokenFile(
        name=name,
        ids=np.concatenate([np.zeros(0, dtype), *(part.ids for part in parts)]),
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
    in_every_rank: bool = False,
) -> Generator[EncodedPart, None, None]:
    """Encode a stream of pieces, about a million characters at a time, of a large text in several processes.

    Each document gets `start_id` before it and `end_id` after it, but not where the split cut it. If both are the
    same token, it is written once between two documents, cut or not.

    The ids equal those of whole documents. If a token of the tokenizer can span a cut, each document is joined and
    encoded at once, which needs memory for the whole document.
    """
    if not tokenizer.encodes_in_pieces:
        pieces = joined(pieces)
    encode = _BatchEncoder(tokenizer, end_id, start_id, dropout, dropout_seed)
    pays_from = PAYS_FROM if dropout == 0.0 else BATCH_CHARACTERS  # dropout takes some seconds per batch
    n_tokens = 0
    for part in in_order(encode, _batches(pieces), lambda batch: batch.n_characters, pays_from, in_every_rank):
        yield replace(part, starts=part.starts + n_tokens)
        n_tokens += len(part.ids)


@dataclass(frozen=True)
class _Batch:
    """Some consecutive pieces."""

    number: int
    pieces: list[Piece]
    n_characters: int
    begins: bool  # True if a document begins with the first piece


@dataclass(frozen=True)
class _BatchEncoder:
    """Encode batches, here or in a worker process, independently of each other."""

    tokenizer: Tokenizer
    end_id: int | None
    start_id: int | None
    dropout: float
    dropout_seed: int

    def __call__(self, batch: _Batch) -> EncodedPart:
        """Encode a batch; `starts` are positions in the part, -1 for an end token before it that starts a document."""
        texts = [piece.text for piece in batch.pieces]
        seed = seed_of(self.dropout_seed, Stream.BPE_DROPOUT, batch.number)
        start_id, end_id, is_shared = self.start_id, self.end_id, bool(_n_shared(self.start_id, self.end_id))
        ids: list[int] = []
        starts: list[int] = []
        begins = batch.begins
        encoded = self.tokenizer.encode_batch(texts, dropout=self.dropout, seed=seed)
        for piece, piece_ids in zip(batch.pieces, encoded, strict=True):
            if begins:
                if is_shared and (batch.number > 0 or ids):
                    starts.append(len(ids) - 1)
                else:
                    starts.append(len(ids))
                    ids += [] if start_id is None or piece.is_cut_before else [start_id]
            ids += piece_ids
            if piece.ends_document and end_id is not None and (is_shared or not piece.is_cut_after):
                ids.append(end_id)
            begins = piece.ends_document
        return EncodedPart(
            np.array(ids, dtype=id_dtype(self.tokenizer.vocab_size)),
            np.array(starts, dtype=np.int64),
            sum(len(text.encode()) for text in texts),
            batch.n_characters,
        )


def _batches(pieces: Iterable[Piece]) -> Iterator[_Batch]:
    batch: list[Piece] = []
    number, n_characters, begins = 0, 0, True
    for piece in pieces:
        batch.append(piece)
        n_characters += len(piece.text)
        if n_characters >= BATCH_CHARACTERS:
            yield _Batch(number, batch, n_characters, begins)
            begins = piece.ends_document
            batch, number, n_characters = [], number + 1, 0
    if batch:
        yield _Batch(number, batch, n_characters, begins)


def content_hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def id_dtype(vocab_size: int) -> str:
    return DTYPES[vocab_size > 1 << 16]


def write_stream(folder: Path, stem: str, parts: Iterable[EncodedPart], tokenizer: Tokenizer) -> dict[str, Any]:
    """Write one stream part by part, and return its entry of the sidecar."""
    n_tokens = n_documents = n_bytes = n_characters = 0
    paths = _stream_paths(folder, stem)
    with open(paths[0], "wb") as ids_file, open(paths[1], "wb") as starts_file:
        for part in parts:
            ids_file.write(part.ids.tobytes())
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
        "dtype": id_dtype(tokenizer.vocab_size),
        "files": {path.name: {"n_bytes": path.stat().st_size, "sha256": files.sha256(path)} for path in paths},
    }


def _open(folder: Path, checks_hashes: bool = True) -> TokenSplits | None:
    """Open an encoded corpus; return None if its folder is missing or its files have changed."""
    found = open_streams(folder, {side: _NAMES[side] for side in _NAMES}, checks_hashes)
    return None if found is None else TokenSplits(found["train"], found["valid"], folder)


def open_streams(folder: Path, names: Mapping[str, str], checks_hashes: bool = True) -> dict[str, TokenFile] | None:
    """Open the streams of a folder by their stems; return None if any file is missing or has changed.

    `names` maps each stem to its name in messages. Without `checks_hashes` only the size of the large files of ids is
    checked.
    """
    if not folder.is_dir():
        return None
    try:
        sidecar = files.read_json(folder / SIDECAR)
        if sidecar.pop("sha256") != content_hash(sidecar):
            raise ValueError(f"{folder / SIDECAR} has changed since it was written")
        n_shared = _n_shared(sidecar.get("start_id"), sidecar.get("end_id"))
        return {s: _open_stream(folder, s, sidecar[s], name, n_shared, checks_hashes) for s, name in names.items()}
    except (UserError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        if is_out_of_memory(error):  # too little address space for the mapped files
            raise
        return None


def await_streams(open_folder: Callable[[], T | None], folder: Path) -> T:
    """Open the streams just written to `folder`; wait if another process is replacing them by the same streams."""
    for _ in range(20):
        if (prepared := open_folder()) is not None:
            return prepared
        time.sleep(0.1)
    raise UserError(f"the tokens read back from {folder} differ from the tokens written; check the disk")


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
            raise ValueError(f"{path} has changed since it was written")
    return TokenFile(
        name=name,
        # a plain array over the same mapping: slicing a memmap takes several times as long
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
    """Two streams whose i-th documents are a pair; `rows` has the indices of the pairs in use, in order."""

    name: str  # name in messages
    source: TokenFile
    target: TokenFile
    rows: npt.NDArray[np.int64]  # (n_pairs,)

    @property
    def n_pairs(self) -> int:
        return len(self.rows)

    @property
    def source_lengths(self) -> npt.NDArray[np.int64]:
        """(n_pairs,) number of ids of each source, without an end token."""
        return self.source.document_lengths[self.rows]

    @property
    def target_lengths(self) -> npt.NDArray[np.int64]:
        """(n_pairs,) number of ids of each target, without start or end token."""
        return self.target.document_lengths[self.rows]

    def within(self, source_max: int, target_max: int, added: tuple[int, int] = (1, 1)) -> tuple["PairFile", int]:
        """Select the pairs that fit a model, and count the others; `added` = special tokens of source and target."""
        fits = (self.source_lengths + added[0] <= source_max) & (self.target_lengths + added[1] <= target_max)
        return replace(self, rows=self.rows[fits]), int((~fits).sum())

    def beginning(self, n_pairs: int) -> "PairFile":
        """Select the first `n_pairs` pairs."""
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
    in_every_rank: bool = False,
) -> PairSplits:
    """Return the tokens of a corpus of pairs: from the cache if complete and unchanged, else by encoding, as `prepare`.

    The cache key is a hash of the pairs, the split, both tokenizers and dropout. Changed files are encoded again.
    `dropout` is the probability of skipping a merge in the targets of the training pairs (BPE-dropout),
    `source_dropout` that in their sources; both are reproducible by `dropout_seed`.
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
                parts = _encoded_texts(texts, of_side, share if side == "train" else 0.0, dropout_seed, in_every_rank)
                sidecar[f"{side}.{stem}"] = write_stream(temporary, f"{side}.{stem}", parts, of_side)
                done += len(texts)
                if progress is not None:
                    progress(done, n_sides)
        files.write_json(temporary / SIDECAR, {"sha256": content_hash(sidecar), **sidecar})
    return await_streams(lambda: _open_pairs(folder), folder)


def encode_pairs(pairs: Sequence[Pair], tokenizer: Tokenizer, source_tokenizer: Tokenizer, name: str) -> PairFile:
    """Encode some pairs in memory."""
    sources = _encoded_texts([pair.source for pair in pairs], source_tokenizer)
    targets = _encoded_texts([pair.target for pair in pairs], tokenizer)
    return _whole(name, in_memory(sources, source_tokenizer, name), in_memory(targets, tokenizer, name))


def _whole(name: str, source: TokenFile, target: TokenFile) -> PairFile:
    return PairFile(name, source, target, np.arange(source.n_documents))


def _encoded_texts(
    texts: list[str], tokenizer: Tokenizer, dropout: float = 0.0, seed: int = 0, in_every_rank: bool = False
) -> list[EncodedPart]:
    pieces = (Piece(text, ends_document=True) for text in texts)
    parts = encode_pieces(pieces, tokenizer, None, dropout=dropout, dropout_seed=seed, in_every_rank=in_every_rank)
    return list(parts)


def _open_pairs(folder: Path, checks_hashes: bool = True) -> PairSplits | None:
    names = {f"{side}.{stem}": name for side, name in _PAIR_NAMES.items() for stem in ("source", "target")}
    if (found := open_streams(folder, names, checks_hashes)) is None:
        return None
    train, valid = (_whole(name, found[f"{s}.source"], found[f"{s}.target"]) for s, name in _PAIR_NAMES.items())
    return PairSplits(train, valid, folder)
