"""Token ids of a corpus, encoded once, cached on disk and memory-mapped.

An encoded corpus is a folder of the cache. Its name is a hash of the text, the tokenizer and all settings:

    train.bin, valid.bin        concatenated ids, little-endian uint16, or uint32 for more than 65,536 tokens
    train.starts, valid.starts  index of the first id of each document, little-endian int64
    tokens.json                 counts, and the sizes and SHA-256 of these files

A corpus of pairs has two streams per side: train.source.bin, train.target.bin, valid.source.bin,
valid.target.bin, each with a `.starts` file. They contain no special tokens: the objective adds them.

With several training documents, each ends with the tokenizer's end token. The end token separates documents, and from
it a model learns to end a text. For next-token prediction each document also begins with a start token. So a model
learns to begin a text, and every token of the text is a target. If one token has both roles (GPT-2's `<|endoftext|>`),
it is written once between two documents. A single document gets no start and end token, as in nanoGPT: random windows
almost never contain its beginning, and its end is only the place of the split.
"""

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from glassformer.common import errors, files
from glassformer.common.seeds import Stream, seed_of
from glassformer.config.run import TokenizerConfig
from glassformer.data.corpus import Corpus, SplitSide
from glassformer.data.kinds import Phase
from glassformer.data.texts import Piece, cut, joined
from glassformer.tokenization.processes import in_order
from glassformer.tokenization.tokenizer import Tokenizer

T = TypeVar("T")

FORMAT_VERSION = 1
SIDECAR = "tokens.json"
DTYPES = ("<u2", "<u4")
KEY = "[0-9a-f]{32}"  # pattern of the folder names in the cache
BATCH_CHARACTERS = 1 << 20  # encoded at once: enough work for every core, at low memory use
BATCH_TOKENS = 1 << 24  # searched for unknown text at once
PAYS_FROM = 8 << 20  # characters after which worker processes encode: they start in the time of about this text
SIDES: tuple[SplitSide, ...] = ("train", "valid")
_NAMES = {"train": "the training text", "valid": "the validation text"}


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

    def unknown(self, tokenizer: Tokenizer, part: str = "") -> list[str]:
        """Return a note about the parts of the text that are unknown to the tokenizer, if there are any."""
        n, places, token = 0, list[str](), tokenizer.unknown_id
        for begin in range(0, 0 if token is None else self.n_tokens, BATCH_TOKENS):
            found = np.flatnonzero(self.ids[begin : begin + BATCH_TOKENS] == token) + begin
            n += len(found)
            for at in found[: errors.UNKNOWN_SHOWN - len(places)].tolist():
                before = tokenizer.decode(self.ids[max(0, at - 12) : at].tolist())
                places.append(f"token {at + 1:,}, after {errors.quoted(before[-30:])}")
        return [errors.unknown_sentence(n, part + self.name, places)] if n else []

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


@dataclass(frozen=True)
class BpeDropout:
    """BPE-dropout of training texts (Provilkov et al. 2020): merges are skipped at random."""

    share: float = 0.0  # probability of skipping a merge
    seed: int = 0  # equal seeds skip the same merges


NO_DROPOUT = BpeDropout()


