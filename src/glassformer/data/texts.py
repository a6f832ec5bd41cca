"""Documents from any source of records and from files of text, in pieces of bounded size.

A `.jsonl` or `.ndjson` file has one document per line: a named field of a JSON object. A `.parquet` file has one per
row: a named column. A `.json` file has one per object of its list, if the objects have the named field. Any other file
is one document. Built-in texts and datasets (`hf:NAME`) have one per record. `data.format` changes these rules.

`text_files.py` decodes the files. Windows line ends (CRLF) become "\n"; a lone CR is kept. Documents of only white
space are skipped and counted. Of several files, those that are not text are named in one error, or skipped and counted
(`data.on_bad`).
"""

import hashlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.common.formatting import plural
from glassformer.config.run import TextData
from glassformer.data import addresses, builtin, formats
from glassformer.data.records import Read, Request, with_fields
from glassformer.data.split import cut_of, require_fraction
from glassformer.data.text_files import encoding_used, fault, guessed_encoding, n_bytes, suffix_of, text_blocks

Paths = Sequence[str | Path]

N_PIECES = 16
"""Maximum number of pieces that `look` reads of a path, about a megabyte."""
PIECE_CHARACTERS = 1 << 16  # minimum size: a piece ends at the first safe place after it
MAX_PIECE_CHARACTERS = 1 << 20
MAX_FRONT_MATTER = 1 << 16
NAMED_FAULTS = 200
"""Maximum length of the names of bad files and of their folder in an error message, in characters."""


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
    n_front_matter: int = 0
    """Files that begin with a block of `key: value` lines between two lines ---."""
    other_files: list[Path] = field(default_factory=list)
    """Files in a folder that are neither txt, md nor jsonl."""
    blank_files: list[Path] = field(default_factory=list)
    bad_files: "list[TextSource]" = field(default_factory=list)
    """Skipped files that are not text or cannot be read."""
    encodings: Counter[str] = field(default_factory=Counter)
    """Number of files of each encoding, if `data.encoding` names several."""

    def sentences(self) -> Iterator[str]:
        """Yield one sentence for each kind of skipped text, and one for the encodings if there are several."""
        if self.n_blank_documents:
            first = f" (the first: {self.blank_files[0]})" if self.blank_files else ""
            yield f"{plural(self.n_blank_documents, 'document')} skipped: only white space{first}"
        if self.other_files:
            kinds = sorted({path.suffix or path.name for path in self.other_files})
            if len(kinds) > 8:
                kinds[8:] = ["..."]
            yield f"{plural(len(self.other_files), 'file')} skipped: neither txt, md nor jsonl ({', '.join(kinds)})"
        if self.bad_files:
            yield f"{plural(len(self.bad_files), 'file')} skipped, not text: {_named(self.bad_files)}"
        if len(self.encodings) > 1:
            numbers = (f"{n:,} as {encoding}" for encoding, n in sorted(self.encodings.items()))
            yield f"files by encoding: {', '.join(numbers)}"


def _named(bad: "Sequence[TextSource]") -> str:
    """Return the names of files relative to their common folder, as many as fit."""
    common = os.path.commonpath([os.path.dirname(file.name) for file in bad])
    place = common if len(common) < NAMED_FAULTS / 2 else f"…{common[-NAMED_FAULTS // 2 :]}"
    names: list[str] = []
    for file in bad:
        name = os.path.relpath(file.name, common)
        if names and sum(len(name) + 2 for name in (*names, name, place)) > NAMED_FAULTS:
            return f"{', '.join(names)} and {len(bad) - len(names):,} more in {place}"
        names.append(name)
    return f"{', '.join(names)} in {place}"


