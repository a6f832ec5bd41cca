"""Documents from text, jsonl and Parquet files, folders and patterns, and built-in texts, in bounded memory.

Sources: a `.jsonl` file has one document per line, in a named field of a JSON object, and a `.parquet` file (extra:
data) one per row, in a named column; any other file is one document. A folder means its `.txt` and `.jsonl` files,
subfolders included, sorted by path; other files and hidden files are skipped. A pattern such as `src/**/*.py` means the
files that match it, in the same order. `builtin:NAME` is a text made from the installed Python (`data.builtin`), and
`hf:NAME` a Hugging Face dataset (`data.records`) with one document per record.

Encoding: UTF-8, with or without a byte order mark; invalid bytes raise an error with their place. Windows line
ends (CRLF) become "\n"; a lone CR is kept. Documents of only white space are skipped and counted.
"""

import codecs
import hashlib
import itertools
import os
import re
import shlex
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from glassformer import files
from glassformer.data import builtin, records
from glassformer.data.records import HUB, Record
from glassformer.errors import UserError

Paths = Sequence[str | Path]

FOLDER_SUFFIXES = (".txt", ".jsonl")
PIECE_CHARACTERS = 1 << 16  # minimum size: a piece ends at the first safe place after it
MAX_PIECE_CHARACTERS = 1 << 20
MAX_LINE_BYTES = 1 << 28  # of a jsonl file, because a line is parsed in memory
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
    """One file, or one built-in text or Hugging Face dataset (`path=None`)."""

    name: str
    path: Path | None

    @property
    def is_jsonl(self) -> bool:
        return self.path is not None and self.path.suffix.lower() == ".jsonl"

    def sha256(self, text_field: str = "text") -> str:
        """Compute the SHA-256 of the unchanged bytes of the file, or of the documents that are not in a file."""
        if self.path is not None:
            with files.reading(self.path):
                return files.sha256(self.path)
        digest = hashlib.sha256()
        for document in self._documents(text_field, Counts()):
            data = document.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        return digest.hexdigest()

    def n_bytes(self, text_field: str) -> int:
        """Return the size of the file, or of the documents that are not in a file or are compressed in it."""
        if self.path is not None and not records.is_parquet(self.name):
            return self.path.stat().st_size
        return sum(len(document.encode()) for document in self._documents(text_field, Counts()))

    def _documents(self, text_field: str, counts: Counts) -> Iterator[str]:
        if self.path is not None and self.is_jsonl:
            return _jsonl_records(self.path, text_field, counts)
        if self.name.startswith(builtin.PREFIX):
            return builtin.documents(self.name)
        wanted = records.Wanted((text_field,), "data.text_field")
        texts = (record.text(text_field) for record in records.records(self.name, wanted, "train", records.Dropped()))
        return (_unix_lines(text, counts) for text in texts) if self.path is not None else texts

    def pieces(self, text_field: str, counts: Counts) -> Iterator[Piece]:
        """Yield the documents of this source, in pieces; blank documents are skipped and counted."""
        if self.path is None or self.is_jsonl or records.is_parquet(self.name):
            for document in self._documents(text_field, counts):
                if document.strip():
                    yield from cut([document])
                else:
                    counts.n_blank_documents += 1
        else:
            for number, piece in enumerate(cut(_text_blocks(self.path, counts))):
                if number == 0 and piece.ends_document and not piece.text.strip():
                    counts.n_blank_documents += 1
                else:
                    yield piece


def find_sources(paths: Paths, counts: Counts | None = None) -> list[TextSource]:
    """Find the sources of `paths`, in order; raise `UserError` for a missing or empty file or folder."""
    counts = counts or Counts()
    sources: list[TextSource] = []
    for path in paths:
        if str(path).startswith(builtin.PREFIX):
            builtin.require_known(str(path))
            sources.append(TextSource(str(path), None))
        elif str(path).startswith(HUB):
            sources.append(TextSource(str(path), None))
        else:
            sources += [TextSource(str(found), found) for found in _find_files(files.as_path(path, "path"), counts)]
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
    match = _SPACE_CUT.search(buffer, last - PIECE_CHARACTERS, last)
    return match.start() if match else last


def is_pattern(path: str | Path) -> bool:
    """Return True for a pattern such as `src/**/*.py`; a file whose name has these characters is a file."""
    return not _WILDCARD.isdisjoint(str(path)) and not files.exists(Path(path))


def split_pattern(pattern: str | Path) -> tuple[Path, tuple[str, ...]]:
    """Split a pattern into the folder to search and the parts that file paths in it must match.

    >>> split_pattern("src/**/*.py")
    (PosixPath('src'), ('**', '*.py'))
    """
    parts = Path(pattern).parts
    n = next((n for n, part in enumerate(parts) if not _WILDCARD.isdisjoint(part)), len(parts))
    return Path(*parts[:n]), parts[n:]


