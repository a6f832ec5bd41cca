"""The text of a run and its split into training and validation text.

- With `valid_path`: its files are the validation text. Documents of the training text that are also in the
  validation text are excluded from training, and counted.
- Without `valid_path`, one document: the first `int(n_characters * (1 - valid_fraction))` characters are for
  training, the rest for validation (as in nanoGPT).
- Without `valid_path`, several documents: they are grouped by size, in factors of two, and sorted by a hash of their
  content. Of every group, about `valid_fraction` of the characters is for validation, in whole documents
  (`split.held_out`), so short documents and long ones are on both sides. If these documents have more than a tenth
  too few characters, the end of the longest other document is added, cut at a paragraph.
  Equal documents are on the same side, and the split does not depend on the order of the files. Repeats within the
  training text are kept, and counted.

The text is streamed. The first pass hashes and counts the documents (16 bytes per document), later passes encode them.
"""

import hashlib
import json
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from glassformer.common.errors import UserError
from glassformer.common.formatting import plural
from glassformer.config.run import TextData
from glassformer.data import texts
from glassformer.data.split import cut_of, held_out, require_fraction, share_news
from glassformer.data.texts import PIECE_CHARACTERS

SplitSide = Literal["train", "valid"]
Hashes = npt.NDArray[np.uint64]
Lengths = npt.NDArray[np.int64]

TRAINS, VALIDATES, LEFT_OUT, CUT = 0, 1, -1, 2
"""Values of `Plan.side`."""
MISSING = 0.1
"""A document is cut if the whole validation documents lack more than this part of the wanted characters."""
MIN_PART = 200
"""Minimum length, in characters, of the end that is cut off a document for validation."""
_PARAGRAPH_END, _LINE_END = re.compile(r"\n(?:[ \t]*\n)+"), re.compile(r"\n+")


@dataclass(frozen=True, eq=False)
class Scan:
    """Result of the first pass over some paths: a hash and a length for every document, in order."""

    hashes: Hashes  # 64-bit hash of each document; documents with equal hashes count as equal
    n_characters: Lengths
    n_bytes: int  # total size of all documents, as UTF-8
    n_files: int
    counts: texts.Counts

    @property
    def n_documents(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True, eq=False)
class Plan:
    """The assignment of documents to training and validation."""

    side: npt.NDArray[np.int8]
    """Per document: TRAINS, VALIDATES, LEFT_OUT (in neither), or CUT (beginning for training, end for validation)."""
    cut: int = 0
    """Number of characters of the CUT document that are for training. If several documents are CUT, they are equal."""
    end_tokens: bool = False
    """True if several documents (CUT ones included) are for training: documents are then followed by the end token."""
    valid_share: float | None = None
    """Fraction of the characters that is for validation; None with `valid_path`."""

    @property
    def n_left_out(self) -> int:
        """Number of training documents that are also in the validation text."""
        return int((self.side == LEFT_OUT).sum())


