"""Pairs as they stand somewhere: two aligned files, a table, jsonl, something built in, a Hugging Face dataset."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.data import builtin_pairs
from glassformer.errors import UserError
from glassformer.run_config import PairData

HUB = "hf:"


@dataclass(frozen=True)
class Pair:
    """A source and its target."""

    source: str
    target: str


@dataclass
class Dropped:
    """What reading left out, so that nothing is silent: how many, and where the first one stood."""

    n_empty: int = 0
    first_empty: str = ""
    n_repeated: int = 0
    """Training pairs that also stand in the validation pairs."""

    def empty(self, where: str) -> None:
        self.first_empty = self.first_empty or where
        self.n_empty += 1

    def sentences(self) -> list[str]:
        """One for each reason."""
        said, n = [], self.n_empty
        if n:
            are = "pair has an empty side and is" if n == 1 else "pairs have an empty side and are"
            said.append(f"{n:,} {are} left out (the first: {self.first_empty})")
        n = self.n_repeated
        if n:
            stand = "pair also stands" if n == 1 else "pairs also stand"
            are = "is" if n == 1 else "are"
            said.append(f"{n:,} training {stand} in the validation pairs and {are} left out")
        return said


def read(data: PairData, dropped: Dropped, split: str = "train") -> Iterator[Pair]:
    """The pairs of `path`, or of `source` and `target`; of a Hugging Face dataset that names none, those of a split."""
    if data.path is None:
        assert data.source is not None and data.target is not None  # checked before
        yield from _aligned(Path(data.source), Path(data.target), dropped)
    elif data.path.startswith(builtin_pairs.PREFIX):
        yield from (Pair(source, target) for source, target in builtin_pairs.pairs(data.path))
    elif data.path.startswith(HUB):
        yield from _of_hub(data, split, dropped)
    else:
        yield from _one_file(data, Path(data.path), dropped)


def aligned_lines(source: Path, target: Path) -> list[tuple[str, str]]:
    """Line i of one file and line i of the other, empty ones too; `UserError` when the files are not equally long."""
    sources, targets = lines(files.read_text(source)), lines(files.read_text(target))
    if len(sources) != len(targets):
        raise UserError(
            f"{source} has {len(sources):,} lines and {target} has {len(targets):,} lines: line i of one must be the "
            "other side of line i"
        )
    return list(zip(sources, targets, strict=True))


def lines(text: str) -> list[str]:
    r"""The lines of a text, which end at a line feed alone: other separators are part of the text.

    >>> lines("a\r\nb\u2028c\n")
    ['a', 'b\u2028c']
    """
    found = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    return found[:-1] if found[-1] == "" else found


def hub_splits(address: str) -> list[str]:
    """The names of a dataset's splits."""
    library = _datasets()
    try:
        return list(library.get_dataset_split_names(*_hub_address(address)[0]))
    except Exception as error:  # whatever the library raises: no network, no such name, a script that it refuses
        raise _unreadable(address, error) from error


def _aligned(source: Path, target: Path, dropped: Dropped) -> Iterator[Pair]:
    for number, (one, other) in enumerate(aligned_lines(source, target), 1):
        yield from _kept(one, other, f"line {number} of {source}", dropped)


def _kept(source: str, target: str, where: str, dropped: Dropped) -> Iterator[Pair]:
    if source.strip() and target.strip():
        yield Pair(source.strip(), target.strip())
    else:
        dropped.empty(where)


def _one_file(data: PairData, path: Path, dropped: Dropped) -> Iterator[Pair]:
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        for number, line in enumerate(lines(files.read_text(path)), 1):
            if line.strip():
                where = f"{path}:{number}"
                yield from _from_record(data, _record(line, where), where, dropped)
    elif suffix in (".tsv", ".csv"):
        yield from _from_table(data, path, suffix == ".tsv", dropped)
    else:
        raise UserError(
            f"{path} is none of .tsv, .csv and .jsonl: two text files are given as --data.source and --data.target"
        )


