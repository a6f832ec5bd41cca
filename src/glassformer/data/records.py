"""Records of a tsv, csv, jsonl or Parquet file or of a dataset, from which pairs and labelled texts are made.

A record has its place in the file, so that every error message can name it.

`held_out` selects the validation data, here and for texts (`corpus`), in units that are never divided: all copies of
a document, or all records with one key. The caller sorts the units by a hash of their contents, so the selection does
not depend on the order of the files.
"""

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from glassformer import files
from glassformer.config.run import LabelData, PairData
from glassformer.data.builtin import PREFIX
from glassformer.errors import UserError, first_line, nearest_name, needs

T = TypeVar("T")
Data = TypeVar("Data", PairData, LabelData)

HUB = "hf:"
PARQUET = ".parquet"
SUFFIXES = (".tsv", ".csv", ".jsonl", PARQUET)
FEW = 0.5
"""A note is printed if the held-out fraction is below this part of `valid_fraction`."""
VALIDATION = "validation"
"""Name of the split of a Hugging Face dataset that is used as validation data."""


@dataclass(frozen=True)
class Wanted:
    """The names of the fields to read, and of the settings with these names, for messages."""

    names: tuple[str, ...]
    settings: str
    may_lack_header: bool = True
    """True if the fields have their default names: a tsv of two columns then needs no header."""


@dataclass(frozen=True)
class Record:
    """The fields of one record and its place `where`; `features` describes them in a Hugging Face dataset."""

    where: str
    fields: Mapping[str, Any]
    settings: str
    features: Any = None

    def value(self, name: str) -> Any:
        """Return the value of a field; `translation.de` is the field `de` of the field `translation`.

        >>> Record("", {"translation": {"de": "Hund"}}, "").value("translation.de")
        'Hund'
        """
        value: Any = self.fields
        for key in [name] if name in self.fields else name.split("."):
            if not isinstance(value, Mapping) or key not in value:
                names = list(value) if isinstance(value, Mapping) else []
                near, has = nearest_name(key, names), ", ".join(map(repr, names[:8])) or "no fields"
                hint = f"; it has {has}" if near is None else f": did you mean {near!r}?"
                raise UserError(f"{self.where} has no field {name!r}{hint} (set {self.settings})")
            value = value[key]
        return value

    def text(self, name: str) -> str:
        """Return the text of a field; raise `UserError` if its value is not a valid text."""
        return self.as_text(self.value(name), f"the field {name!r}")

    def as_text(self, value: Any, name: str) -> str:
        """Return the value; raise `UserError` if it is not a text that can be encoded as UTF-8."""
        if not isinstance(value, str):
            raise UserError(f"{self.where}: {name} must be a text, got {value!r:.40}")
        try:
            value.encode()
        except UnicodeEncodeError as error:  # JSON escapes can contain lone surrogates
            half = value[error.start]
            raise UserError(f"{self.where}: {name} has a lone surrogate, {half!a}; remove it") from error
        return value


@dataclass
class Dropped:
    """Counts of skipped records, the place of the first one, and tables read without a header, for notes."""

    EMPTY: ClassVar[tuple[str, str]]  # wording for one record, and for several
    REPEATED: ClassVar[tuple[str, str]]

    n_empty: int = 0
    first_empty: str = ""
    n_repeated: int = 0
    """Training records that are also in the validation data."""
    headerless: list[str] = field(default_factory=list)
    """One sentence per table of two columns without a header."""

    def empty(self, where: str) -> None:
        self.first_empty = self.first_empty or where
        self.n_empty += 1

    def sentences(self) -> list[str]:
        """Return one sentence per reason."""
        said, are = [], ("is", "are")
        if n := self.n_empty:
            said.append(f"{n:,} {self.EMPTY[n > 1]} and {are[n > 1]} skipped (the first: {self.first_empty})")
        if n := self.n_repeated:
            said.append(f"{n:,} training {self.REPEATED[n > 1]} and {are[n > 1]} skipped")
        return [*said, *self.headerless]


def records(address: str, wanted: Wanted, split: str, dropped: Dropped) -> Iterator[Record]:
    """Yield the records of a file, or of a Hugging Face dataset (of `split`, if the address names no split)."""
    if address.startswith(HUB):
        yield from _of_hub(address, wanted, split)
        return
    path = files.as_path(address, "path")
    if is_parquet(address):
        yield from _of_parquet(path, wanted)
        return
    yield from _of_jsonl(path, wanted) if path.suffix.lower() == ".jsonl" else _of_table(path, wanted, dropped)


def is_parquet(address: str) -> bool:
    """Return True for the name of a Parquet file."""
    return not address.startswith((HUB, PREFIX)) and Path(address).suffix.lower() == PARQUET


def lines(text: str) -> list[str]:
    r"""Split a text into lines at line feeds only: other line separators are part of the text.

    >>> lines("a\r\nb\u2028c\n")
    ['a', 'b\u2028c']
    """
    found = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    return found[:-1] if found[-1] == "" else found


