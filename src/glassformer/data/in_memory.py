"""Data in memory as records: texts, pairs, texts with labels, dictionaries, a DataFrame or a `datasets.Dataset`.

Neither pandas nor `datasets` is imported: a DataFrame is recognised by its attributes. Each record becomes a line of
JSON. While records are in use, their address is `memory:N` (`address_of`). A run writes them to a jsonl file.
"""

import itertools
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from glassformer.common import files
from glassformer.common.errors import UserError, shown
from glassformer.config.run import DataConfig
from glassformer.data.records import Record, Request, present

PREFIX = "memory:"
PARTS = ("first", "second")
"""Names of the two items of a tuple, until the kind of the data is recognised."""

Rows = list[dict[str, Any]]
Given: TypeAlias = str | Path | Iterable[Any] | None
"""A path, or data in memory."""

_LINES: dict[str, Sequence[str]] = {}
"""The records that are in use, each as a line of JSON. The key is their address."""
_NUMBERS = itertools.count(1)


def rows_of(data: Any) -> Rows:
    """Return the records of data in memory as dictionaries; a text becomes a record with the field `text`.

    >>> rows_of(["one", "two"])
    [{'text': 'one'}, {'text': 'two'}]
    >>> rows_of([("a dog", "ein Hund")])
    [{'first': 'a dog', 'second': 'ein Hund'}]
    """
    if hasattr(data, "columns") and callable(getattr(data, "to_dict", None)):  # a DataFrame
        columns = [str(name) for name in data.columns]
        if twice := next((name for name in columns if columns.count(name) > 1), None):
            raise UserError(
                f"the data has {columns.count(twice)} columns named {shown(repr(twice))}: rename or remove all but one"
            )
        return [_native(row) for row in data.to_dict("records")]
    if isinstance(data, Mapping):
        parts = ", ".join(map(str, islice(data, 3)))
        raise UserError(f"got a dictionary with {parts}: give one of its values, or a list of records")
    if not isinstance(data, Iterable) or isinstance(data, (str, bytes)):
        raise UserError(
            f"expected a recipe, a path, a Run, or data (a list, a DataFrame or a Dataset), got {type(data).__name__}"
        )
    features = getattr(data, "features", None)
    rows = [_row(item, number) for number, item in enumerate(data, 1)]
    if isinstance(features, Mapping):  # a Dataset: indices of classes become names
        names = {name: feature.names for name, feature in features.items() if getattr(feature, "names", None)}
        for row in rows:
            row.update({name: names[name][row[name]] for name in names if isinstance(row.get(name), int)})
    if not rows:
        raise UserError("the data is empty: give at least a few records")
    return rows


def _row(item: object, number: int) -> dict[str, Any]:
    if present(item) is None:
        return {"text": None}
    if isinstance(item, str):
        if number == 1 and len(item) < 256 and "\n" not in item and files.exists(Path(item)):
            raise UserError(f"a list has texts, and its first item {item!r} is a file: give a folder or a pattern")
        return {"text": item}
    item = _native(item)
    if isinstance(item, dict):
        return item
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return dict(zip(PARTS, item, strict=True))
    raise UserError(f"record {number} of the data must be a text, a pair or a dictionary, got {item!r:.60}")


def _native(value: Any) -> Any:
    """Convert the arrays and tuples in a value to lists, and the keys of its dictionaries to texts.

    >>> _native({0: [{"role": "user"}], "n": (1, 2)})
    {'0': [{'role': 'user'}], 'n': [1, 2]}
    """
    if isinstance(value, Mapping):
        return {str(key): _native(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [_native(item) for item in value] if isinstance(value, (list, tuple)) else value


def path_or_rows(given: Given) -> str | Path | Rows | None:
    """Return a path unchanged, and data in memory as a list of records, which can be read several times."""
    if given is None or isinstance(given, (str, os.PathLike)) or not isinstance(given, Iterable):
        return given
    return rows_of(given)


@contextmanager
def address_of(lines: Sequence[str]) -> Iterator[str]:
    """Yield an address at which the records `lines` can be read inside the block."""
    address = f"{PREFIX}{next(_NUMBERS)}"
    _LINES[address] = lines
    try:
        yield address
    finally:
        del _LINES[address]


def read(address: str, request: Request) -> Iterator[Record]:
    """Yield the records of data in memory."""
    if address not in _LINES:
        raise UserError(f"{address}: data in memory is given in Python, as a list, a DataFrame or a Dataset")
    for number, line in enumerate(_LINES[address], 1):
        where = f"record {number} of the data"
        try:
            fields = files.parse_json(line)
        except ValueError as error:
            raise UserError(f"{where} cannot be stored as JSON: {error}") from error
        yield Record(where, fields, request.settings)


def name_of(address: str) -> str:
    """Return the name of an address in messages."""
    return "the data" if address.startswith(PREFIX) else address


@contextmanager
def place_of(given: Given, data: DataConfig) -> Iterator[str | Path | None]:
    """Yield a path unchanged, and data in memory as the address of records with the fields that `data` names.

    Tuples are (source, target) or (text, label). Raises `UserError` if every record lacks one of the fields.
    """
    source, names = path_or_rows(given), fields_of(data)
    if not isinstance(source, list):
        yield source
        return
    rows = [_named(row, names) for row in source]
    if data.may_lack_columns:
        names = [*dict.fromkeys(name for row in rows for name in row if name in names)] or names[:1]
    absent = [[name for name in names if row.keys().isdisjoint({name, name.partition(".")[0]})] for row in rows]
    if all(absent):  # a field that some records have counts as missing in the others
        has, reads = ", ".join(shown(repr(name)) for name in islice(rows[0], 8)), " and ".join(map(repr, names))
        raise UserError(f"record 1 of the data has no {absent[0][0]!r}: this model reads {reads}, got {has}")
    kept = {*names, *(name.partition(".")[0] for name in names), *(data.beside or ())}
    if data.beside is None:
        kept = {name for row in rows for name in row}
    with address_of(json_lines(rows, kept, {})) as address:
        yield address


def _named(row: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a record of a text or of a tuple with `names` as the names of its fields; another record unchanged."""
    return dict(zip(names, row.values(), strict=False)) if tuple(row) in (("text",), PARTS) else row


def fields_of(data: DataConfig) -> list[str]:
    """Return the names of the fields that are read from a record."""
    return [name for name in (getattr(data, setting) for setting in data.columns) if name is not None]


def json_lines(rows: Rows, kept: Collection[str], new_names: Mapping[str, str]) -> list[str]:
    """Return each record as JSON: the fields in `kept` under their new names, with null for missing values."""
    named = ({new_names.get(name, name): present(row[name]) for name in kept if name in row} for row in rows)
    return [json.dumps(row, ensure_ascii=False, default=_plain) for row in named]


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise UserError(f"the data has a value of type {type(value).__name__}: expected texts, numbers or lists of them")
