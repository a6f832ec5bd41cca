"""What a run reads, and which part of it is held out: the split into training and validation text.

- With `valid_paths`: they are the validation text. Documents of the training text that also stand in the
  validation text are left out of training, and counted.
- Without, one document: the first `int(n_characters * (1 - valid_fraction))` characters train, the rest
  validate (the rule of nanoGPT).
- Without, several documents: they are ordered by a hash of their content, and the first ones, up to
  `valid_fraction` of all characters, validate. Equal documents have equal hashes, so none stands on both
  sides; the side does not depend on the order of the files. Repeats within the training text stay, and are
  counted.

Everything streams: the text is read once to hash and count its documents (16 bytes are kept of each), and
again for use.
"""

import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from glassformer.data.sources import Counts, Piece, find_sources, read_pieces
from glassformer.errors import UserError

Side = Literal["train", "valid"]

READING_VERSION = 1  # changes when the same files would give other documents or another split


@dataclass(frozen=True, eq=False)
class Scan:
    """What reading some paths once found: a hash and a length for every document, in order."""

    hashes: npt.NDArray[np.uint64]  # of the content; 64 bits make equal hashes mean equal documents
    n_characters: npt.NDArray[np.int64]
    n_bytes: int  # of all documents, as UTF-8
    n_files: int
    counts: Counts

    @property
    def n_documents(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True, eq=False)
class Plan:
    """The split."""

    side: npt.NDArray[np.int8]  # of each document: 1 validates, 0 trains, -1 is left out of training
    cut: int | None = None  # a single document: the characters of it that train
    end_tokens: bool = False  # several documents train, so each is followed by the end token

    @property
    def n_left_out(self) -> int:
        """Training documents that also stand in the validation text."""
        return int((self.side == -1).sum())