def held_out(
    weights: Sequence[int], fraction: float, *, training: Collection[int] = (), fits_only: bool = False
) -> list[int]:
    """Choose units for validation, so that units of every size are held out at about `fraction` of their weight.

    Units are grouped by weight: 1, 2-3, 4-7, … Groups are filled from the lightest to the heaviest, each up to
    `fraction` of its weight plus the (possibly negative) rest of the group before. A group takes units in their order,
    each one that brings its total nearer to that, so its rest is at most half of a unit. At the end, one more unit is
    taken if it brings the whole total nearer. Neither side is empty, and units in `training` are never chosen.

    With `fits_only`, a group takes only units that fit whole, so the total is at most `fraction`; nothing is added at
    the end, and nothing may be chosen.

    >>> held_out([40, 1, 60, 1, 60, 1, 1], 0.25)  # one of the four units 1, and 40 of 160
    [1, 0]
    >>> held_out([9, 8], 0.1), held_out([9, 8], 0.1, training=[1]), held_out([9, 8], 0.1, fits_only=True)
    ([1], [0], [])
    """
    groups: dict[int, list[int]] = {}
    for unit, weight in enumerate(weights):
        groups.setdefault(weight.bit_length(), []).append(unit)
    chosen: list[int] = []
    missing, limit = 0.0, 1 if fits_only else 2  # a unit below 2 × missing brings the total nearer
    for size in sorted(groups):
        missing += fraction * sum(weights[unit] for unit in groups[size])
        for unit in groups[size]:
            if unit not in training and weights[unit] <= limit * missing:
                chosen.append(unit)
                missing -= weights[unit]
    if fits_only:
        return chosen
    left = sorted(set(range(len(weights))).difference(chosen, training), key=lambda unit: weights[unit])
    may_add = len(left) > (not training)  # the last unit is for training
    if chosen and not left and not training:
        chosen.remove(min(chosen, key=lambda unit: weights[unit]))
    elif may_add and not chosen:
        chosen = left[:1]
    elif may_add:
        nearest = min(left, key=lambda unit: abs(weights[unit] - missing))
        chosen += [nearest] if abs(weights[nearest] - missing) < missing else []
    return chosen


def share_news(reached: float, wanted: float) -> list[str]:
    """Return a note if the held-out fraction, from 0 to 1, is below half of the wanted one.

    >>> share_news(0.09, 0.1)
    []
    """
    if reached >= FEW * wanted:
        return []
    return [
        f"only {reached:.2%} of the data could be held out for validation, less than data.valid_fraction "
        f"({wanted:.2%}); use more data, or set data.valid_path"
    ]


def held_out_keys(keys: Sequence[str], valid_fraction: float, training: Collection[str] = ()) -> set[str]:
    """Select the keys of the validation records; the result does not depend on the order of the records.

    Keys are sorted by their hash, and selected by their number of records (`held_out`): keys with few records and keys
    with many are both held out at about `valid_fraction`. Keys in `training` are never selected.

    >>> sorted(held_out_keys(["a", "b", "a", "c"], 0.25))
    ['c']
    """
    counts = Counter(keys)
    ordered = sorted(counts, key=_hash)
    fixed = {unit for unit, key in enumerate(ordered) if key in training}
    return {ordered[unit] for unit in held_out([counts[key] for key in ordered], valid_fraction, training=fixed)}


def digest_of(begin: str, sides: Iterable[Iterable[Iterable[str]]]) -> str:
    """Return the SHA-256 of `begin` and of the texts of every record of every side, in their order."""
    digest = hashlib.sha256(begin.encode())
    for records in sides:
        for text in (text for record in records for text in record):
            data = text.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        digest.update(b"|")
    return digest.hexdigest()


def split_records(
    records: Sequence[T],
    keys: Sequence[str],
    valid_fraction: float,
    training: Collection[str] = (),
) -> tuple[list[T], list[T]]:
    """Split into training and validation records by the key of each (`held_out_keys`), in their order.

    >>> split_records("badc", ["a", "b", "a", "c"], 0.25)
    (['b', 'a', 'd'], ['c'])
    """
    chosen = held_out_keys(keys, valid_fraction, training)
    sides: tuple[list[T], list[T]] = ([], [])
    for record, key in zip(records, keys, strict=True):
        sides[key in chosen].append(record)
    return sides


def read_sides(
    data: Data,
    given: Data | None,
    read: Callable[[Data, str], list[T]],
    divide: Callable[[list[T]], tuple[list[T], list[T]]],
) -> tuple[list[T], list[T], list[str]]:
    """Read training and validation records, and return them with a note if the held-out fraction is too small.

    `given` describes separate validation data. Without it, built-in records use their own parts, a dataset uses its
    split named validation, and `divide` splits all other data by a hash of each record (`split_records`).
    """
    path = data.path or ""
    if given is not None:
        return read(data, "train"), read(given, VALIDATION), []
    if path.startswith(PREFIX) and "#" not in path:
        train, valid = (read(replace(data, path=f"{path}#{part}"), "train") for part in ("train", "valid"))
        return train, valid, []
    if path.startswith(HUB) and "#" not in path and VALIDATION in hub_splits(path):
        return read(data, "train"), read(data, VALIDATION), []
    train, valid = divide(read(data, "train"))
    return train, valid, share_news(len(valid) / max(1, len(train) + len(valid)), data.valid_fraction)