class Corpus:
    """The text of a run and its split; files are read on first use, and `plan` is computed once."""

    def __init__(self, data: TextData) -> None:
        if data.valid_path is None:
            require_fraction(data.valid_fraction)
        self.data, self.name = data, str(data.path)
        self.paths, self.valid_paths = ([path] if path is not None else [] for path in (data.path, data.valid_path))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the bytes of every source and of the settings of the split; equal digests mean equal splits."""
        valid_fraction = None if self.valid_paths else self.data.valid_fraction
        description = {
            "split": "by size",
            "text": self._hashes(self.paths),
            "valid_text": self._hashes(self.valid_paths),
            "valid_fraction": valid_fraction,
            "text_field": self.data.text_field,
        }
        settings = {name: getattr(self.data, name) for name in ("format", "encoding", "on_bad", "front_matter")}
        description |= {name: value for name, value in settings.items() if value != getattr(TextData, name)}
        return hashlib.sha256(json.dumps(description).encode()).hexdigest()

    def _hashes(self, paths: texts.Paths) -> list[tuple[bool, str]]:
        return [(source.is_jsonl, source.sha256()) for source in texts.find_sources(paths, self.data)]

    @cached_property
    def scans(self) -> list[Scan]:
        """Results of the first pass: one for the text, and one for the text of `valid_path` if given."""
        return [self._scan(paths) for paths in (self.paths, self.valid_paths) if paths]

    @property
    def n_bytes(self) -> int:
        """Size of all texts, in bytes of UTF-8."""
        return sum(scan.n_bytes for scan in self.scans)

    @cached_property
    def plan(self) -> Plan:
        """The split; raises `UserError` if one side would be empty."""
        scan = self.scans[0]
        side = np.full(scan.n_documents, TRAINS, dtype=np.int8)
        # 1. A separate validation text: all of the text is for training, except what is in both
        if self.valid_paths:
            side[np.isin(scan.hashes, self.scans[1].hashes)] = LEFT_OUT
            if side.all():
                raise UserError(f"all of {self.name} is also in the validation text; use another data.valid_path")
            return Plan(side, end_tokens=scan.n_documents > 1)
        # 2. One document: its end is for validation
        if scan.n_documents == 1:
            n_characters = int(scan.n_characters[0])
            cut = cut_of(self.name, n_characters, self.data.valid_fraction)
            return Plan(np.full(1, CUT, dtype=np.int8), cut, valid_share=1 - cut / n_characters)
        # 3. Several: whole documents are for validation, and perhaps the end of a long one
        cut = 0
        contents, part = held_out_documents(scan.hashes, scan.n_characters, self.data.valid_fraction)
        side[np.isin(scan.hashes, contents)] = VALIDATES
        if part is not None:
            side[scan.hashes == part.content] = CUT
            cut = self._paragraph_near(int(np.argmax(side == CUT)), part)
        if (side == VALIDATES).all() or (side == TRAINS).all():
            raise UserError(
                f"all {scan.n_documents} documents of {self.name} are equal, so no document can be held out; "
                "use more text, or set data.valid_path"
            )
        validate = np.select([side == VALIDATES, side == CUT], [scan.n_characters, scan.n_characters - cut], 0)
        return Plan(side, cut, end_tokens=True, valid_share=validate.sum() / scan.n_characters.sum())

    def news(self) -> list[str]:
        """Read the text and return notes on skipped, excluded and held-out documents, and on a small held-out share."""
        news = self.skipped()
        n, share = self.plan.n_left_out, self.plan.valid_share
        if share is not None:
            return [*news, *self._held_out_by_length(), *share_news(share, self.data.valid_fraction)]
        if n:
            news.append(f"{n:,} document{'s' * (n != 1)} excluded from training: also in the validation text")
        return news

    def skipped(self) -> list[str]:
        """Read the text and return notes on skipped files and documents, front matter and converted line ends."""
        notes = [sentence for scan in self.scans for sentence in scan.counts.sentences()]
        n_crlf, n_front = (sum(getattr(s.counts, name) for s in self.scans) for name in ("n_crlf", "n_front_matter"))
        if n_crlf:
            notes.append(f"{plural(n_crlf, 'line end')} converted from CRLF to LF")
        if n_front and self.data.front_matter == "drop":
            notes.append(f"front matter of {plural(n_front, 'file')} dropped")
        elif n_front:
            notes.append(f"{plural(n_front, 'file')} with front matter, which is learned; data.front_matter drops it")
        return notes

    def _held_out_by_length(self) -> list[str]:
        """Return a note with the number of held-out documents for each order of magnitude of their length."""
        side, powers = self.plan.side, np.log10(self.scans[0].n_characters).astype(int)
        parts = []
        for power in np.unique(powers).tolist():
            of_power = side[powers == power]
            n_whole, n_cut = int((of_power == VALIDATES).sum()), int((of_power == CUT).sum())
            ends = f" and the end of {n_cut:,}" if n_cut else ""
            lengths = f"{10**power:,} to {10 ** (power + 1) - 1:,} characters"
            parts.append(f"{n_whole:,}{ends} of {len(of_power):,} documents of {lengths}")
        return [f"held out for validation: {'; '.join(parts)}"] if len(parts) > 1 else []

    def pieces(self, side: SplitSide) -> Iterator[texts.Piece]:
        """Yield the documents of one side, in pieces that can be encoded separately (`texts.cut`)."""
        if side == "valid" and self.valid_paths:
            yield from texts.read_pieces(self.valid_paths, self.data)
            return
        sides, wanted = self.plan.side, {"train": TRAINS, "valid": VALIDATES}[side]
        document = offset = 0
        for piece in texts.read_pieces(self.paths, self.data):
            if sides[document] == wanted:
                yield piece
            elif sides[document] == CUT and (part := _part(piece, self.plan.cut - offset, side)) is not None:
                yield part
            offset += len(piece.text)
            if piece.ends_document:
                document, offset = document + 1, 0

    def training_texts(self) -> Iterator[str]:
        """Iterate over the training text only, for training a tokenizer without the validation text."""
        return (piece.text for piece in self.pieces("train"))

    def _paragraph_near(self, document: int, part: "Part") -> int:
        """Return `part.begin`, moved to the nearest beginning of a paragraph, else of a line."""
        slack = min(int(MISSING * part.n_characters), PIECE_CHARACTERS)
        begin, end = max(0, part.begin - slack), part.begin + slack
        number = offset = 0
        parts = []
        for piece in texts.read_pieces(self.paths, self.data):
            if number == document:
                parts.append(piece.text[max(0, begin - offset) : max(0, end - offset)])
                offset += len(piece.text)
                if offset >= end:
                    break
            number += piece.ends_document
        return begin + nearest_break("".join(parts), part.begin - begin)

    def _scan(self, paths: texts.Paths) -> Scan:
        counts = texts.Counts()
        hashes, n_characters, n_bytes = array("Q"), array("q"), 0
        digest, length = hashlib.blake2b(digest_size=8), 0
        for piece in texts.read_pieces(paths, self.data, counts=counts):
            data = piece.text.encode()
            digest.update(data)
            length += len(piece.text)
            n_bytes += len(data)
            if piece.ends_document:
                hashes.append(int.from_bytes(digest.digest(), "little"))
                n_characters.append(length)
                digest, length = hashlib.blake2b(digest_size=8), 0
        if not hashes:
            raise texts.without_text(", ".join(map(str, paths)))
        of_documents = np.array(hashes, dtype=np.uint64), np.array(n_characters, dtype=np.int64)
        return Scan(*of_documents, n_bytes, len(texts.find_sources(paths, self.data)), counts)


@dataclass(frozen=True)
class Part:
    """The end of a document and of all its copies, which is used for validation."""

    content: np.uint64
    """Hash of the whole document."""
    begin: int
    """Number of characters before the part."""
    n_characters: int


def held_out_documents(hashes: Hashes, n_characters: Lengths, valid_fraction: float) -> tuple[Hashes, Part | None]:
    """Return the hashes of the validation documents, and the end of a long document if whole ones do not suffice.

    >>> contents, part = held_out_documents(np.array([7, 3, 9, 3], np.uint64), np.array([70, 10, 15, 10]), 0.35)
    >>> contents.tolist(), part
    ([3, 9], None)
    >>> contents, part = held_out_documents(np.array([1, 2], np.uint64), np.array([9960, 40]), 0.1)
    >>> contents.tolist(), (part.begin, part.n_characters)
    ([], (8960, 1000))
    """
    contents, content_of, n_copies = np.unique(hashes, return_inverse=True, return_counts=True)
    weights = np.bincount(content_of, weights=n_characters).astype(np.int64)
    whole = held_out(weights.tolist(), valid_fraction, fits_only=True)
    wanted = valid_fraction * weights.sum()
    missing = wanted - weights[whole].sum()
    lengths = weights // n_copies
    lengths[whole] = 0
    longest = int(lengths.argmax())
    n_part = int(missing / n_copies[longest])
    if missing > MISSING * wanted and MIN_PART <= n_part < lengths[longest]:
        return contents[whole], Part(contents[longest], int(lengths[longest]) - n_part, n_part)
    return contents[held_out(weights.tolist(), valid_fraction)], None


def nearest_break(text: str, position: int) -> int:
    """Return the beginning of the paragraph nearest to `position`, else of the nearest line, else `position`.

    >>> nearest_break("one.\\n\\ntwo\\nthree", 11), nearest_break("two\\nthree", 2), nearest_break("three", 2)
    (6, 4, 2)
    """
    for pattern in (_PARAGRAPH_END, _LINE_END):
        if ends := [match.end() for match in pattern.finditer(text) if match.end() < len(text)]:
            return min(ends, key=lambda end: abs(end - position))
    return position


def _part(piece: texts.Piece, cut: int, side: SplitSide) -> texts.Piece | None:
    """Return the part of a piece before (train) or after (valid) character `cut`; None if it is empty."""
    if side == "train":
        is_last = len(piece.text) >= cut
        part = texts.Piece(piece.text[: max(0, cut)], ends_document=is_last, is_cut_after=is_last)
    else:
        part = texts.Piece(piece.text[max(0, cut) :], piece.ends_document, is_cut_before=cut >= 0)
    return part if part.text else None
