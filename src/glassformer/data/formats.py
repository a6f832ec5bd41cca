"""Readers of the files that hold records: tsv, csv, jsonl, Parquet and CoNLL."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.data.records import Record, Request
from glassformer.errors import UserError, first_line, needs, shown

MAX_LINE_BYTES = 1 << 28  # of a jsonl file, because a line is parsed in memory
DOCUMENT_START = "-DOCSTART-"


def lines(text: str) -> list[str]:
    r"""Split a text into lines at line feeds only: other line separators are part of the text.

    >>> lines("a\r\nb\u2028c\n")
    ['a', 'b\u2028c']
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text:
        return []
    return text.removesuffix("\n").split("\n")


def read_jsonl(address: str, request: Request) -> Iterator[Record]:
    """Yield the object of every line; blank lines are skipped, and the file is never in memory as a whole."""
    path = files.as_path(address, "path")
    for number, line in enumerate(_jsonl_lines(path), 1):
        if line.strip():
            where = f"{path}:{number}"
            yield Record(where, files.parse_json_line(line, where), request.settings)


def _jsonl_lines(path: Path) -> Iterator[str]:
    files.refuse_objects(path)
    offset = 0
    with files.reading(path), open(path, "rb") as file:
        encoding = "utf-8-sig"  # the first line may begin with a byte order mark
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if len(line) > MAX_LINE_BYTES:
                raise UserError(f"{path}:{number} is longer than {MAX_LINE_BYTES:,} bytes; is it a jsonl file?")
            try:
                yield line.decode(encoding)
            except UnicodeDecodeError as error:
                bom = len(line) - len(error.object)
                raise files.utf8_error(path, error, offset + bom, number) from error
            offset += len(line)
            encoding = "utf-8"


def read_parquet(address: str, request: Request) -> Iterator[Record]:
    """Yield the rows of a Parquet file; one that `datasets` wrote may have class indices (`Record.features`)."""
    path = files.as_path(address, "path")
    with needs("a Parquet file", "data"):
        from pyarrow import ArrowException, parquet
    try:
        with files.reading(path), parquet.ParquetFile(path) as file:
            features = _stored_features(file.schema_arrow)
            for number, row in enumerate((row for batch in file.iter_batches() for row in batch.to_pylist()), 1):
                yield Record(f"row {number} of {path}", row, request.settings, features)
    except ArrowException as error:
        raise UserError(f"{path} cannot be read as Parquet: {first_line(error)}") from error


def _stored_features(schema: Any) -> Any:
    """Return the `features` that the library `datasets` stored in the schema of a Parquet file; None without them."""
    if b"huggingface" not in (schema.metadata or {}):
        return None
    with needs("a Parquet file with features of a dataset", "data"):
        import datasets
    return datasets.Features.from_arrow_schema(schema)


def read_table(address: str, request: Request) -> Iterator[Record]:
    """Yield the rows of a table with a header; a tsv of two columns may lack it if two fields are wanted."""
    path = files.as_path(address, "path")
    rows, names = table_rows(path), request.names
    _, header = next(rows, (0, []))
    if twice := [name for name in names if header.count(name) > 1]:
        raise UserError(f"{path} has {header.count(twice[0])} columns named {twice[0]!r}; name each column once")
    if any("\r" in cell for cell in header):
        raise UserError(f"{path} has carriage returns (CR) as line ends; convert them to line feeds (LF)")
    folded = {name.casefold() for name in names}
    is_header = any(cell.strip().casefold() in folded for cell in header)  # it names a column, in any case
    if all(name in header for name in names):
        indices = [header.index(name) for name in names]
    elif is_tsv(path) and len(header) == len(names) == 2 and request.may_lack_header and not is_header:
        indices = [0, 1]
        request.dropped.headerless.append(
            f"{path} has no header with {names[0]} and {names[1]}; line 1 is read as data ({names[0]}, {names[1]})"
        )
        yield Record(f"{path}:1", dict(zip(names, header, strict=True)), request.settings)
    else:
        columns = _column_names(header)
        raise UserError(f"{path}: expected the columns {' and '.join(names)}, got {columns}; set {request.settings}")
    beside = [name for name in request.beside if name in header]
    names, indices = (*names, *beside), [*indices, *map(header.index, beside)]
    for number, row in rows:
        if row and any(cell.strip() for cell in row):
            if len(row) != len(header):
                raise UserError(f"{path}:{number}: expected {len(header)} columns as in line 1, got {len(row)}")
            cells = {name: row[index] for name, index in zip(names, indices, strict=True)}
            yield Record(f"{path}:{number}", cells, request.settings)


def _column_names(names: Sequence[str]) -> str:
    """Format the first twelve column names for a message."""
    columns = [shown(name, 40) for name in names[:12]]
    if len(names) > 12:
        columns.append("…")
    return ", ".join(columns) or "none"


def is_tsv(path: Path) -> bool:
    return path.suffix.lower() == ".tsv"


def table_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a tsv or csv file, the header included, with the number of the line on which each ends."""
    return _tsv(path) if is_tsv(path) else _csv(path)


def _tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Read line numbers and rows of tab-separated text, without quoting: a quotation mark is an ordinary character."""
    return ((number, line.split("\t")) for number, line in enumerate(lines(files.read_text(path)), 1))


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with the number of the line on which each ends; a quoted cell may contain line breaks."""
    csv.field_size_limit(2**31 - 1)  # a cell may contain a long document
    reader = csv.reader(io.StringIO(files.read_text(path), newline=""), strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num} is not valid CSV: {error}; correct this line") from error


def read_conll(address: str, request: Request) -> Iterator[Record]:
    """Read one word per line, its tag in the last column, a blank line after each sentence (Tjong Kim Sang 2003).

    Columns are separated by tabs or, in a line without tabs, by spaces. Lines that begin a document are skipped.
    """
    path = files.as_path(address, "path")
    words: list[str] = []
    tags: list[str] = []
    first, n_columns = 0, 0
    for number, line in enumerate([*lines(files.read_text(path)), ""], 1):  # a blank line ends a sentence
        if line.strip() and not line.startswith(DOCUMENT_START):
            separator = "\t" if "\t" in line else None
            columns = [cell.strip() for cell in line.split(separator)]
            n_columns = n_columns or len(columns)
            if len(columns) < 2 or not (columns[0] and columns[-1]):
                raise UserError(f"{path}:{number}: expected a word and its tag, got {line!r:.40}")
            if len(columns) != n_columns:
                raise UserError(f"{path}:{number}: expected {n_columns} columns as for word 1, got {len(columns)}")
            first = first or number
            words.append(columns[0])
            tags.append(columns[-1])
        elif words:
            yield Record(f"{path}:{first}", dict(zip(request.names, (words, tags), strict=True)), request.settings)
            words, tags, first = [], [], 0
