r"""Rows of tables in text files: how they are separated and quoted is decided from the rows.

A table is written in one of four formats (`data.format`): `tab` (separated by tabs, a quotation mark is an ordinary
character), `tab_quoted` (by tabs, and cells may be quoted, as spreadsheets and `csv` write them), `comma` and
`semicolon` (cells may be quoted). In a quoted cell, separators and line breaks are text, and `""` is one quotation
mark.

`dialect_of` reads the first `HEAD_CHARACTERS` under each format. The separator is the one with which most rows have as
many columns as line 1; a first line `sep=;` names it. Cells between tabs are read as quoted in two cases: more rows
then have as many columns as line 1, or equally many have and quoting explains all quotation marks (`_is_quoted`). A
later row that contradicts the format raises an error with its line.
"""

import csv
import itertools
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from glassformer.common.errors import UserError, shown
from glassformer.data.text_files import UTF_8, suffix_of, text_lines

HEAD_CHARACTERS = 1 << 24
SEPARATORS = {"tab": "\t", "tab_quoted": "\t", "comma": ",", "semicolon": ";"}
"""The separator of each format."""
NAMES = {"\t": "tabs", ",": "commas", ";": "semicolons"}
USUAL = {".tsv": ("\t", False), ".csv": (",", True)}
"""Separator and quoting that are usual for a suffix. They are tried first, and no note mentions them."""


@dataclass(frozen=True)
class Dialect:
    """The separator and the quoting of a table."""

    separator: str
    is_quoted: bool
    has_sep_line: bool = False
    """True if line 1 is `sep=` and a separator."""
    is_certain: bool = True
    """False if no cell of the head begins with a quotation mark, and the head is not the whole table."""
    share: float = 0.0
    """Share of the rows with as many columns as line 1; 0 for a single column."""

    def __str__(self) -> str:
        named = NAMES.get(self.separator, repr(self.separator))
        if not self.is_quoted:
            return f"separated by {named}, quotation marks are text"
        return f"separated by {named}, cells quoted as spreadsheets do"


Row = tuple[int, list[str]]
"""A row with the number of the line on which it ends."""


def dialect_of(path: Path, form: str = "auto", encodings: Sequence[str] = UTF_8) -> Dialect:
    """Return how a table is written: by `form`, else by its first rows."""
    head, is_whole = _head(path, encodings)
    has_sep_line = bool(head) and re.fullmatch(r"sep=.[\r\n]*", head[0], re.IGNORECASE) is not None
    body = head[has_sep_line:]
    if form in SEPARATORS:
        separators, is_quoted = [SEPARATORS[form]], form != "tab"
    elif has_sep_line:
        separators, is_quoted = [head[0].rstrip("\r\n")[4:]], True
    else:
        usual, _ = USUAL.get(suffix_of(path), ("\t", False))
        separators, is_quoted = sorted(NAMES, key=lambda separator: separator != usual), None
    found = [_measured(body, separator, is_quoted, is_whole) for separator in separators]
    return replace(max(found, key=lambda dialect: dialect.share), has_sep_line=has_sep_line)


def _head(path: Path, encodings: Sequence[str]) -> tuple[list[str], bool]:
    """Return the first lines of a file, and True if the file has no others."""
    lines: list[str] = []
    n = 0
    for line in text_lines(path, encodings):
        if n > HEAD_CHARACTERS:
            return lines, False
        lines.append(line)
        n += len(line)
    return lines, True


def _measured(lines: Sequence[str], separator: str, is_quoted: bool | None, is_whole: bool) -> Dialect:
    """Return the dialect of a table for one separator; if `is_quoted` is None, the rows decide if cells are quoted."""
    raw = [row for _, row in _raw_rows(lines, separator)]
    as_text = Dialect(separator, False, share=_regularity(raw))
    if is_quoted is False:
        return as_text
    must_quote = is_quoted or separator != "\t"
    if not any(cell.startswith('"') for row in raw for cell in row):
        return replace(as_text, is_quoted=must_quote, is_certain=is_whole or must_quote)
    parsed, is_valid = _parsed(lines, separator, is_whole)
    quoted = Dialect(separator, True, share=_regularity(parsed))
    explains = quoted.share > as_text.share or (quoted.share == as_text.share and _is_quoted(raw, separator))
    if must_quote or (is_valid and explains):
        return quoted
    return as_text


