"""Readers of records: tables, JSON, Parquet and CoNLL, and the data sets of the Hugging Face hub.

`hf:NAME` is a repository on the hub, or a local folder; the library `datasets` reads it (extra: data).
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal

from glassformer.common import files
from glassformer.common.errors import UserError, first_line, needs
from glassformer.data import tables
from glassformer.data.records import Record, Request
from glassformer.data.text_files import UTF_8, read_text, suffix_of, text_lines

HUB = "hf:"
VALIDATION = "validation"
"""Name of the split of a dataset that is used as validation data."""
DOCUMENT_START = "-DOCSTART-"
JSON_LINES, TABLES = (".jsonl", ".ndjson"), (".tsv", ".csv")
Layout = Literal["table", "lines", "list", ""]
"""Layout of records: "table"; "lines": one JSON object per line; "list": a JSON list of objects; "": no records."""


def lines(text: str) -> list[str]:
    r"""Split a text into lines at line feeds only: other line separators are part of the text.

    >>> lines("a\r\nb\u2028c\n")
    ['a', 'b\u2028c']
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text:
        return []
    return text.removesuffix("\n").split("\n")


def layout_of(path: Path, form: str = "auto", encodings: Sequence[str] = UTF_8) -> Layout:
    """Return the layout of the records of a file: given by `form`, else by its suffix, else by its first lines.

    A file of another suffix is a list or lines of JSON if it begins like one. Otherwise it is a table if line 1 has at
    least two columns and more than half of the rows have as many columns as line 1.
    """
    suffix = suffix_of(path)
    if form in tables.SEPARATORS or (form == "auto" and suffix in TABLES):
        return "table"
    if suffix in JSON_LINES:
        return "lines"
    # A file whose content decides
    first, second = _first_lines(path, encodings)
    if first.lstrip().startswith(("{", "[")):
        if second and isinstance(_json_or_none(first), dict):
            return "lines"
        value = _json_or_none(read_text(path, encodings))
        if _listed(value) is not None:
            return "list"
        if isinstance(value, dict) and not second:
            return "lines"
    if form == "json" or suffix == ".json":
        return ""
    return "table" if tables.dialect_of(path, form, encodings).share > 0.5 else ""


def are_clearly_records(path: Path, encodings: Sequence[str] = UTF_8) -> bool:
    """Return True if the content of a file of any suffix is JSON records or a table, and cannot be prose.

    All rows of such a table have equally many columns. In addition, line 1 has the names of a set in `KNOWN_COLUMNS`,
    or the cells are separated by tabs and few of them are blank.
    """
    try:
        first, _ = _first_lines(path, encodings)
    except UserError:  # not text: the checks of texts name the reason
        return False
    names = {name.strip(" \"'\r\n").casefold() for name in re.split(r"[\t,;]", first)}
    is_named = any(names.issuperset(known) for known in KNOWN_COLUMNS)
    if not (is_named or "\t" in first or first.lstrip("\ufeff ").startswith(("{", "[", "sep="))):
        return False
    layout = layout_of(path, "auto", encodings)
    if layout != "table":
        return layout != ""
    dialect = tables.dialect_of(path, "auto", encodings)
    if dialect.share < 1:
        return False
    head = [row for _, row in itertools.islice(tables.rows(path, dialect, encodings), 1000)]
    cells = [cell for row in head for cell in row if any(c.strip() for c in row)]
    is_full = sum(not cell.strip() for cell in cells) <= 0.1 * len(cells)
    return is_named or (dialect.separator == "\t" and len(head) > 1 and is_full)


KNOWN_COLUMNS = ({"source", "target"}, {"text", "label"}, {"prompt", "completion"}, {"chosen", "rejected"})
"""Sets of names of columns. A file of any suffix may be a table if its line 1 has all names of one set."""


def _first_lines(path: Path, encodings: Sequence[str]) -> tuple[str, str]:
    """Return the first two lines that are not blank."""
    found = (line for line in text_lines(path, encodings) if line.strip())
    return next(found, ""), next(found, "")


def _json_or_none(text: str) -> Any:
    try:
        return files.parse_json(text)
    except ValueError:
        return None


def _listed(value: Any) -> list[dict[str, Any]] | None:
    """Return `value` if it is a list of objects, or the only such list among the values of an object; None otherwise.

    >>> _listed([{"text": "a"}]), _listed({"version": 1, "data": [{"text": "a"}]})
    ([{'text': 'a'}], [{'text': 'a'}])
    >>> _listed({"messages": [{"role": "user", "content": "one conversation"}]}), _listed([1])
    (None, None)
    """
    if isinstance(value, dict):
        lists = [found for found in map(_listed, (v for v in value.values() if isinstance(v, list))) if found]
        is_conversation = bool(lists) and not {"role", "from"}.isdisjoint(lists[0][0])
        return lists[0] if len(lists) == 1 and not is_conversation else None
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return value
    return None


def read(address: str, request: Request) -> Iterator[Record]:
    """Yield the records of a text file; `layout_of` recognises how they are written."""
    path = files.as_path(address, "path")
    layout = layout_of(path, request.format, request.encoding)
    if layout == "lines":
        with closing(text_lines(path, request.encoding)) as rows:  # an error in a row closes the file
            for number, line in enumerate(rows, 1):
                if line.strip():
                    where = f"{path}:{number}"
                    yield Record(where, files.parse_json_line(line, where), request.settings)
    elif layout == "list":
        for number, fields in enumerate(_listed(_json_or_none(read_text(path, request.encoding))) or (), 1):
            yield Record(f"record {number} of {path}", fields, request.settings)
    elif layout == "table":
        yield from _read_table(path, request)
    else:
        raise not_records(path)


