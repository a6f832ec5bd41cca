"""What a run reads, and which part of it is held out: the split into training and validation text.

- With `valid_paths`: they are the validation text. Documents of the training text that also stand in the
  validation text are left out of training, and counted.
- Without, one document: the first `int(n_characters * (1 - valid_fraction))` characters train, the rest
  validate (the rule of nanoGPT).
- Without, several documents: they are ordered by a hash of their content, and each one that fits into what is left
  of `valid_fraction` of all characters validates (`records.filled`). Where that leaves more than a tenth of the share
  missing, because the documents left are large, the end of the largest one validates too: it is cut at a paragraph.
  Where they are too short to cut, the shortest one may be added (`records.nearest`). Equal documents have equal hashes
  and go to the same side; the side does not depend on the order of the files. Repeats within the training text
  stay, and are counted.
- With reading 1, that of runs of older versions, several documents validate in the order of their hash up to the
  first one that does not fit; where that is the first of all, the shortest document validates.

Everything streams: the text is read once to hash and count its documents (16 bytes are kept of each), and
again for use.
"""

import hashlib
import json
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from glassformer.config.run import NEWEST_READING, Reading
from glassformer.data.records import filled, nearest, share_news
from glassformer.data.sources import PIECE_CHARACTERS, Counts, Piece, find_sources, read_pieces
from glassformer.errors import UserError

SplitSide = Literal["train", "valid"]

TRAINS, VALIDATES, LEFT_OUT, CUT = 0, 1, -1, 2
"""Values of `Plan.side`."""
MISSING = 0.1
"""A document is cut where whole ones leave more than this part of the share missing."""
MIN_PART = 200
"""Characters of the part of a document that validates: of several documents, none is cut for less."""
_PARAGRAPH_END, _LINE_END = re.compile(r"\n(?:[ \t]*\n)+"), re.compile(r"\n+")


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

    side: npt.NDArray[np.int8]
    """Of each document: TRAINS, VALIDATES, LEFT_OUT of training, or CUT: its beginning trains, its end validates."""
    cut: int = 0
    """The characters that train of the document that is CUT; of several documents, only equal ones are."""
    end_tokens: bool = False
    """Several documents train, so each is followed by the end token; the beginning of a CUT one counts as one."""
    valid_share: float | None = None
    """The share of the characters that validates; None where the validation text is given apart."""

    @property
    def n_left_out(self) -> int:
        """Training documents that also stand in the validation text."""
        return int((self.side == LEFT_OUT).sum())