class Corpus:
    """The text of a run and its split. Nothing is read until it is asked for; `plan` is computed once."""

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        valid_paths: Sequence[str | Path] = (),
        valid_fraction: float = 0.1,
        text_field: str = "text",
    ) -> None:
        if not valid_paths and not 0 < valid_fraction < 1:
            raise UserError(
                f"data.valid_fraction is {valid_fraction} and must be above 0 and below 1; "
                "to train on all of the text, give the validation text as data.valid_path"
            )
        self.paths, self.valid_paths = tuple(paths), tuple(valid_paths)
        self.valid_fraction, self.text_field = valid_fraction, text_field
        self.name = ", ".join(map(str, paths))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the bytes of every source and of what decides the split: equal digests, equal sides."""
        description = {
            "reading": READING_VERSION,
            "text": [(source.is_jsonl, source.sha256()) for source in find_sources(self.paths)],
            "valid_text": [(source.is_jsonl, source.sha256()) for source in find_sources(self.valid_paths)],
            "valid_fraction": None if self.valid_paths else self.valid_fraction,
            "text_field": self.text_field,
        }
        return hashlib.sha256(json.dumps(description).encode()).hexdigest()

    @cached_property
    def scans(self) -> list[Scan]:
        """What a first reading found: of the text, and of the validation text when it is given apart."""
        return [self._scan(paths) for paths in (self.paths, self.valid_paths) if paths]

    @property
    def n_bytes(self) -> int:
        """All that will be read, in bytes of UTF-8."""
        return sum(scan.n_bytes for scan in self.scans)

    @cached_property
    def plan(self) -> Plan:
        """The split; `UserError` when it would leave a side empty."""
        scan = self.scans[0]
        side = np.zeros(scan.n_documents, dtype=np.int8)
        if self.valid_paths:
            side[np.isin(scan.hashes, self.scans[1].hashes)] = -1
            if side.all():
                raise UserError(f"all of {self.name} also stands in the validation text; give another data.valid_path")
            return Plan(side, end_tokens=scan.n_documents > 1)
        if scan.n_documents == 1:
            n_characters = int(scan.n_characters[0])
            cut = int(n_characters * (1 - self.valid_fraction))
            if not 0 < cut < n_characters:
                raise UserError(
                    f"{self.name} has {n_characters} characters, too few to hold out {self.valid_fraction:g} "
                    "of them; give more text, or data.valid_path"
                )
            return Plan(side, cut=cut)
        side[np.isin(scan.hashes, held_out(scan.hashes, scan.n_characters, self.valid_fraction))] = 1
        if side.all():
            raise UserError(
                f"all {scan.n_documents} documents of {self.name} are the same, so none can be held out; "
                "give more text, or data.valid_path"
            )
        return Plan(side, end_tokens=True)

    def pieces(self, side: Side) -> Iterator[Piece]:
        """The documents of one side, in pieces that may be encoded apart (`sources.cut`)."""
        if side == "valid" and self.valid_paths:
            yield from read_pieces(self.valid_paths, text_field=self.text_field)
            return
        pieces = read_pieces(self.paths, text_field=self.text_field)
        if self.plan.cut is not None:
            yield from _before(pieces, self.plan.cut) if side == "train" else _after(pieces, self.plan.cut)
            return
        wanted = self.plan.side == (1 if side == "valid" else 0)
        document = 0
        for piece in pieces:
            if wanted[document]:
                yield piece
            document += piece.ends_document

    def training_texts(self) -> Iterator[str]:
        """The training side, for a tokenizer to learn from: it must not see the validation text."""
        return (piece.text for piece in self.pieces("train"))

    def _scan(self, paths: Sequence[str | Path]) -> Scan:
        counts = Counts()
        hashes, n_characters, n_bytes = array("Q"), array("q"), 0
        digest, length = hashlib.blake2b(digest_size=8), 0
        for piece in read_pieces(paths, text_field=self.text_field, counts=counts):
            data = piece.text.encode()
            digest.update(data)
            length += len(piece.text)
            n_bytes += len(data)
            if piece.ends_document:
                hashes.append(int.from_bytes(digest.digest(), "little"))
                n_characters.append(length)
                digest, length = hashlib.blake2b(digest_size=8), 0
        if not hashes:
            raise UserError(f"{', '.join(map(str, paths))} holds nothing but white space; give a file with text")
        return Scan(
            np.array(hashes, dtype=np.uint64),
            np.array(n_characters, dtype=np.int64),
            n_bytes,
            len(find_sources(paths)),
            counts,
        )


def held_out(
    hashes: npt.NDArray[np.uint64], n_characters: npt.NDArray[np.int64], valid_fraction: float
) -> npt.NDArray[np.uint64]:
    """The contents that validate: the first ones by hash, up to `valid_fraction` of all characters.

    The shortest one when the first alone holds more than that.

    >>> held_out(np.array([7, 3, 9, 3], np.uint64), np.array([70, 10, 10, 10]), 0.2).tolist()
    [3]
    >>> held_out(np.array([1, 2], np.uint64), np.array([90, 10]), 0.1).tolist()
    [2]
    """
    contents, content_of = np.unique(hashes, return_inverse=True)
    weights = np.bincount(content_of, weights=n_characters)
    n_valid = int(np.searchsorted(np.cumsum(weights), valid_fraction * weights.sum(), side="right"))
    return contents[:n_valid] if n_valid else contents[[int(weights.argmin())]]


def _before(pieces: Iterable[Piece], cut: int) -> Iterator[Piece]:
    """The first `cut` characters of a single document."""
    for piece in pieces:
        if len(piece.text) >= cut:
            yield Piece(piece.text[:cut], ends_document=True)
            return
        yield piece
        cut -= len(piece.text)


def _after(pieces: Iterable[Piece], cut: int) -> Iterator[Piece]:
    """What follows the first `cut` characters of a single document."""
    for piece in pieces:
        if len(piece.text) > cut:
            yield Piece(piece.text[cut:], piece.ends_document)
        cut = max(0, cut - len(piece.text))