def not_records(path: Path) -> UserError:
    """Return the error for a file whose content is not records."""
    if suffix_of(path) == ".json":
        return UserError(f"{path} is not records: expected a JSON list of objects, or an object per line")
    return UserError(
        f"{path} is not records: expected JSON, or rows of equally many columns, separated by tabs, commas or "
        "semicolons; if it is a table, set data.format"
    )


def read_parquet(address: str, request: Request) -> Iterator[Record]:
    """Yield the rows of a Parquet file; `Record.features` may name classes, if `datasets` wrote the file."""
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


def _read_table(path: Path, request: Request) -> Iterator[Record]:
    """Yield the rows of a table with a header.

    A table without a header is read in two cases: the columns are given by number (data.source_field = "1"), or the
    table has two columns, is not csv, and two fields with default names are wanted.
    """
    dialect = tables.dialect_of(path, request.format, request.encoding)
    names = request.names
    with closing(tables.rows(path, dialect, request.encoding)) as rows:  # an error in a row closes the file
        if (dialect.separator, dialect.is_quoted) != tables.USUAL.get(suffix_of(path)):
            request.dropped.note(f"{path} is read as a table {dialect} (data.format)")
        # 1. The header, or a first row of data
        first, header = next(rows, (0, []))
        read: Iterator[tuple[int, list[str]]] = rows
        if twice := [name for name in names if header.count(name) > 1]:
            raise UserError(f"{path} has {header.count(twice[0])} columns named {twice[0]!r}; name each column once")
        if any("\r" in cell for cell in header):
            raise tables.carriage_returns(path)
        folded = {name.casefold() for name in names}
        is_header = any(cell.strip().casefold() in folded for cell in header)  # a wanted name, in small or capitals
        has_two = suffix_of(path) != ".csv" and len(header) == len(names) == 2 and request.may_lack_header
        # 2. The names of the columns: those of the header, numbers, or the names that are wanted
        columns: Sequence[str] = header
        if not set(names).issubset(header):
            if all(name.isdecimal() and 0 < int(name) <= len(header) for name in names):
                columns = [str(number) for number in range(1, len(header) + 1)]
            elif has_two and not is_header:
                columns = names
            else:
                raise UserError(
                    f"{path}: expected the columns {' and '.join(names)}, got {tables.described(header)}; set "
                    f"{request.settings}"
                )
            request.dropped.headerless.append(
                f"{path} has no header with {' and '.join(names)}; line 1 is read as data ({', '.join(columns)})"
            )
            read = itertools.chain([(first, header)], rows)
        # 3. The rows
        for number, row in read:
            if any(cell.strip() for cell in row):
                if len(row) != len(header):
                    hint = ""
                    if not dialect.is_quoted and any(cell.startswith('"') for cell in row):
                        hint = "; if a cell has line breaks in quotation marks, set data.format to tab_quoted"
                    raise UserError(
                        f"{path}:{number}: expected {len(header)} columns as in line 1, got {len(row)}{hint}"
                    )
                yield Record(f"{path}:{number}", dict(zip(columns, row, strict=True)), request.settings)


def read_conll(address: str, request: Request) -> Iterator[Record]:
    """Read one word per line, its tag in the last column, a blank line after each sentence (Tjong Kim Sang 2003).

    Columns are separated by tabs or, in a line without tabs, by spaces. Lines that begin a document are skipped.
    """
    path = files.as_path(address, "path")
    words: list[str] = []
    tags: list[str] = []
    first, n_columns = 0, 0
    for number, line in enumerate([*lines(read_text(path, request.encoding)), ""], 1):  # a blank line ends a sentence
        if line.strip() and not line.startswith(DOCUMENT_START):
            columns = [cell.strip() for cell in line.split("\t" if "\t" in line else None)]
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


def aligned_lines(source: Path, target: Path, encodings: Sequence[str] = UTF_8) -> list[tuple[str, str]]:
    """Pair line i of one file with line i of the other, empty lines included; raise `UserError` for unequal lengths."""
    sources, targets = (lines(read_text(files.as_path(side, "path"), encodings)) for side in (source, target))
    if len(sources) != len(targets):
        raise UserError(
            f"{source} has {len(sources):,} lines and {target} has {len(targets):,} lines; line i of one file must be "
            "the other side of line i of the other file"
        )
    return list(zip(sources, targets, strict=True))


# Datasets


def splits_on_hub(address: str) -> list[str]:
    """Return the names of the splits of a dataset."""
    with _datasets(address) as library:
        return list(library.get_dataset_split_names(*_parsed(address)[0]))


def _parsed(address: str) -> tuple[list[str], str | None]:
    """Parse `hf:NAME:CONFIG#SPLIT` → ([NAME, CONFIG], SPLIT); configuration and split are optional."""
    name, _, split = address.removeprefix(HUB).partition("#")
    return [part for part in name.split(":", 1) if part], split or None


@contextmanager
def _datasets(address: str) -> Iterator[Any]:
    """Yield the library `datasets`; convert any error in the block to a `UserError` that names `address`."""
    with needs("a Hugging Face dataset", "data"):
        import datasets
    try:
        yield datasets
    except Exception as error:  # any error: no network, unknown name, a script that the library does not run
        reason = first_line(error)
        raise UserError(f"the dataset {address} cannot be read: {reason}; check the name and the network") from error


def read_dataset(address: str, request: Request) -> Iterator[Record]:
    """Yield the rows of one split of a dataset: of the split that the address names, else of `request.split`."""
    name, named = _parsed(address)
    split = named or request.split
    with _datasets(address) as library:
        rows: Iterable[Mapping[str, Any]] = library.load_dataset(*name, split=split)
    features = getattr(rows, "features", None)
    for number, row in enumerate(rows, 1):
        yield Record(f"row {number} of {address} ({split})", row, request.settings, features)