class Corpus:
    """The text of a run and its split. Nothing is read until it is asked for; `plan` is computed once."""

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        valid_paths: Sequence[str | Path] = (),
        valid_fraction: float = 0.1,
        text_field: str = "text",
        reading: Reading = NEWEST_READING,
    ) -> None:
        if not valid_paths and not 0 < valid_fraction < 1:
            raise UserError(
                f"data.valid_fraction is {valid_fraction} and must be above 0 and below 1; "
                "to train on all of the text, give the validation text as data.valid_path"
            )
        self.paths, self.valid_paths = tuple(paths), tuple(valid_paths)
        self.valid_fraction, self.text_field, self.reading = valid_fraction, text_field, reading
        self.name = ", ".join(map(str, paths))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the bytes of every source and of what decides the split: equal digests, equal sides."""
        description = {
            "reading": self.reading,
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
        side = np.full(scan.n_documents, TRAINS, dtype=np.int8)
        if self.valid_paths:
            side[np.isin(scan.hashes, self.scans[1].hashes)] = LEFT_OUT
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
            return Plan(np.full(1, CUT, dtype=np.int8), cut, valid_share=1 - cut / n_characters)
        cut = 0
        if self.reading == 1:
            side[np.isin(scan.hashes, held_out_first(scan.hashes, scan.n_characters, self.valid_fraction))] = VALIDATES
        else:
            contents, part = held_out_filled(scan.hashes, scan.n_characters, self.valid_fraction)
            side[np.isin(scan.hashes, contents)] = VALIDATES
            if part is not None:
                side[scan.hashes == part.content] = CUT
                cut = self._paragraph_near(int(np.argmax(side == CUT)), part)
        if (side == VALIDATES).all() or (side == TRAINS).all():
            raise UserError(
                f"all {scan.n_documents} documents of {self.name} are the same, so none can be held out; "
                "give more text, or data.valid_path"
            )
        validate = np.select([side == VALIDATES, side == CUT], [scan.n_characters, scan.n_characters - cut], 0)
        return Plan(side, cut, end_tokens=True, valid_share=validate.sum() / scan.n_characters.sum())

    def news(self) -> list[str]:
        """Read the text, and return in sentences what is left out of training, and a share that is not reached."""
        n, share = self.plan.n_left_out, self.plan.valid_share
        left_out = [f"{n} training documents also stand in the validation text and are left out"] if n else []
        return left_out + ([] if share is None else share_news(share, self.valid_fraction))

    def pieces(self, side: SplitSide) -> Iterator[Piece]:
        """The documents of one side, in pieces that may be encoded apart (`sources.cut`)."""
        if side == "valid" and self.valid_paths:
            yield from read_pieces(self.valid_paths, text_field=self.text_field)
            return
        sides, wanted = self.plan.side, VALIDATES if side == "valid" else TRAINS
        document = offset = 0
        for piece in read_pieces(self.paths, text_field=self.text_field):
            if sides[document] == wanted:
                yield piece
            elif sides[document] == CUT and (part := _part(piece, self.plan.cut - offset, side)) is not None:
                yield part
            offset += len(piece.text)
            if piece.ends_document:
                document, offset = document + 1, 0

    def training_texts(self) -> Iterator[str]:
        """The training side, for a tokenizer to learn from: it must not see the validation text."""
        return (piece.text for piece in self.pieces("train"))

    def _paragraph_near(self, document: int, part: "Part") -> int:
        """The characters before a `Part`, moved to the nearest beginning of a paragraph, else of a line."""
        slack = min(int(MISSING * part.n_characters), PIECE_CHARACTERS)
        begin, end = max(0, part.begin - slack), part.begin + slack
        number = offset = 0
        found = []
        for piece in read_pieces(self.paths, text_field=self.text_field):
            if number == document:
                found.append(piece.text[max(0, begin - offset) : max(0, end - offset)])
                offset += len(piece.text)
                if offset >= end:
                    break
            number += piece.ends_document
        return begin + nearest_break("".join(found), part.begin - begin)

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
        of_documents = np.array(hashes, dtype=np.uint64), np.array(n_characters, dtype=np.int64)
        return Scan(*of_documents, n_bytes, len(find_sources(paths)), counts)


def held_out_first(
    hashes: npt.NDArray[np.uint64], n_characters: npt.NDArray[np.int64], valid_fraction: float
) -> npt.NDArray[np.uint64]:
    """The contents that validate: the first ones by hash, up to `valid_fraction` of all characters.

    The shortest one when the first alone holds more than that.

    >>> held_out_first(np.array([7, 3, 9, 3], np.uint64), np.array([70, 10, 10, 10]), 0.2).tolist()
    [3]
    >>> held_out_first(np.array([1, 2], np.uint64), np.array([90, 10]), 0.1).tolist()
    [2]
    """
    contents, content_of = np.unique(hashes, return_inverse=True)
    weights = np.bincount(content_of, weights=n_characters)
    n_valid = int(np.searchsorted(np.cumsum(weights), valid_fraction * weights.sum(), side="right"))
    return contents[:n_valid] if n_valid else contents[[int(weights.argmin())]]


@dataclass(frozen=True)
class Part:
    """The end of a document, and of every copy of it."""

    content: np.uint64
    """The hash of the whole document."""
    begin: int
    """Characters of the document before the part."""
    n_characters: int


def held_out_filled(
    hashes: npt.NDArray[np.uint64], n_characters: npt.NDArray[np.int64], valid_fraction: float
) -> tuple[npt.NDArray[np.uint64], Part | None]:
    """The contents that validate by the newest reading, and the end of a large document where they are too little.

    >>> contents, part = held_out_filled(np.array([7, 3, 9, 3], np.uint64), np.array([70, 10, 15, 10]), 0.35)
    >>> contents.tolist(), part
    ([3, 9], None)
    >>> contents, part = held_out_filled(np.array([1, 2], np.uint64), np.array([9960, 40]), 0.1)
    >>> contents.tolist(), (part.begin, part.n_characters)
    ([2], (9000, 960))
    """
    contents, content_of, n_copies = np.unique(hashes, return_inverse=True, return_counts=True)
    weights = np.bincount(content_of, weights=n_characters)
    wanted = valid_fraction * weights.sum()
    chosen = filled(weights.tolist(), wanted)
    missing = wanted - weights[chosen].sum()
    lengths = weights / n_copies
    lengths[chosen] = 0
    largest = int(lengths.argmax())
    n_part = int(missing / n_copies[largest])
    if missing > MISSING * wanted and MIN_PART <= n_part < lengths[largest]:
        return contents[chosen], Part(contents[largest], int(lengths[largest]) - n_part, n_part)
    return contents[nearest(weights.tolist(), chosen, wanted)], None


def nearest_break(text: str, place: int) -> int:
    """Where the paragraph nearest to a place begins; a line where there is no paragraph; else the place itself.

    >>> nearest_break("one.\\n\\ntwo\\nthree", 11), nearest_break("two\\nthree", 2), nearest_break("three", 2)
    (6, 4, 2)
    """
    for pattern in (_PARAGRAPH_END, _LINE_END):
        if ends := [match.end() for match in pattern.finditer(text) if match.end() < len(text)]:
            return min(ends, key=lambda end: abs(end - place))
    return place


def _part(piece: Piece, place: int, side: SplitSide) -> Piece | None:
    """The part of a piece on one side of the cut, which is `place` characters after its beginning; None if empty."""
    text = piece.text[: max(0, place)] if side == "train" else piece.text[max(0, place) :]
    if not text:
        return None
    if side == "train":
        is_last = len(piece.text) >= place
        return Piece(text, ends_document=is_last, is_cut_after=is_last)
    return Piece(text, piece.ends_document, is_cut_before=place >= 0)
