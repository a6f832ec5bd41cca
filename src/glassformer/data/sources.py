"""Documents from txt and jsonl files, folders of them, and built-in texts; streamed in bounded memory.

What is read: a `.jsonl` file gives one document a line, the named field of its object; any other file is one
document. A folder gives its `.txt` and `.jsonl` files, subfolders included, sorted by path; other and hidden
files are passed over. `builtin:NAME` gives a text that is on the machine already
(`glassformer.data.builtin`).

How: as UTF-8, with or without a byte order mark; anything else is an error that names the place. Windows line
ends (CRLF) become "\n", a lone CR stays. A document of white space alone is dropped and counted.
"""

import codecs
import hashlib
import itertools
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from glassformer import files
from glassformer.data import builtin
from glassformer.errors import UserError, nearest_name

FOLDER_SUFFIXES = (".txt", ".jsonl")
PIECE_CHARACTERS = 1 << 16  # the size from which a piece ends at the next safe place
MAX_PIECE_CHARACTERS = 1 << 20
MAX_LINE_BYTES = 1 << 28  # of a jsonl file: a line is parsed whole
_BLOCK_BYTES = 1 << 18


@dataclass(frozen=True)
class Piece:
    """A part of a document; pieces of a document follow one another, and the last one says so."""

    text: str
    ends_document: bool
    is_cut_before: bool = False  # the document begins earlier: the split put its beginning on the other side
    is_cut_after: bool = False  # the document goes on: the split put the rest on the other side


@dataclass
class Counts:
    """What reading passed over or changed, so that nothing is silent."""

    n_blank_documents: int = 0
    n_crlf: int = 0
    other_files: list[Path] = field(default_factory=list)  # in a folder, but neither txt nor jsonl


@dataclass(frozen=True)
class TextSource:
    """One file, or one built-in text (`path` is None)."""

    name: str
    path: Path | None

    @property
    def is_jsonl(self) -> bool:
        return self.path is not None and self.path.suffix.lower() == ".jsonl"

    def sha256(self) -> str:
        """Of the bytes as they stand, not of what is read from them."""
        if self.path is not None:
            with files.reading(self.path):
                return files.sha256(self.path)
        digest = hashlib.sha256()
        for document in builtin.documents(self.name):
            data = document.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def pieces(self, text_field: str, counts: Counts) -> Iterator[Piece]:
        """The documents of this source, in pieces; blank ones are left out and counted."""
        if self.path is None:
            for document in builtin.documents(self.name):
                yield from cut([document])
        elif self.is_jsonl:
            for record in _jsonl_records(self.path, text_field, counts):
                if record.strip():
                    yield from cut([record])
                else:
                    counts.n_blank_documents += 1
        else:
            for number, piece in enumerate(cut(_text_blocks(self.path, counts))):
                if number == 0 and piece.ends_document and not piece.text.strip():
                    counts.n_blank_documents += 1
                else:
                    yield piece


def find_sources(paths: Sequence[str | Path], counts: Counts | None = None) -> list[TextSource]:
    """The files that `paths` mean, in order; `UserError` for a missing or empty one, or a textless folder."""
    counts = counts or Counts()
    sources: list[TextSource] = []
    for path in paths:
        if str(path).startswith(builtin.PREFIX):
            builtin.require_known(str(path))
            sources.append(TextSource(str(path), None))
        else:
            sources += [TextSource(str(found), found) for found in _find_files(Path(path), counts)]
    return sources


def read_pieces(
    paths: Sequence[str | Path], *, text_field: str = "text", counts: Counts | None = None
) -> Iterator[Piece]:
    """Every document of `paths`, in pieces of about `PIECE_CHARACTERS`: memory does not grow with a file.

    Pieces are cut where no tokenizer of ours joins what stands on the two sides (see `cut`).
    """
    counts = counts or Counts()
    for source in find_sources(paths, counts):
        yield from source.pieces(text_field, counts)


def read_documents(
    paths: Sequence[str | Path], *, text_field: str = "text", counts: Counts | None = None
) -> Iterator[str]:
    """Every document of `paths` whole, one at a time."""
    return (piece.text for piece in joined(read_pieces(paths, text_field=text_field, counts=counts)))


def joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Join the pieces of each document: memory holds the longest one.

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
# more white-space character ("a\n|\nb"), because byte-level BPE gives the last of several to the next word.
_LINE_CUT = re.compile(r"\n(?:(?<=\S\n)(?=\S)|(?=[ \t\r\n]\S))")
# Where no such line end is near: before the last white space of a run ("a| b"), safe where words are split.
_SPACE_CUT = re.compile(r"(?=[ \t\r\n]\S)")