def hub_splits(address: str) -> list[str]:
    """Return the names of the splits of a dataset."""
    with _datasets(address) as library:
        return list(library.get_dataset_split_names(*_hub_address(address)[0]))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _of_jsonl(path: Path, wanted: Wanted) -> Iterator[Record]:
    for number, line in enumerate(lines(files.read_text(path)), 1):
        if line.strip():
            where = f"{path}:{number}"
            yield Record(where, files.parse_json_line(line, where), wanted.settings)


def _of_parquet(path: Path, wanted: Wanted) -> Iterator[Record]:
    """Yield the rows of a Parquet file; one that `datasets` wrote may have class indices (`Record.features`)."""
    with needs("a Parquet file", "data"):
        from pyarrow import ArrowException, parquet
    try:
        with files.reading(path), parquet.ParquetFile(path) as file:
            features = _stored_features(file.schema_arrow)
            for number, row in enumerate((row for batch in file.iter_batches() for row in batch.to_pylist()), 1):
                yield Record(f"row {number} of {path}", row, wanted.settings, features)
    except ArrowException as error:
        raise UserError(f"{path} cannot be read as Parquet: {first_line(error)}") from error


def _stored_features(schema: Any) -> Any:
    """Return the `features` that the library `datasets` stored in the schema of a Parquet file; None without them."""
    if b"huggingface" not in (schema.metadata or {}):
        return None
    with needs("a Parquet file with features of a dataset", "data"):
        import datasets
    return datasets.Features.from_arrow_schema(schema)


def _of_table(path: Path, wanted: Wanted, dropped: Dropped) -> Iterator[Record]:
    """Yield the rows of a table with a header; a tsv of two columns may lack it if two fields are wanted."""
    is_tsv = path.suffix.lower() == ".tsv"
    rows = _tsv(path) if is_tsv else _csv(path)
    names = wanted.names
    _, header = next(rows, (0, []))
    if twice := [name for name in names if header.count(name) > 1]:
        raise UserError(f"{path} has {header.count(twice[0])} columns named {twice[0]!r}; name each column once")
    if any("\r" in cell for cell in header):
        raise UserError(f"{path} has carriage returns (CR) as line ends; convert them to line feeds (LF)")
    known = {name.casefold() for name in names}
    is_header = any(cell.strip().casefold() in known for cell in header)  # it names a column, in any case
    if all(name in header for name in names):
        places = [header.index(name) for name in names]
    elif is_tsv and len(header) == len(names) == 2 and wanted.may_lack_header and not is_header:
        places = [0, 1]
        dropped.headerless.append(
            f"{path} has no header with {names[0]} and {names[1]}; line 1 is read as data ({names[0]}, {names[1]})"
        )
        yield Record(f"{path}:1", dict(zip(names, header, strict=True)), wanted.settings)
    else:
        there = _column_names(header)
        raise UserError(f"{path}: expected the columns {' and '.join(names)}, got {there}; set {wanted.settings}")
    for number, row in rows:
        if row and any(cell.strip() for cell in row):
            if len(row) != len(header):
                raise UserError(f"{path}:{number}: expected {len(header)} columns as in line 1, got {len(row)}")
            cells = {name: row[place] for name, place in zip(names, places, strict=True)}
            yield Record(f"{path}:{number}", cells, wanted.settings)


def _column_names(names: Sequence[str]) -> str:
    """Format column names for a message: at most 12 names of 40 characters each."""
    shown = [name if len(name) <= 40 else f"{name[:39]}…" for name in names[:12]]
    return ", ".join([*shown, *(["…"] if len(names) > 12 else [])]) or "none"


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


def _hub_address(address: str) -> tuple[list[str], str | None]:
    """Parse `hf:NAME:CONFIG#SPLIT` → ([NAME, CONFIG], SPLIT); configuration and split are optional."""
    name, _, split = address.removeprefix(HUB).partition("#")
    return [part for part in name.split(":", 1) if part], split or None


@contextmanager
def _datasets(address: str) -> Iterator[Any]:
    """Yield the library `datasets`; convert its errors in the block, which reads `address`, into a `UserError`."""
    with needs("a Hugging Face dataset", "data"):
        import datasets
    try:
        yield datasets
    except Exception as error:  # any error: no network, unknown name, a script that the library does not run
        reason = first_line(error)
        raise UserError(f"the dataset {address} cannot be read: {reason}; check the name and the network") from error


def _of_hub(address: str, wanted: Wanted, split: str) -> Iterator[Record]:
    name, named = _hub_address(address)
    with _datasets(address) as library:
        rows: Iterable[Mapping[str, Any]] = library.load_dataset(*name, split=named or split)
    features = getattr(rows, "features", None)
    for number, row in enumerate(rows, 1):
        yield Record(f"row {number} of {address} ({named or split})", row, wanted.settings, features)