@dataclass(frozen=True)
class TokenCache:
    """A folder of encoded corpora, and how a process of a run uses it."""

    folder: Path
    progress: errors.Progress | None = None  # called with (bytes of text done, total); for pairs: numbers of texts
    checks_hashes: bool = True  # False: only sizes of the ids are checked; another process of the run checks the hashes
    in_every_rank: bool = False  # True: all ranks of a run encode at the same time, and share the processors

    def streams(
        self, key: list[Any], names: Mapping[str, str], write: Callable[[Path], dict[str, Any]]
    ) -> tuple[dict[str, TokenFile], Path]:
        """Return the streams of a corpus by stem, and their folder; `write` fills a folder that is missing or damaged.

        The hash of `key` names the folder, and `names` maps each stem (the name of its files without the suffix) to its
        name in messages. `write` encodes the corpus to a folder and returns the sidecar. A folder with changed files
        (size or SHA-256) is written again. An interrupted run leaves no folder that a later run would use.
        """
        folder = self.folder / content_hash([FORMAT_VERSION, *key])[:32]
        streams = open_streams(folder, names, self.checks_hashes)
        if streams is not None:
            return streams, folder
        files.clean_unfinished(self.folder, KEY)
        with files.new_folder(folder) as temporary:
            sidecar = {"format_version": FORMAT_VERSION, **write(temporary)}
            files.write_json(temporary / SIDECAR, {"sha256": content_hash(sidecar), **sidecar})
        for _ in range(20):  # another process may be replacing the folder by an equal one
            streams = open_streams(folder, names)
            if streams is not None:
                return streams, folder
            time.sleep(0.1)
        raise errors.UserError(f"the tokens read back from {folder} differ from the tokens written; check the disk")

    def write(
        self,
        folder: Path,
        texts: Mapping[str, tuple[Iterable[Piece], "Encoding"]],
        total: int,
        size: Callable[["EncodedPart"], int],
    ) -> dict[str, Any]:
        """Encode the texts of each stem to files in a folder; return the sidecar's entry of each stem.

        The progress counts the `size` of each part, up to `total`.
        """
        done = 0

        def counted(parts: Iterable[EncodedPart]) -> Iterator[EncodedPart]:
            nonlocal done
            for part in parts:
                done += size(part)
                if self.progress is not None:
                    self.progress(done, total)
                yield part

        entries: dict[str, Any] = {}
        for stem, (pieces, encoding) in texts.items():
            parts = encode_pieces(pieces, encoding, self.in_every_rank)
            with closing(parts):  # an error ends the worker processes at once
                entries[stem] = write_stream(folder, stem, counted(parts), encoding.tokenizer)
        return entries


def prepare(
    corpus: Corpus,
    tokenizer: Tokenizer,
    cache: TokenCache,
    *,
    start_id: int | None = None,
    dropout: BpeDropout = NO_DROPOUT,
) -> TokenSplits:
    """Return the tokens of a corpus: unchanged tokens from the cache, else the encoded text.

    The cache key is a hash of the text, the split, the tokenizer, `start_id` and dropout. A large text is encoded by
    one worker process per processor (`tokenization/processes.py`), with the same result. Memory holds some pieces of
    the text, or some documents if the tokenizer needs whole documents (`Tokenizer.encodes_in_pieces`). The progress
    counts bytes of text.

    `start_id` is put before each document; without it, documents have no start token. The validation text is encoded
    without dropout.
    """

    def write(folder: Path) -> dict[str, Any]:
        end_id = tokenizer.eos_id if corpus.plan.end_tokens else None
        sidecar: dict[str, Any] = {"text": corpus.name, "end_id": end_id}
        if start_id is not None:
            sidecar["start_id"] = start_id
        training = Encoding(tokenizer, start_id, end_id, dropout)
        encodings = {"train": training, "valid": replace(training, dropout=NO_DROPOUT)}
        texts: dict[str, tuple[Iterable[Piece], Encoding]]
        texts = {side: (corpus.pieces(side), encodings[side]) for side in SIDES}
        sidecar |= cache.write(folder, texts, corpus.n_bytes, lambda part: part.n_bytes)
        if empty := next((side for side in SIDES if not sidecar[side]["n_tokens"]), None):
            raise errors.UserError(f"{_NAMES[empty]} ({corpus.name}) has no tokens; use more text")
        return sidecar

    key: list[Any] = [corpus.digest, tokenizer.fingerprint, dropout.share]
    if dropout.seed:
        key += [dropout.seed]
    if start_id is not None:
        key += ["start", start_id]
    streams, folder = cache.streams(key, _NAMES, write)
    return TokenSplits(streams["train"], streams["valid"], folder)


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
    stream = in_memory(pieces, Encoding(tokenizer, start_id, end_id), name)
    if not stream.n_tokens:
        raise errors.UserError(f"{name} has no tokens; use more text")
    return stream


def _n_shared(start_id: int | None, end_id: int | None) -> int:
    return int(start_id is not None and start_id == end_id)


@dataclass(frozen=True, eq=False)
class EncodedPart:
    """The ids of some consecutive pieces."""

    ids: npt.NDArray[np.uint16] | npt.NDArray[np.uint32]  # start and end tokens included
    starts: npt.NDArray[np.int64]  # of each document that begins in this part, its position in the whole stream
    n_bytes: int
    n_characters: int


def in_memory(pieces: Iterable[Piece], encoding: "Encoding", name: str) -> TokenFile:
    """Encode pieces to one stream in memory."""
    parts = list(encode_pieces(pieces, encoding))
    dtype = id_dtype(encoding.tokenizer.vocab_size)
    return TokenFile(
        name=name,
        ids=np.concatenate([np.zeros(0, dtype), *(part.ids for part in parts)]),
        document_starts=np.concatenate([np.zeros(0, np.int64), *(part.starts for part in parts)]),
        n_bytes=sum(part.n_bytes for part in parts),
        n_characters=sum(part.n_characters for part in parts),
        n_shared=_n_shared(encoding.start_id, encoding.end_id),
    )