def cut(blocks: Iterable[str]) -> Iterator[Piece]:
    """Cut one document, given in blocks, into pieces that tokenizers of our schemes encode to the ids of the whole.

    A piece ends at the first safe line end after `PIECE_CHARACTERS`. A text that has none within
    `MAX_PIECE_CHARACTERS` is cut between two words, and one without white space anywhere: there, and only
    there, a token that would have crossed the cut is split in two.

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
    # late in what was searched in vain, so that little of it is searched again
    match = _SPACE_CUT.search(buffer, last - PIECE_CHARACTERS, last)
    return match.start() if match else last


def _find_files(path: Path, counts: Counts) -> list[Path]:
    try:
        found = path.stat()
    except FileNotFoundError as error:
        raise UserError(f"no such file: {path}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {files.reason(error)}") from error
    if stat.S_ISDIR(found.st_mode):
        return _files_in(path, counts)
    if found.st_size == 0:
        raise UserError(f"{path} is empty; give a file with text")
    return [path]


def _files_in(folder: Path, counts: Counts) -> list[Path]:
    texts: list[Path] = []

    def refuse(error: OSError) -> None:
        raise UserError(f"cannot read {error.filename}: {files.reason(error)}") from error

    for where, subfolders, names in os.walk(folder, onerror=refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for path in (Path(where, name) for name in names if not name.startswith(".")):
            (texts if path.suffix.lower() in FOLDER_SUFFIXES else counts.other_files).append(path)
    for path in texts:
        _require_inside(path, folder)
    if not texts:
        raise UserError(f"{folder} holds no .txt or .jsonl file; name the files, or another folder")
    return sorted(texts, key=lambda path: path.relative_to(folder).parts)


def reads(folder: Path, path: Path) -> bool:
    """Whether a file, there or not yet, is one of the texts that a folder gives."""
    place, root = path.resolve(), folder.resolve()
    if root not in place.parents or place.suffix.lower() not in FOLDER_SUFFIXES:
        return False
    return not any(part.startswith(".") for part in place.relative_to(root).parts)


def _require_inside(path: Path, folder: Path) -> None:
    """A folder may be somebody else's: a link in it must not fetch other files, nor a pipe wait for ever."""
    if path.is_symlink() and folder.resolve() not in path.resolve().parents:
        raise UserError(f"{path} is a link out of {folder}: name its target beside the folder, or copy it")
    if not path.is_file():
        raise UserError(f"{path} is no ordinary file: take it out of {folder}")


def _read_blocks(path: Path) -> Iterator[bytes]:
    with files.reading(path), open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block


def _text_blocks(path: Path, counts: Counts) -> Iterator[str]:
    """The characters of a UTF-8 file, block by block, without byte order mark and with "\n" for CRLF."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, line = 0, 1  # of the next block
    carried_cr = ""
    at_start = True
    for block in itertools.chain(_read_blocks(path), [b""]):  # the empty block ends the decoding
        waiting = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise _not_utf8(path, error, offset - waiting, line) from error
        if (place := block.find(b"\0")) >= 0:
            raise files.nul_error(path, offset + place, line + block.count(b"\n", 0, place))
        if at_start and text:
            text, at_start = text.removeprefix("\ufeff"), False
        offset += len(block)
        line += text.count("\n")
        text = carried_cr + text
        carried_cr = "\r" if block and text.endswith("\r") else ""
        text = text.removesuffix(carried_cr) if carried_cr else text
        yield _unix_lines(text, counts)


def _unix_lines(text: str, counts: Counts) -> str:
    counts.n_crlf += text.count("\r\n")
    return text.replace("\r\n", "\n")


def _not_utf8(path: Path, error: UnicodeDecodeError, offset: int, line: int) -> UserError:
    """`offset` and `line` are those of the first byte that the decoder was given; a pickle is called one."""
    files.refuse_objects(path)
    line += error.object.count(b"\n", 0, error.start)
    return UserError(
        f"{path} is not UTF-8: byte {error.object[error.start]:#04x} at offset {offset + error.start} "
        f"(line {line}); convert it to UTF-8 first"
    )


def _jsonl_records(path: Path, text_field: str, counts: Counts) -> Iterator[str]:
    """The named field of every line's object; blank lines hold no record."""
    for number, line in enumerate(_jsonl_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = files.parse_json(line)
        except ValueError as error:
            raise UserError(f"{path}:{number} is not JSON: {error}; a jsonl file has one object a line") from error
        if not isinstance(record, dict):
            raise UserError(f'{path}:{number} is not an object; every line must look like {{"{text_field}": "..."}}')
        if text_field not in record:
            near, has = nearest_name(text_field, record), ", ".join(map(repr, list(record)[:8])) or "none"
            hint = f": did you mean {near!r}?" if near else f"; it has {has}"
            raise UserError(f"{path}:{number} has no field {text_field!r}{hint} (data.text_field)")
        text = record[text_field]
        if not isinstance(text, str):
            raise UserError(f"{path}:{number}: the field {text_field!r} is not a text but {json.dumps(text)[:40]}")
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON can escape what UTF-8 cannot hold
            raise UserError(
                f"{path}:{number} is not text: half of a surrogate pair ({text[error.start]!a}) stands alone"
            ) from error
        yield _unix_lines(text, counts)


def _jsonl_lines(path: Path) -> Iterator[str]:
    offset = 0
    with files.reading(path), open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if len(line) > MAX_LINE_BYTES:
                raise UserError(f"{path}:{number} is longer than {MAX_LINE_BYTES:,} bytes; is it a jsonl file?")
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                bom = len(line) - len(error.object)
                raise _not_utf8(path, error, offset + bom, number) from error
            offset += len(line)