def _parsed(lines: Iterable[str], separator: str, is_whole: bool) -> tuple[list[list[str]], bool]:
    """Return the rows of quoted cells up to the first error, and True without an error; a cut last row is no error."""
    found: list[list[str]] = []
    csv.field_size_limit(2**31 - 1)  # a cell may contain a long document
    try:
        found.extend(csv.reader(lines, delimiter=separator, strict=True))
    except csv.Error as error:
        return found, not is_whole and "unexpected end of data" in str(error)
    return found, True


def _regularity(found: Iterable[Sequence[str]]) -> float:
    """Return the share of the rows that have as many columns as line 1; 0 for a single column.

    >>> _regularity([["a", "b"], ["c", "d"], [""], ["e"]])
    0.6666666666666666
    """
    lengths = [len(row) for row in found if any(cell.strip() for cell in row)]
    if not lengths or lengths[0] < 2:
        return 0.0
    return lengths.count(lengths[0]) / len(lengths)


def _is_quoted(found: Sequence[Sequence[str]], separator: str) -> bool:
    r"""Return True if quoting explains the quotation marks in rows without line breaks in cells.

    A program that quotes cells always quotes a cell with a quotation mark. In each column, it quotes either all cells
    or only cells with a special character: the separator, a quotation mark, or a comma or semicolon. A comma or a
    semicolon is special only if no cell without quotation marks has it.

    >>> _is_quoted([["source", "target"], ['"one, two"', "three"]], "\t")
    True
    >>> _is_quoted([['say "Go!"', "x"], ['"a, b"', "y"]], "\t")
    False
    >>> _is_quoted([["a", "b"], ['"Go!"', "x"], ["a", "y"]], "\t")
    False
    """
    special = {separator, '"', ",", ";"}
    plain_columns: set[int] = set()
    for number, row in enumerate(found):
        for column, cell in enumerate(row):
            if not cell.startswith('"'):
                if '"' in cell:
                    return False
                special -= {c for c in ",;" if c in cell}
                if cell.strip() and number:  # the names of the columns may be without quotation marks
                    plain_columns.add(column)
    quoted = ((column, cell[1:-1]) for row in found for column, cell in enumerate(row) if cell.startswith('"'))
    return all(
        column not in plain_columns or not special.isdisjoint(cell) or cell != cell.strip() for column, cell in quoted
    )


def _raw_rows(lines: Iterable[str], separator: str) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\n").removesuffix("\r")
        yield number, line.split(separator)


def rows(path: Path, dialect: Dialect, encodings: Sequence[str] = UTF_8) -> Generator[Row, None, None]:
    """Yield the rows of a table, the header included; raise `UserError` for a line that contradicts the dialect."""
    n_before = int(dialect.has_sep_line)
    lines = itertools.islice(text_lines(path, encodings), n_before, None)
    # Without quoting, a line is a row
    if not dialect.is_quoted:
        for number, row in _raw_rows(lines, dialect.separator):
            if not dialect.is_certain and any(len(c) > 1 and c[0] == c[-1] == '"' for c in row):
                raise UserError(
                    f"{path}:{number + n_before} is the first row with a quoted cell: set data.format to tab_quoted to "
                    "read its quotation marks as quoting, or to tab to keep them"
                )
            yield number + n_before, row
        return
    # With quoting, a cell may have line breaks; a carriage return in line 1 is a line end of an old Mac program
    first = next(lines, "")
    if "\r" in first.removesuffix("\n").removesuffix("\r"):
        raise carriage_returns(path)
    reader = csv.reader(itertools.chain([first], lines), delimiter=dialect.separator, strict=True)
    try:
        for row in reader:
            yield reader.line_num + n_before, row
    except csv.Error as error:
        cure = ", or set data.format to tab if quotation marks are text" if dialect.separator == "\t" else ""
        named = "valid CSV" if dialect.separator == "," else f"a valid table ({dialect})"
        raise UserError(
            f"{path}:{reader.line_num + n_before} is not {named}: {error}; correct this line{cure}"
        ) from error


def carriage_returns(path: Path) -> UserError:
    """Return the error for the line ends of old Mac programs."""
    return UserError(f"{path} has carriage returns (CR) as line ends; convert them to line feeds (LF)")


def described(header: Sequence[str]) -> str:
    """Return the names of columns for messages, at most twelve."""
    columns = [shown(name, 40) for name in header[:12]]
    if len(header) > 12:
        columns.append("…")
    return ", ".join(columns) or "none"
