"""Text of files, block by block: encoding, gzip, and one sentence for a file that is not text.

Encoding: the first of `data.encoding` that decodes the whole file; UTF-8 by default. A byte order mark at the beginning
is skipped. A file whose name ends in `.gz` is unpacked while it is read. Invalid bytes and NUL raise an error with
their place.
"""

import codecs
import gzip
import itertools
import zlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

import charset_normalizer

from glassformer.common import files
from glassformer.common.errors import UserError

UTF_8 = ("utf-8",)
BLOCK_BYTES = 1 << 18
MAX_LINE_CHARACTERS = 1 << 28
"""Maximum length of a line. A line that is parsed is in memory as a whole."""
MAX_UNPACKED = 1 << 28
MAX_RATIO = 200
"""A gzip file may unpack to `MAX_UNPACKED` bytes, or to `MAX_RATIO` times its size. Text needs about 4 times its size.
"""
_GZIP = ".gz"
_SAMPLE_BYTES = 1 << 18


def suffix_of(path: str | Path) -> str:
    """Return the suffix of a file name in lower case; for `.gz`, the suffix of the unpacked file.

    >>> suffix_of("a.TSV"), suffix_of("notes.txt.gz"), suffix_of("x.gz")
    ('.tsv', '.txt', '')
    """
    path = Path(path)
    return (Path(path.stem) if path.suffix.lower() == _GZIP else path).suffix.lower()


def n_bytes(path: Path) -> int:
    """Return the size of a file, unpacked."""
    return sum(map(len, blocks(path))) if path.suffix.lower() == _GZIP else path.stat().st_size


def blocks(path: Path) -> Iterator[bytes]:
    """Yield the unpacked bytes of a file; raise `UserError` for one that cannot be read."""
    files.refuse_objects(path)
    is_packed = path.suffix.lower() == _GZIP
    if not is_packed and path.is_file() and 0 < path.stat().st_size <= BLOCK_BYTES:
        with files.reading(path):
            block = path.read_bytes()
        yield block  # the file is closed, even if the caller stops here
        return
    with files.reading(path), open(path, "rb") as raw:
        file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if is_packed else raw
        n, limit = 0, max(MAX_UNPACKED, MAX_RATIO * path.stat().st_size)
        try:
            while block := file.read(BLOCK_BYTES):
                if is_packed and (n := n + len(block)) > limit:
                    raise UserError(
                        f"{path} unpacks to more than {limit:,} bytes; unpack it with gunzip and look at it"
                    )
                yield block
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{path} is not a complete gzip file: {error}; download or pack it again") from error


def text_blocks(path: Path, encodings: Sequence[str] = UTF_8) -> Iterator[str]:
    """Yield the text of a file in blocks, without a byte order mark, with its line ends unchanged."""
    encoding = encoding_used(path, encodings)
    decoder = codecs.getincrementaldecoder(encoding)()
    offset, line = 0, 1  # position of the next block
    at_start = True
    for block in itertools.chain(blocks(path), [b""]):  # the empty block flushes the decoder
        waiting = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise _not_decoded(path, error, offset - waiting, line, encodings) from error
        if (place := text.find("\0")) >= 0:
            before = len(text[:place].encode(encoding))
            raise files.nul_error(path, offset - waiting + before, line + text.count("\n", 0, place))
        offset += len(block)
        line += text.count("\n")
        if at_start and text:
            text, at_start = text.removeprefix("\ufeff"), False
        yield text


def text_lines(path: Path, encodings: Sequence[str] = UTF_8) -> Generator[str, None, None]:
    r"""Yield the lines of a file with their ends; only "\n" ends a line, as other separators are part of the text."""
    waiting: list[str] = []
    n_waiting = 0
    for block in text_blocks(path, encodings):
        *complete, rest = block.split("\n")
        for part in complete:
            yield "".join([*waiting, part, "\n"])
            waiting, n_waiting = [], 0
        waiting.append(rest)
        n_waiting += len(rest)
        if n_waiting > MAX_LINE_CHARACTERS:
            limit = f"{MAX_LINE_CHARACTERS:,} characters"
            raise UserError(f"{path} has a line of more than {limit}: it is read line by line; is its suffix right?")
    if n_waiting:
        yield "".join(waiting)


def read_text(path: Path, encodings: Sequence[str] = UTF_8) -> str:
    """Return the whole text of a file of at most `files.MAX_TEXT_BYTES`."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: give a file")
    parts, n = [], 0
    for block in text_blocks(path, encodings):
        parts.append(block)
        if (n := n + len(block)) > files.MAX_TEXT_BYTES:
            raise UserError(
                f"{path} has more than {files.MAX_TEXT_BYTES:,} characters, the limit for a file read whole"
            )
    return "".join(parts)


def encoding_used(path: Path, encodings: Sequence[str]) -> str:
    """Return the first encoding that decodes a file, else the first one."""
    if len(encodings) == 1:
        return encodings[0]
    return next((name for name in encodings if _decodes(path, name)), encodings[0])


def fault(path: Path, encodings: Sequence[str] = UTF_8, *, is_head: bool = False) -> str:
    """Return why a file is not text or cannot be read, '' for text; with `is_head`, only the first block is read."""
    try:
        for _ in itertools.islice(text_blocks(path, encodings), 1 if is_head else None):
            pass
    except UserError as error:
        return str(error)
    return ""


def guessed_encoding(paths: Sequence[Path]) -> str | None:
    """Return the most probable encoding of the files that are not UTF-8; None if no encoding is probable."""
    sample = b""
    for path in paths:
        try:
            sample += next(blocks(path), b"")[: _SAMPLE_BYTES // len(paths)]
        except UserError:
            continue
    matches = charset_normalizer.from_bytes(sample)
    probable = {name for match in matches for name in match.could_be_from_charset}
    best = matches.best()
    if best is None or best.encoding in ("utf_8", "ascii"):
        return None
    # Several encodings of Western languages decode most texts equally: the one of Windows is the most frequent.
    return "cp1252" if "cp1252" in probable else best.encoding.replace("_", "-")


def _decodes(path: Path, encoding: str) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for block in itertools.chain(blocks(path), [b""]):
            decoder.decode(block, final=not block)
    except UnicodeDecodeError:
        return False
    return True


def _not_decoded(path: Path, error: UnicodeDecodeError, offset: int, line: int, encodings: Sequence[str]) -> UserError:
    """Return the error for a file that no encoding of `encodings` decodes, with a guess of its encoding."""
    if tuple(encodings) != UTF_8:
        line += error.object.count(b"\n", 0, error.start)
        names = " or ".join(encodings)
        return UserError(
            f"{path} is not {names}: byte {error.object[error.start]:#04x} at offset {offset + error.start} (line "
            f"{line}); set another data.encoding, or convert it"
        )
    found = files.utf8_error(path, error, offset, line)
    guess = guessed_encoding([path])
    return UserError(f"{found}, or set data.encoding to {guess}, its probable encoding") if guess else found
