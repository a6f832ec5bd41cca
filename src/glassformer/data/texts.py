"""Documents from any source of records and from files of text, in pieces of bounded size.

A `.jsonl` file has one document per line, in a named field of a JSON object, and a `.parquet` file one per row, in a
named column; any other file is one document. Built-in texts and datasets (`hf:NAME`) have one document per record.

Encoding: UTF-8, with or without a byte order mark; invalid bytes raise an error with their place. Windows line
ends (CRLF) become "\n"; a lone CR is kept. Documents of only white space are skipped and counted.
"""

import codecs
import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from glassformer import files
from glassformer.data import addresses, builtin
from glassformer.data.records import Request, with_fields
from glassformer.errors import UserError

Paths = Sequence[str | Path]

PIECE_CHARACTERS = 1 << 16  # minimum size: a piece ends at the first safe place after it
MAX_PIECE_CHARACTERS = 1 << 20
_BLOCK_BYTES = 1 << 18


@dataclass(frozen=True)
class Piece:
    """A part of a document; the pieces of a document are consecutive, and only the last has `ends_document=True`."""

    text: str
    ends_document: bool
    is_cut_before: bool = False  # the beginning of the document is on the other side of the split
    is_cut_after: bool = False  # the end of the document is on the other side of the split


@dataclass
class Counts:
    """Counts of skipped documents, changed line ends and skipped files, for notes."""

    n_blank_documents: int = 0
    n_crlf: int = 0
    other_files: list[Path] = field(default_factory=list)  # in a folder, but neither txt nor jsonl


@dataclass(frozen=True)
class TextSource:
    """A file, or the address of texts that are not in a file (`path=None`)."""

    name: str
    path: Path | None

    @property
    def is_jsonl(self) -> bool:
        return self.path is not None and self.path.suffix.lower() == ".jsonl"

    @property
    def has_records(self) -> bool:
        """True for one document per record, False for a file that is one document."""
        source = addresses.source_of(self.name)
        return source is not None and "text" in source.kinds

    def sha256(self, text_field: str = "text") -> str:
        """Compute the SHA-256 of the unchanged bytes of the file, or of the documents that are not in a file."""
        if self.path is not None:
            with files.reading(self.path):
                return files.sha256(self.path)
        digest = hashlib.sha256()
        for document in self._documents(text_field):
            data = document.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def n_bytes(self, text_field: str) -> int:
        """Return the size of the file, or of the documents that are not in a file or are compressed in it."""
        if self.path is not None and (self.is_jsonl or not self.has_records):
            return self.path.stat().st_size
        return sum(len(document.encode()) for document in self._documents(text_field))

    def _documents(self, text_field: str) -> Iterator[str]:
        request = Request("text", (text_field,), "data.text_field")
        records = with_fields(addresses.records(self.name, request), request.names)
        return (record.text(text_field) for record in records)

    def pieces(self, text_field: str, counts: Counts) -> Iterator[Piece]:
        """Yield the documents of this source, in pieces; blank documents are skipped and counted."""
        if self.has_records or self.path is None:
            for document in self._documents(text_field):
                yield from _not_blank(cut([_unix_lines(document, counts)]), counts)
        else:
            yield from _not_blank(cut(_text_blocks(self.path, counts)), counts)


def _not_blank(pieces: Iterable[Piece], counts: Counts) -> Iterator[Piece]:
    """Yield the pieces of a document; a document of only white space is skipped and counted."""
    for number, piece in enumerate(pieces):
        if number == 0 and piece.ends_document and not piece.text.strip():
            counts.n_blank_documents += 1
        else:
            yield piece


def without_text(name: str) -> UserError:
    """Return the error for texts of only white space."""
    return UserError(f"{name} contains only white space; use a file with text")


def too_few_tokens(name: str, n_tokens: str, context: int) -> UserError:
    """Return the error for a text that is shorter than one window."""
    return UserError(
        f"{name} has {n_tokens} tokens, fewer than one window of {context + 1:,} (data.context {context:,} + 1); use "
        "more text or a smaller data.context"
    )


def find_sources(paths: Paths, counts: Counts | None = None) -> list[TextSource]:
    """Find the sources of `paths`, in order; raise `UserError` for a missing or empty file or folder."""
    counts = counts or Counts()
    sources: list[TextSource] = []
    for path in paths:
        address = str(path)
        if address.startswith(builtin.PREFIX):
            builtin.find(address, "text")
        if addresses.is_file(address):
            paths_of_texts = addresses.find_files(files.as_path(path, "path"), counts.other_files)
            sources += [TextSource(str(file), file) for file in paths_of_texts]
        else:
            sources.append(TextSource(address, None))
    return sources