def encode_pieces(
    pieces: Iterable[Piece], encoding: "Encoding", in_every_rank: bool = False
) -> Generator[EncodedPart, None, None]:
    """Encode a stream of pieces, about a million characters at a time; several processes encode a large text.

    The ids equal those of whole documents. If a token of the tokenizer can span a cut, each document is joined and
    encoded at once, which needs memory for the whole document.
    """
    if not encoding.tokenizer.encodes_in_pieces:
        pieces = joined(pieces)
    # dropout takes some seconds per batch
    pays_from = BATCH_CHARACTERS if encoding.dropout.share else PAYS_FROM
    n_tokens = 0
    for part in in_order(encoding, _batches(pieces), lambda batch: batch.n_characters, pays_from, in_every_rank):
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
class Encoding:
    """Conversion of the pieces of documents to ids, here or in a worker process.

    A document gets `start_id` before it and `end_id` after it, but not at an end where the split has cut the document.
    If `start_id` and `end_id` are the same token, it is written once between two documents, even if one of them is cut.
    """

    tokenizer: Tokenizer
    start_id: int | None = None
    end_id: int | None = None
    dropout: BpeDropout = NO_DROPOUT

    def __call__(self, batch: _Batch) -> EncodedPart:
        """Encode a batch; `starts` are positions in it, or -1 if the end token before it starts the first document."""
        texts = [piece.text for piece in batch.pieces]
        seed = seed_of(self.dropout.seed, Stream.BPE_DROPOUT, batch.number)
        is_shared = bool(_n_shared(self.start_id, self.end_id))
        ids: list[int] = []
        starts: list[int] = []
        begins = batch.begins
        with errors.UnknownText(is_silent=True):  # counted in the ids, which may come from the cache
            encoded = self.tokenizer.encode_batch(texts, dropout=self.dropout.share, seed=seed)
        for piece, piece_ids in zip(batch.pieces, encoded, strict=True):
            # The start token, or the end token of the document before
            if begins and is_shared and (batch.number > 0 or ids):
                starts.append(len(ids) - 1)
            elif begins:
                starts.append(len(ids))
                if self.start_id is not None and not piece.is_cut_before:
                    ids.append(self.start_id)
            # The text and the end token
            ids += piece_ids
            if piece.ends_document and self.end_id is not None and (is_shared or not piece.is_cut_after):
                ids.append(self.end_id)
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


def learn_tokenizer(
    config: TokenizerConfig, texts: Iterable[str], phase: Phase, title: str = "learning the tokenizer"
) -> Tokenizer:
    """Load the tokenizer that `config` names, or learn one from training texts (never from validation data)."""
    if config.path is not None:
        return Tokenizer.load(Path(config.path))
    with phase(title) as progress:
        return Tokenizer.train(
            texts,
            vocab_size=config.vocab_size,
            scheme=config.scheme,
            learner=config.learner,
            special_tokens=config.special_tokens,
            progress=progress,
        )


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


def open_streams(folder: Path, names: Mapping[str, str], checks_hashes: bool = True) -> dict[str, TokenFile] | None:
    """Open the streams of a folder, by stem; return None if any file is missing or has changed.

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
        streams = {s: _open_stream(folder, s, sidecar[s], name, checks_hashes) for s, name in names.items()}
        return {stem: replace(stream, n_shared=n_shared) for stem, stream in streams.items()}
    except (errors.UserError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        if errors.is_out_of_memory(error):  # too little address space for the mapped files
            raise
        return None


def _open_stream(folder: Path, stem: str, described: dict[str, Any], name: str, checks_hashes: bool) -> TokenFile:
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
    ids = np.zeros(0, dtype)
    if ids_path.stat().st_size:
        # a plain array over the same mapping: slicing a memmap takes several times as long
        ids = np.asarray(np.memmap(ids_path, dtype, mode="r"))
    return TokenFile(name, ids, np.fromfile(starts_path, "<i8"), described["n_bytes"], described["n_characters"])


def _stream_paths(folder: Path, stem: str) -> tuple[Path, Path]:
    return folder / f"{stem}.bin", folder / f"{stem}.starts"