@dataclass(frozen=True)
class TextSource:
    """A file, or the address of texts that are not in a file (`path=None`), and how it is read."""

    name: str
    path: Path | None
    data: TextData = TextData()
    fault: str = ""
    """The reason why the file cannot be opened or is not text, if it is known."""

    def checked(self) -> "TextSource":
        """Return this source, with `fault` set if its file is not text."""
        if self.fault or self.path is None or suffix_of(self.path) == ".parquet":
            return self
        return replace(self, fault=fault(self.path, self.data.encoding))

    @property
    def is_jsonl(self) -> bool:
        """True for a file with records of JSON."""
        return self.path is not None and self.has_records and self._read is formats.read

    @cached_property
    def has_records(self) -> bool:
        """True for one document per record, False for a file that is one document."""
        source, form = addresses.source_of(self.name), self.data.format
        if self.path is None or form != "auto":
            return self.path is None or form == "json"
        if source is not None:
            return "text" in source.kinds
        if suffix_of(self.path) != ".json" or not formats.layout_of(self.path, form, self.data.encoding):
            return False
        first = next(formats.read(self.name, self._request()), None)
        return first is not None and self.data.text_field in first.fields

    @property
    def _read(self) -> Read:
        source = addresses.source_of(self.name)
        return source.read if source is not None and self.data.format == "auto" else formats.read

    def sha256(self) -> str:
        """Compute the SHA-256 of the unchanged bytes of the file, or of the documents that are not in a file."""
        if self.path is not None:
            with files.reading(self.path):
                return files.sha256(self.path)
        digest = hashlib.sha256()
        for document in self._documents():
            data = document.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def n_bytes(self) -> int:
        """Return the size of the unpacked file, or of the documents if they are compressed (Parquet) or in no file."""
        if self.path is not None and (self.is_jsonl or not self.has_records):
            return n_bytes(self.path)
        return sum(len(document.encode()) for document in self._documents())

    def _request(self) -> Request:
        data = self.data
        return Request("text", (data.text_field,), "data.text_field", format=data.format, encoding=data.encoding)

    def _documents(self) -> Iterator[str]:
        request = self._request()
        records = with_fields(self._read(self.name, request), request.names)
        return (record.text(self.data.text_field) for record in records)

    def pieces(self, counts: Counts) -> Iterator[Piece]:
        """Yield the documents of this source, in pieces; blank documents are skipped and counted."""
        if self.path is None or self.has_records:
            for document in self._documents():
                yield from _not_blank(cut([_unix_lines(document, counts)]), counts)
        else:
            yield from _not_blank(cut(_text_blocks(self.path, self.data, counts)), counts, self.path)


def _not_blank(pieces: Iterable[Piece], counts: Counts, path: Path | None = None) -> Iterator[Piece]:
    """Yield the pieces of a document; a document of only white space is skipped and counted."""
    for number, piece in enumerate(pieces):
        if number == 0 and piece.ends_document and not piece.text.strip():
            counts.n_blank_documents += 1
            counts.blank_files += [path] if path else []
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


def find_sources(paths: Paths, data: TextData | None = None, counts: Counts | None = None) -> list[TextSource]:
    """Find the sources of `paths`, in order; `data` has the settings of reading.

    Raises `UserError` for a missing file or folder, for a single file that is empty, and for files that cannot be
    opened; the last error names all of them. With `data.on_bad = skip`, files of several that cannot be opened or are
    not text are left out and counted instead.
    """
    data, counts = data or TextData(), counts or Counts()
    sources: list[TextSource] = []
    for address in map(str, paths):
        if addresses.is_file(address):
            found = addresses.find_files(files.as_path(address, "path"), counts.other_files)
            sources += [TextSource(str(path), path, data, fault) for path, fault in found.items()]
            continue
        if address.startswith(builtin.PREFIX):
            builtin.find(address, "text")
        sources.append(TextSource(address, None, data))
    # The files among them, without those that cannot be read
    in_files = _in_files(sources)
    if len(in_files) == 1 and not in_files[0].fault and not Path(in_files[0].name).stat().st_size:
        raise UserError(f"{in_files[0].name} is empty; use a file with text")
    skips = data.on_bad == "skip" and len(in_files) > 1
    if skips:
        sources = [source.checked() for source in sources]
        in_files = _in_files(sources)
    bad = [source for source in in_files if source.fault]
    if bad and (not skips or len(bad) == len(in_files)):
        raise _bad_files(in_files)
    counts.bad_files += bad
    sources = [source for source in sources if not source.fault]
    for source in _in_files(sources) if len(data.encoding) > 1 else ():
        if suffix_of(source.name) != ".parquet":
            counts.encodings[encoding_used(Path(source.name), data.encoding)] += 1
    return sources


def _in_files(sources: Sequence[TextSource]) -> list[TextSource]:
    return [source for source in sources if source.path is not None]


def _bad_files(in_files: Sequence[TextSource]) -> UserError:
    """Return the error that names all bad files among several, and the probable encoding of those not in UTF-8."""
    bad = [file for file in (file.checked() for file in in_files) if file.fault]
    if len(bad) == 1:
        return UserError(bad[0].fault)
    foreign = [Path(file.name) for file in bad if " is not UTF-8" in file.fault]
    others = len(bad) - len(foreign)
    what, cure = f"{len(bad)} of {len(in_files):,} files cannot be read", "correct them"
    if foreign:
        guess = guessed_encoding(foreign)
        what += f", {len(foreign)} of them as UTF-8" * (others > 0)
        cure = f'set data.encoding to "utf-8 {guess}" ({guess} is probable)' if guess else "convert them to UTF-8"
    return UserError(f"{what}: {_named(bad)}; {cure}, or set data.on_bad to skip")