def read_pieces(paths: Paths, *, text_field: str = "text", counts: Counts | None = None) -> Iterator[Piece]:
    """Yield every document of `paths`, in pieces of about `PIECE_CHARACTERS`, so that memory use is bounded.

    Pieces end where no token of glassformer's schemes spans the cut (see `cut`).
    """
    counts = counts or Counts()
    for source in find_sources(paths, counts):
        yield from source.pieces(text_field, counts)


def read_documents(paths: Paths, *, text_field: str = "text") -> Iterator[str]:
    """Iterate over the complete documents of `paths`."""
    return (piece.text for piece in joined(read_pieces(paths, text_field=text_field)))


def joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Join the pieces of each document; memory holds one document at a time.

    >>> [piece.text for piece in joined([Piece("a ", False), Piece("b", True), Piece("c", True)])]
    ['a b', 'c']
    """
    parts: list[Piece] = []
    for piece in pieces:
        parts.append(piece)
        if piece.ends_document:
            yield replace(piece, text="".join(part.text for part in parts), is_cut_before=parts[0].is_cut_before)
            parts = []


# A line end that ends a token in every scheme: alone between two words ("a\n|b"), or followed by exactly one
# more white-space character ("a\n|\nb"), because byte-level BPE joins the last one of several to the next word.
_LINE_CUT = re.compile(r"\n(?:(?<=\S\n)(?=\S)|(?=[ \t\r\n]\S))")
# The second choice: before the last white space of a run ("a| b"), safe for schemes that split text into words.
_SPACE_CUT = re.compile(r"(?=[ \t\r\n]\S)")


def cut(blocks: Iterable[str]) -> Iterator[Piece]:
    """Cut one document, given in blocks, into pieces that glassformer's schemes encode to the ids of the document.

    A piece ends at the first safe line end after `PIECE_CHARACTERS`. Text without such a line end within
    `MAX_PIECE_CHARACTERS` is cut between two words. Text without white space is cut at any character: only
    there can a cut split a token in two.

    >>> [piece.text for piece in cut(["one\\nt", "wo"])]
    ['one\\ntwo']
    """
    buffer, start = "", 0
    for block in blocks:
        buffer, start = buffer[start:] + block, 0
        while (end := _cut_place(buffer, start)) is not None:
            yield Piece(buffer[start:end], ends_document=False)
            start = end
    yield Piece(buffer[start:], ends_document=True)


def _cut_place(buffer: str, start: int) -> int | None:
    last = start + MAX_PIECE_CHARACTERS
    if match := _LINE_CUT.search(buffer, start + PIECE_CHARACTERS, last):
        return match.end()
    if len(buffer) <= last:
        return None
    # near the end of the searched text, so that only a little of it is searched again
    if match := _SPACE_CUT.search(buffer, last - PIECE_CHARACTERS, last):
        return match.start()
    return last


def _read_blocks(path: Path) -> Iterator[bytes]:
    with files.reading(path), open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _text_blocks(path: Path, counts: Counts) -> Iterator[str]:
    """Read a UTF-8 file block by block, without a byte order mark and with "\n" for CRLF."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, line = 0, 1  # position of the next block
    carried_cr = ""
    at_start = True
    files.refuse_objects(path)
    for block in itertools.chain(_read_blocks(path), [b""]):  # the empty block flushes the decoder
        waiting = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise files.utf8_error(path, error, offset - waiting, line) from error
        if (place := block.find(b"\0")) >= 0:
            raise files.nul_error(path, offset + place, line + block.count(b"\n", 0, place))
        if at_start and text:
            text, at_start = text.removeprefix("\ufeff"), False
        offset += len(block)
        line += text.count("\n")
        text = carried_cr + text
        carried_cr = ""
        if block and text.endswith("\r"):
            carried_cr, text = "\r", text[:-1]
        yield _unix_lines(text, counts)


def _unix_lines(text: str, counts: Counts) -> str:
    if "\r" not in text:
        return text  # in a tenth of the time
    counts.n_crlf += text.count("\r\n")
    return text.replace("\r\n", "\n")