def _record(line: str, where: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{where} is not JSON: {error}; a jsonl file has one object a line") from error
    if not isinstance(record, dict):
        raise UserError(f"{where} is not an object with two fields")
    return record


def _from_record(data: PairData, record: Mapping[str, Any], where: str, dropped: Dropped) -> Iterator[Pair]:
    source, target = (_field(record, name, where) for name in (data.source_field, data.target_field))
    yield from _kept(source, target, where, dropped)


def _field(record: Mapping[str, Any], name: str, where: str) -> str:
    """A field of a record; `translation.de` is the field `de` of the field `translation`."""
    value: Any = record
    for key in name.split("."):
        if not isinstance(value, Mapping) or key not in value:
            there = ", ".join(map(str, value)) if isinstance(value, Mapping) else "no fields"
            raise UserError(f"{where} has no field {name!r}; it has {there} (data.source_field, data.target_field)")
        value = value[key]
    if not isinstance(value, str):
        raise UserError(f"{where}: the field {name!r} is no text but {value!r:.40}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        half = value[error.start]
        raise UserError(f"{where}: the field {name!r} holds half of a surrogate pair ({half!a}) alone") from error
    return value


def _from_table(data: PairData, path: Path, is_tsv: bool, dropped: Dropped) -> Iterator[Pair]:
    """Rows of a table with a header that names both columns; a tsv of two columns needs none."""
    rows = _tsv(path) if is_tsv else _csv(path)
    _, header = next(rows, (0, []))
    names = [data.source_field, data.target_field]
    if all(name in header for name in names):
        places = [header.index(name) for name in names]
    elif is_tsv and len(header) == 2:
        places = [0, 1]
        yield from _kept(header[0], header[1], f"{path}:1", dropped)
    else:
        raise UserError(
            f"{path} has the columns {', '.join(header) or 'none'}, and not {names[0]} and {names[1]} "
            "(data.source_field, data.target_field)"
        )
    for number, row in rows:
        if row and any(cell.strip() for cell in row):
            if len(row) != len(header):
                raise UserError(f"{path}:{number} has {len(row)} columns and the first line {len(header)}")
            yield from _kept(row[places[0]], row[places[1]], f"{path}:{number}", dropped)


def _tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and rows. Tab-separated text has no quoting: a quotation mark is a quotation mark."""
    return ((number, line.split("\t")) for number, line in enumerate(lines(files.read_text(path)), 1))


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows, and the number of the line on which each ends: a quoted cell may hold line breaks."""
    reader = csv.reader(io.StringIO(files.read_text(path), newline=""), strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num} is not CSV: {error}") from error


def _hub_address(address: str) -> tuple[list[str], str | None]:
    """`hf:NAME:CONFIG#SPLIT` → ([NAME, CONFIG], SPLIT); configuration and split may be left out."""
    name, _, split = address.removeprefix(HUB).partition("#")
    return [part for part in name.split(":", 1) if part], split or None


def _datasets() -> Any:
    try:
        import datasets  # type: ignore[import-not-found]
    except ImportError as error:
        raise UserError("pairs of a Hugging Face dataset need the extra: pip install 'glassformer[data]'") from error
    return datasets


def _of_hub(data: PairData, split: str, dropped: Dropped) -> Iterator[Pair]:
    library, address = _datasets(), str(data.path)
    name, named = _hub_address(address)
    try:
        rows: Iterable[Mapping[str, Any]] = library.load_dataset(*name, split=named or split)
    except Exception as error:  # whatever the library raises
        raise _unreadable(address, error) from error
    for number, row in enumerate(rows, 1):
        yield from _from_record(data, row, f"row {number} of {address} ({named or split})", dropped)


def _unreadable(address: str, error: Exception) -> UserError:
    said = str(error).splitlines() or [type(error).__name__]
    return UserError(f"the dataset {address} cannot be read: {said[0]}")