def read_pieces(paths: Paths, data: TextData | None = None, *, counts: Counts | None = None) -> Iterator[Piece]:
    """Yield every document of `paths`, in pieces of about `PIECE_CHARACTERS`, so that memory use is bounded.

    `data` has the settings of reading. Pieces end where no token of glassformer's schemes spans the cut (see `cut`).
    """
    counts = counts or Counts()
    sources = find_sources(paths, data, counts)
    for source in sources:
        try:
            yield from source.pieces(counts)
        except UserError as error:
            in_files = _in_files(sources)
            if len(in_files) > 1 and source.checked().fault == str(error):
                raise _bad_files(in_files) from error
            raise


def read_documents(paths: Paths, data: TextData | None = None) -> Iterator[str]:
    """Iterate over the complete documents of `paths`."""
    return (piece.text for piece in joined(read_pieces(paths, data)))


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


# A line end at which a token ends in every scheme: alone between two words ("a\n|b"), or before exactly one
# more white-space character ("a\n|\nb"). Byte-level BPE joins the last of several such characters to the next word.
_LINE_CUT = re.compile(r"\n(?:(?<=\S\n)(?=\S)|(?=[ \t\r\n]\S))")
# The second choice: before the last white space of a run ("a| b"), safe for schemes that split text into words.
_SPACE_CUT = re.compile(r"(?=[ \t\r\n]\S)")


def cut(blocks: Iterable[str]) -> Iterator[Piece]:
    """Cut one document, given in blocks, into pieces; in glassformer's schemes, their ids are those of the document.

    A piece ends at the first safe line end after `PIECE_CHARACTERS`. Text without such a line end within
    `MAX_PIECE_CHARACTERS` is cut between two words. Text without white space is cut at any character; only such a cut
    can split a token in two.

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


_FRONT_MATTER = re.compile(r"---[ \t]*\n(?=[\w\"'-][^\n]*:)(?:[^\n]*\n)*?(?:---|\.\.\.)[ \t]*(?:\n\s*|\Z)")


def _text_blocks(path: Path, data: TextData, counts: Counts) -> Iterator[str]:
    """Read a file block by block, with "\n" for CRLF; front matter is counted, and dropped with `data.front_matter`."""
    carried_cr, head, is_head = "", "", True
    for block in itertools.chain(text_blocks(path, data.encoding), [""]):
        text = carried_cr + block
        carried_cr = ""
        if block and text.endswith("\r"):
            carried_cr, text = "\r", text[:-1]
        text = head + _unix_lines(text, counts)
        if is_head and block and text.startswith("---"[: len(text)]) and len(text) < MAX_FRONT_MATTER:
            head = text
            continue
        if is_head and (match := _FRONT_MATTER.match(text, 0, MAX_FRONT_MATTER)):
            counts.n_front_matter += 1
            text = text[match.end() if data.front_matter == "drop" else 0 :]
        head, is_head = "", False
        yield text


def _unix_lines(text: str, counts: Counts) -> str:
    if "\r" not in text:
        return text  # in a tenth of the time
    counts.n_crlf += text.count("\r\n")
    return text.replace("\r\n", "\n")


@dataclass(frozen=True)
class Texts:
    """The text that the settings `data` name; it is not split."""

    data: TextData

    def look(self, context: int = 0) -> None:
        """Read the beginning of training and validation text; raise `UserError` for less than one window of tokens."""
        data = self.data
        if data.valid_path is None:
            require_fraction(data.valid_fraction)
        for path in filter(None, (data.path, data.valid_path)):
            if path.startswith(formats.HUB):
                continue
            pieces = list(itertools.islice(read_pieces([path], data), N_PIECES))
            if not pieces:
                raise without_text(path)
            # A token has at least one byte, except for the two that mark the ends of a document.
            n_tokens = sum(len(piece.text.encode()) + 2 * piece.ends_document for piece in pieces)
            if len(pieces) < N_PIECES and n_tokens < context + 1:
                raise too_few_tokens(path, f"at most {n_tokens:,}", context)
            n_documents = sum(piece.ends_document for piece in pieces)
            if len(pieces) < N_PIECES and n_documents == 1 and data.valid_path is None:
                cut_of(path, sum(len(piece.text) for piece in pieces), data.valid_fraction)

    def read(self) -> Iterator[Piece]:
        """Yield all of the text, in pieces."""
        return read_pieces([str(self.data.path)], self.data)
