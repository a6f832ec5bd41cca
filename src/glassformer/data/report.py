"""Statistics of a text before training: sizes, repeats, the split, and skipped or changed parts."""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from glassformer.common import formatting
from glassformer.common.errors import UserError, unknown_sentence
from glassformer.common.formatting import plural
from glassformer.config.run import Run
from glassformer.data.corpus import Corpus
from glassformer.data.kinds import Phase
from glassformer.data.texts import Piece, Texts, read_pieces
from glassformer.data.tokens import Encoding, encode_pieces
from glassformer.tokenization.tokenizer import Tokenizer


@dataclass
class SideReport:
    """The size of one side of the split."""

    name: str
    n_documents: int = 0
    n_characters: int = 0
    n_bytes: int = 0  # as UTF-8
    n_tokens: int | None = None  # end tokens included; None without a tokenizer

    def measured(self, pieces: Iterable[Piece], hashes: bytearray) -> Iterator[Piece]:
        """Yield the pieces unchanged, add their sizes to this report, and 8 bytes per line to `hashes`."""
        for piece in pieces:
            self.n_documents += piece.ends_document
            self.n_characters += len(piece.text)
            self.n_bytes += len(piece.text.encode())
            for line in piece.text.split("\n"):
                if line.strip():
                    hashes += hashlib.blake2b(line.encode(), digest_size=8).digest()
            yield piece


@dataclass(frozen=True)
class DataReport:
    """Result of `report`; `table()` returns it as readable text."""

    name: str
    n_files: int
    n_documents: int
    shortest_document: int  # characters
    longest_document: int
    n_repeated_documents: int  # documents equal to an earlier one
    n_lines: int  # without blank lines
    n_repeated_lines: int
    sides: list[SideReport]  # training and validation, or the whole text if it cannot be split
    notes: list[str]  # skipped, excluded or changed parts, with the reason

    @property
    def total(self) -> SideReport:
        """Sum over the sides; a single document that is cut in two counts as one document."""
        tokens = [side.n_tokens for side in self.sides if side.n_tokens is not None]
        n_characters, n_bytes = (sum(getattr(s, name) for s in self.sides) for name in ("n_characters", "n_bytes"))
        return SideReport("total", self.n_documents, n_characters, n_bytes, sum(tokens) if tokens else None)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"total": asdict(self.total)}

    def __str__(self) -> str:
        return self.table(formatting.output_width())

    def table(self, width: int | None = None) -> str:
        """Format the report as plain text, with a table of at most `width` characters."""
        share = f" ({self.n_repeated_lines / self.n_lines:.0%})" if self.n_repeated_lines else ""
        rows: list[tuple[str, ...]] = [("", "documents", "characters", "bytes", "tokens", "bytes per token")]
        rows += [_row(side) for side in (*self.sides, self.total)]
        lines = [
            f"{self.name} ({plural(self.n_files, 'file')})",
            "",
            formatting.table(rows, width),
            "",
            f"document lengths    {self.shortest_document:,} to {self.longest_document:,} characters",
            f"repeated documents  {self.n_repeated_documents:,} of {self.n_documents:,}",
            f"repeated lines      {self.n_repeated_lines:,} of {self.n_lines:,} non-blank lines{share}",
            *(f"note                {note}" for note in self.notes),
        ]
        return "\n".join(lines)


def report(corpus: Corpus, tokenizer: Tokenizer | None = None) -> DataReport:
    """Compute the statistics of a corpus; with a tokenizer, also count its tokens.

    The text is streamed: memory use is 8 bytes per line, and twice that while hashes are sorted. If the text cannot be
    split, the report covers the whole text, with the reason as a note.
    """
    # The split
    notes = [file.fault for scan in corpus.scans for file in scan.counts.bad_files]
    several = corpus.scans[0].n_documents > 1
    streams: dict[str, Iterator[Piece]]
    try:
        notes += corpus.news()
        streams = {"training": corpus.pieces("train"), "validation": corpus.pieces("valid")}
    except UserError as error:
        streams = {"text": read_pieces(corpus.paths, corpus.data)}
        notes += [*corpus.skipped(), f"cannot be split: {error}"]
    # The sizes of each side
    hashes_of_lines = bytearray()
    sides = [SideReport(name) for name in streams]
    for side, pieces in zip(sides, streams.values(), strict=True):
        measured = side.measured(pieces, hashes_of_lines)
        if tokenizer is None:
            deque(measured, maxlen=0)
        else:
            encoding = Encoding(tokenizer)
            if several:
                encoding = Encoding(tokenizer, tokenizer.start_id, tokenizer.eos_id)
            side.n_tokens = n_unknown = 0
            for part in encode_pieces(measured, encoding):
                side.n_tokens += len(part.ids)
                n_unknown += int((part.ids == tokenizer.unknown_id).sum())
            if n_unknown:
                notes.append(unknown_sentence(n_unknown, f"the {side.name} text", []))
    # The lines and documents
    lines = np.frombuffer(hashes_of_lines, dtype=np.uint64)
    hashes = np.concatenate([scan.hashes for scan in corpus.scans])
    lengths = np.concatenate([scan.n_characters for scan in corpus.scans])
    return DataReport(
        name=corpus.name,
        n_files=sum(scan.n_files for scan in corpus.scans),
        n_documents=len(hashes),
        shortest_document=int(lengths.min()),
        longest_document=int(lengths.max()),
        n_repeated_documents=len(hashes) - len(np.unique(hashes)),
        n_lines=len(lines),
        n_repeated_lines=len(lines) - len(np.unique(lines)),
        sides=sides,
        notes=notes,
    )


def _row(side: SideReport) -> tuple[str, ...]:
    n_tokens = "-" if side.n_tokens is None else f"{side.n_tokens:,}"
    per_token = f"{side.n_bytes / side.n_tokens:.2f}" if side.n_tokens else "-"
    sizes = (f"{size:,}" for size in (side.n_documents, side.n_characters, side.n_bytes))
    return (side.name, *sizes, n_tokens, per_token)


def report_of(texts: Texts, run: Run, tokenizer: Tokenizer | None, phase: Phase) -> DataReport:
    """Return the report on a text; a tokenizer is learned on all of it, also if it is too short to split.

    Files that are not text are left out.
    """
    if texts.data.path is None:
        raise UserError("no text is given: set data.path, or give a file")
    data = replace(texts.data, on_bad="skip")
    Texts(data).look()
    if tokenizer is None:
        size, scheme = run.tokenizer.vocab_size, run.tokenizer.scheme
        with phase("training a tokenizer") as progress:
            pieces = (piece.text for piece in read_pieces([str(data.path)], data))
            tokenizer = Tokenizer.train(pieces, vocab_size=size, scheme=scheme, progress=progress)
    return report(Corpus(data), tokenizer)
