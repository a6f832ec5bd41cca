"""Statistics of a text before training: sizes, repeats, the split, and skipped or changed parts."""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from glassformer.common import formatting
from glassformer.common.errors import UserError, unknown_sentence
from glassformer.common.formatting import plural
from glassformer.config.run import Run
from glassformer.data.corpus import Corpus
from glassformer.data.kinds import DataReport, Phase, notes
from glassformer.data.texts import Piece, Texts, read_pieces
from glassformer.data.tokens import Encoding, encode_pieces, learn_tokenizer
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
        """Yield the pieces unchanged; add their sizes to this report, and a hash of 8 bytes per line to `hashes`."""
        for piece in pieces:
            self.n_documents += piece.ends_document
            self.n_characters += len(piece.text)
            self.n_bytes += len(piece.text.encode())
            for line in piece.text.split("\n"):
                if line.strip():
                    hashes += hashlib.blake2b(line.encode(), digest_size=8).digest()
            yield piece


def report(corpus: Corpus, tokenizer: Tokenizer | None = None) -> DataReport:
    """Compute the statistics of a corpus; with a tokenizer, also count its tokens.

    The text is streamed: memory use is 8 bytes per line, and twice that while hashes are sorted. If the text cannot be
    split, the report covers the whole text, with the reason as a note.
    """
    # The split
    told = [file.fault for scan in corpus.scans for file in scan.counts.bad_files]
    several = corpus.scans[0].n_documents > 1
    streams: dict[str, Iterator[Piece]]
    try:
        told += corpus.news()
        streams = {"training": corpus.pieces("train"), "validation": corpus.pieces("valid")}
    except UserError as error:
        streams = {"text": read_pieces(corpus.paths, corpus.data)}
        told += [*corpus.skipped(), f"cannot be split: {error}"]
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
                told.append(unknown_sentence(n_unknown, f"the {side.name} text", []))
    n_characters, n_bytes = (sum(getattr(side, name) for side in sides) for name in ("n_characters", "n_bytes"))
    n_tokens = None if tokenizer is None else sum(side.n_tokens or 0 for side in sides)
    # The lines and documents; a single document that is cut in two counts as one
    lines = np.frombuffer(hashes_of_lines, dtype=np.uint64)
    hashes = np.concatenate([scan.hashes for scan in corpus.scans])
    lengths = np.concatenate([scan.n_characters for scan in corpus.scans])
    total = SideReport("total", len(hashes), n_characters, n_bytes, n_tokens)
    found: dict[str, Any] = {
        "name": corpus.name,
        "n_files": sum(scan.n_files for scan in corpus.scans),
        "n_documents": len(hashes),
        "shortest_document": int(lengths.min()),  # characters
        "longest_document": int(lengths.max()),
        "n_repeated_documents": len(hashes) - len(np.unique(hashes)),  # equal to an earlier one
        "n_lines": len(lines),  # without blank lines
        "n_repeated_lines": len(lines) - len(np.unique(lines)),
        "sides": [asdict(side) for side in sides],
        "notes": told,
        "total": asdict(total),
    }
    return DataReport(found, [*_lines(found, [*sides, total]), *notes(told)])


def _lines(found: dict[str, Any], sides: Sequence[SideReport]) -> list[tuple[str, str]]:
    columns = ("", "documents", "characters", "bytes", "tokens", "bytes per token")
    table = formatting.table([columns, *map(_row, sides)], formatting.output_width())
    n_repeated, n_lines = found["n_repeated_lines"], found["n_lines"]
    share = f" ({n_repeated / n_lines:.0%})" if n_repeated else ""
    return [
        ("", f"{found['name']} ({plural(found['n_files'], 'file')})\n\n{table}\n"),
        ("document lengths", f"{found['shortest_document']:,} to {found['longest_document']:,} characters"),
        ("repeated documents", f"{found['n_repeated_documents']:,} of {found['n_documents']:,}"),
        ("repeated lines", f"{n_repeated:,} of {n_lines:,} non-blank lines{share}"),
    ]


def _row(side: SideReport) -> tuple[str, ...]:
    n_tokens = "-" if side.n_tokens is None else f"{side.n_tokens:,}"
    per_token = f"{side.n_bytes / side.n_tokens:.2f}" if side.n_tokens else "-"
    sizes = (f"{size:,}" for size in (side.n_documents, side.n_characters, side.n_bytes))
    return (side.name, *sizes, n_tokens, per_token)


def report_of(texts: Texts, run: Run, tokenizer: Tokenizer | None, phase: Phase) -> DataReport:
    """Return the report on a text; if no tokenizer is given, one is trained on the whole text, which is not split."""
    if texts.data.path is None:
        raise UserError("no text is given: set data.path, or give a file")
    if tokenizer is None:
        pieces = (piece.text for piece in texts.read())
        tokenizer = learn_tokenizer(run.tokenizer, pieces, phase, "training a tokenizer")
    return report(Corpus(texts.data), tokenizer)