_WILDCARD = frozenset("*?[")


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return True if the parts of a path match those of a pattern; `**` matches any number of folders.

    >>> _matches(("a", "b", "c.py"), ("**", "*.py")), _matches(("c.py",), ("**", "*.py")), _matches(("a", "c"), ("*",))
    (True, True, False)
    """
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return _matches(parts, pattern[1:]) or (bool(parts) and _matches(parts[1:], pattern))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _find_files(path: Path, counts: Counts) -> list[Path]:
    if is_pattern(path):
        folder, pattern = split_pattern(path)
        with files.reading(folder):
            folder.stat()
        found = _files_in(folder, lambda file: _matches(file.relative_to(folder).parts, pattern), Counts())
        if not found:
            raise UserError(f"no file matches {path}: `**` means any number of folders, as in src/**/*.py")
        return found
    with files.reading(path):
        status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        if found := _files_in(path, lambda file: file.suffix.lower() in FOLDER_SUFFIXES, counts):
            return found
        raise _no_texts(path, counts.other_files)
    if status.st_size == 0:
        raise UserError(f"{path} is empty; use a file with text")
    return [path]


def _files_in(folder: Path, takes: Callable[[Path], bool], counts: Counts) -> list[Path]:
    """Return the files of a folder that `takes` selects, sorted by path; the others are added to `counts`."""
    texts: list[Path] = []

    def refuse(error: OSError) -> None:
        raise UserError(f"cannot read {error.filename}: {files.reason(error)}") from error

    for where, subfolders, names in os.walk(folder, onerror=refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for path in (Path(where, name) for name in names if not name.startswith(".")):
            (texts if takes(path) else counts.other_files).append(path)
    for path in texts:
        _require_inside(path, folder)
    return sorted(texts, key=lambda path: path.relative_to(folder).parts)


def _no_texts(folder: Path, others: Sequence[Path]) -> UserError:
    """Return the error for a folder without texts; it names the most frequent kind of the other files of text."""
    for suffix, n in Counter(path.suffix for path in others if path.is_relative_to(folder)).most_common():
        example = next(path for path in others if path.suffix == suffix)
        if suffix and _is_text(example):
            pattern = shlex.quote(str(folder / "**" / f"*{suffix}"))
            more = f"has {n:,} {suffix} file{'s' * (n > 1)} and no .txt or .jsonl file: glassformer train {pattern}"
            return UserError(f"{folder} {more}")
    return UserError(f"{folder} has no .txt or .jsonl file; name the files, or use another folder")


def _is_text(path: Path) -> bool:
    """Return True if a file begins with UTF-8."""
    try:
        with open(path, "rb") as file:
            head = file.read(_BLOCK_BYTES)
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except (OSError, UnicodeDecodeError):
        return False
    return b"\0" not in head


def reads(place: Path, path: Path) -> bool:
    """Return True if `path`, which need not exist, is a text file that reading a folder or a pattern includes."""
    folder, pattern = split_pattern(place) if is_pattern(place) else (place, ("**",))
    file, root = path.resolve(), folder.resolve()
    if root not in file.parents:
        return False
    parts = file.relative_to(root).parts
    is_read = _matches(parts, pattern) if is_pattern(place) else file.suffix.lower() in FOLDER_SUFFIXES
    return is_read and not any(part.startswith(".") for part in parts)


def _require_inside(path: Path, folder: Path) -> None:
    """Refuse links out of an untrusted folder, and files such as pipes, which could block for ever."""
    if path.is_symlink() and folder.resolve() not in path.resolve().parents:
        raise UserError(f"{path} is a link to a file outside {folder}; add its target to the paths, or copy it")
    if not path.is_file():
        raise UserError(f"{path} is not a regular file; remove it from {folder}")


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
    for block in itertools.chain(_read_blocks(path), [b""]):  # the empty block flushes the decoder
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
    if "\r" not in text:
        return text  # in a tenth of the time
    counts.n_crlf += text.count("\r\n")
    return text.replace("\r\n", "\n")


def _not_utf8(path: Path, error: UnicodeDecodeError, offset: int, line: int) -> UserError:
    """Return the error for invalid UTF-8 in a part of a file (`files.utf8_error`); raise another one for a pickle."""
    files.refuse_objects(path)
    return files.utf8_error(path, error, offset, line)


def _jsonl_records(path: Path, text_field: str, counts: Counts) -> Iterator[str]:
    """Yield the field `text_field` of every line's object; blank lines are skipped."""
    for number, line in enumerate(_jsonl_lines(path), start=1):
        if line.strip():
            where = f"{path}:{number}"
            record = Record(where, files.parse_json_line(line, where), "data.text_field")
            yield _unix_lines(record.text(text_field), counts)


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
