"""Records as they stand in a tsv, csv or jsonl file or in a Hugging Face dataset: what pairs and labels are read from.

A record knows where it stands, so that every mistake in it is named with its place.

`filled` and `nearest` choose what is held out, here and of a text (`corpus`): of given units, each whole, a part whose
total weight is near a wanted one. A unit is all copies of a document, or all records with one key. Both see weights in
an order that the caller takes from hashes of the contents, so the choice does not depend on the order of the files.
"""

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from glassformer import files
from glassformer.config.run import NEWEST_READING, LabelData, PairData, Reading
from glassformer.data.builtin import PREFIX
from glassformer.errors import UserError, first_line, needs

T = TypeVar("T")
Data = TypeVar("Data", PairData, LabelData)

HUB = "hf:"
SUFFIXES = (".tsv", ".csv", ".jsonl")
FEW = 0.5
"""The held-out share that is reached is told when it is below this part of the share that was asked for."""
VALIDATION = "validation"
"""What the split of a Hugging Face dataset is called that a run validates on."""


@dataclass(frozen=True)
class Wanted:
    """The fields that are read, and the settings that name them, for messages."""

    names: tuple[str, ...]
    settings: str
    may_lack_header: bool = True
    """A tsv of two columns needs no header where nobody has named its columns."""


@dataclass(frozen=True)
class Record:
    """The fields of one record; `features` is what a Hugging Face dataset says of them."""

    where: str
    fields: Mapping[str, Any]
    settings: str
    features: Any = None

    def value(self, name: str) -> Any:
        """A field; `translation.de` is the field `de` of the field `translation`.

        >>> Record("", {"translation": {"de": "Hund"}}, "").value("translation.de")
        'Hund'
        """
        value: Any = self.fields
        for key in [name] if name in self.fields else name.split("."):
            if not isinstance(value, Mapping) or key not in value:
                there = ", ".join(map(str, value)) if isinstance(value, Mapping) else "no fields"
                raise UserError(f"{self.where} has no field {name!r}; it has {there} ({self.settings})")
            value = value[key]
        return value

    def text(self, name: str) -> str:
        """A field that must be a text."""
        return self.as_text(self.value(name), f"the field {name!r}")

    def as_text(self, value: Any, name: str) -> str:
        """The value, when it is a text that UTF-8 can hold."""
        if not isinstance(value, str):
            raise UserError(f"{self.where}: {name} is no text but {value!r:.40}")
        try:
            value.encode()
        except UnicodeEncodeError as error:  # JSON can escape what UTF-8 cannot hold
            half = value[error.start]
            raise UserError(f"{self.where}: {name} holds half of a surrogate pair ({half!a}) alone") from error
        return value


@dataclass
class Dropped:
    """What reading left out or guessed, so that nothing is silent: how many, and where the first one stood."""

    EMPTY: ClassVar[tuple[str, str]]  # what is said of one, and of several
    REPEATED: ClassVar[tuple[str, str]]

    n_empty: int = 0
    first_empty: str = ""
    n_repeated: int = 0
    """Training records that also stand in the validation data."""
    headerless: list[str] = field(default_factory=list)
    """Tables of two columns without a header."""

    def empty(self, where: str) -> None:
        self.first_empty = self.first_empty or where
        self.n_empty += 1

    def sentences(self) -> list[str]:
        """One for each reason."""
        said, n = [], self.n_empty
        if n:
            are = f"{self.EMPTY[0]} and is" if n == 1 else f"{self.EMPTY[1]} and are"
            said.append(f"{n:,} {are} left out (the first: {self.first_empty})")
        n = self.n_repeated
        if n:
            are = f"{self.REPEATED[0]} and is" if n == 1 else f"{self.REPEATED[1]} and are"
            said.append(f"{n:,} training {are} left out")
        return [*said, *self.headerless]


def records(address: str, wanted: Wanted, split: str, dropped: Dropped) -> Iterator[Record]:
    """The records of a `.tsv`, `.csv` or `.jsonl` file, or of a Hugging Face dataset, `split` where it names none."""
    if address.startswith(HUB):
        yield from _of_hub(address, wanted, split)
    elif Path(address).suffix.lower() == ".jsonl":
        yield from _of_jsonl(Path(address), wanted)
    else:
        yield from _of_table(Path(address), wanted, dropped)


def lines(text: str) -> list[str]:
    r"""The lines of a text, which end at a line feed alone: other separators are part of the text.

    >>> lines("a\r\nb\u2028c\n")
    ['a', 'b\u2028c']
    """
    found = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    return found[:-1] if found[-1] == "" else found


def filled(weights: Sequence[float], wanted: float) -> list[int]:
    """Fill `wanted` greedily: take each unit, in order, that fits into what is left, and skip the others.

    The total is at most `wanted`, and what is missing is less than the lightest unit that was not taken.

    >>> filled([7, 3, 9, 1], 5)
    [1, 3]
    """
    chosen = []
    for unit, weight in enumerate(weights):
        if weight <= wanted:
            chosen.append(unit)
            wanted -= weight
    return chosen


def nearest(weights: Sequence[float], chosen: Sequence[int], wanted: float, *, may_take_all: bool = False) -> list[int]:
    """Add the lightest unit that is left where that brings the total nearer to `wanted`, or where none is chosen.

    After `filled`, the total then differs from `wanted` by at most half of that unit, unless it is the only one
    chosen. The last unit left is never added, unless `may_take_all`: training needs one.

    >>> nearest([12, 12, 11], [], 10), nearest([7, 3, 3], [1], 5), nearest([7, 3], [1], 9)
    ([2], [1, 2], [1])
    """
    left = sorted(set(range(len(weights))).difference(chosen), key=lambda unit: weights[unit])
    if len(left) <= (not may_take_all):
        return list(chosen)
    missing = wanted - sum(weights[unit] for unit in chosen)
    return [*chosen, left[0]] if not chosen or weights[left[0]] - missing < missing else list(chosen)


def share_news(reached: float, wanted: float) -> list[str]:
    """Return a sentence where a held-out share, from 0 to 1, is below half of the wanted one.

    >>> share_news(0.09, 0.1)
    []
    """
    if reached >= FEW * wanted:
        return []
    return [
        f"only {reached:.2%} of the data could be held out for validation, and data.valid_fraction asks for "
        f"{wanted:.2%}: give more data, or validation data of its own (data.valid_path)"
    ]


def held_out_keys(
    keys: Sequence[str], valid_fraction: float, reading: Reading = NEWEST_READING, training: Collection[str] = ()
) -> set[str]:
    """The keys whose records validate; all records of one key stand on one side, whatever the order of the files.

    Keys are taken in the order of their hash: each one whose records fit into what is left of the share, then perhaps
    the rarest one left (`nearest`); with reading 1, only those before the first that does not fit. Keys of
    `training` never validate.

    >>> sorted(held_out_keys(["a", "b", "a", "c"], 0.25))
    ['c']
    """
    counts = Counter(key for key in keys if key not in training)
    ordered = sorted(counts, key=_hash)
    if reading >= 2:
        weights, wanted = [counts[key] for key in ordered], valid_fraction * len(keys)
        chosen = nearest(weights, filled(weights, wanted), wanted, may_take_all=bool(training))
        return {ordered[unit] for unit in chosen}
    first: set[str] = set()
    room = valid_fraction * counts.total()
    for key in ordered:
        if counts[key] > room:
            break
        first.add(key)
        room -= counts[key]
    if not first and len(counts) > 1:  # few records: the fewest that can be
        first.add(min(counts, key=lambda key: (counts[key], _hash(key))))
    return first


def digest_of(begin: str, sides: Iterable[Iterable[Iterable[str]]]) -> str:
    """SHA-256 of `begin` and of the texts of every record of every side, in their order."""
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
    reading: Reading = NEWEST_READING,
    training: Collection[str] = (),
) -> tuple[list[T], list[T]]:
    """Training and validation records by the key of each (`held_out_keys`), in their order.

    >>> split_records("badc", ["a", "b", "a", "c"], 0.25)
    (['b', 'a', 'd'], ['c'])
    """
    chosen = held_out_keys(keys, valid_fraction, reading, training)
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
    """Training and validation records, and a sentence where a held-out share is not reached.

    `given` says where validation data of its own stands. Without it built-in records have their parts, and so has a
    dataset with a split named validation; all others are divided.
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
    """The names of a dataset's splits."""
    library = _datasets()
    try:
        return list(library.get_dataset_split_names(*_hub_address(address)[0]))
    except Exception as error:  # whatever the library raises: no network, no such name, a script that it refuses
        raise _unreadable(address, error) from error


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _of_jsonl(path: Path, wanted: Wanted) -> Iterator[Record]:
    for number, line in enumerate(lines(files.read_text(path)), 1):
        if line.strip():
            where = f"{path}:{number}"
            try:
                record = files.parse_json(line)
            except ValueError as error:
                raise UserError(f"{where} is not JSON: {error}; a jsonl file has one object a line") from error
            if not isinstance(record, dict):
                raise UserError(f"{where} is not an object with fields")
            yield Record(where, record, wanted.settings)


def _of_table(path: Path, wanted: Wanted, dropped: Dropped) -> Iterator[Record]:
    """Rows of a table whose header names the fields; a tsv of two columns needs none where two are wanted."""
    is_tsv = path.suffix.lower() == ".tsv"
    rows = _tsv(path) if is_tsv else _csv(path)
    names = wanted.names
    _, header = next(rows, (0, []))
    if twice := [name for name in names if header.count(name) > 1]:
        raise UserError(f"{path} has {header.count(twice[0])} columns {twice[0]!r}: name each column once")
    if any("\r" in cell for cell in header):
        raise UserError(f"{path} ends its lines with carriage returns alone: convert it to line feeds")
    known = {name.casefold() for name in names}
    is_header = any(cell.strip().casefold() in known for cell in header)  # it names a column, however it is written
    if all(name in header for name in names):
        places = [header.index(name) for name in names]
    elif is_tsv and len(header) == len(names) == 2 and wanted.may_lack_header and not is_header:
        places = [0, 1]
        dropped.headerless.append(
            f"{path} has no header with {names[0]} and {names[1]}: line 1 is read as a {names[0]} and its {names[1]}"
        )
        yield Record(f"{path}:1", dict(zip(names, header, strict=True)), wanted.settings)
    else:
        raise UserError(
            f"{path} has the columns {_column_names(header)}, and not {' and '.join(names)} ({wanted.settings})"
        )
    for number, row in rows:
        if row and any(cell.strip() for cell in row):
            if len(row) != len(header):
                raise UserError(f"{path}:{number} has {len(row)} columns and the first line {len(header)}")
            cells = {name: row[place] for name, place in zip(names, places, strict=True)}
            yield Record(f"{path}:{number}", cells, wanted.settings)


def _column_names(names: Sequence[str]) -> str:
    """A list of columns that a message can hold."""
    shown = [name if len(name) <= 40 else f"{name[:39]}…" for name in names[:12]]
    return ", ".join([*shown, *(["…"] if len(names) > 12 else [])]) or "none"


def _tsv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and rows. Tab-separated text has no quoting: a quotation mark is a quotation mark."""
    return ((number, line.split("\t")) for number, line in enumerate(lines(files.read_text(path)), 1))


def _csv(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows, and the number of the line on which each ends: a quoted cell may hold line breaks."""
    csv.field_size_limit(2**31 - 1)  # a cell may be a whole document
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
    with needs("a Hugging Face dataset", "data"):
        import datasets
    return datasets


def _of_hub(address: str, wanted: Wanted, split: str) -> Iterator[Record]:
    library, (name, named) = _datasets(), _hub_address(address)
    try:
        rows: Iterable[Mapping[str, Any]] = library.load_dataset(*name, split=named or split)
    except Exception as error:  # whatever the library raises
        raise _unreadable(address, error) from error
    features = getattr(rows, "features", None)
    for number, row in enumerate(rows, 1):
        yield Record(f"row {number} of {address} ({named or split})", row, wanted.settings, features)


def _unreadable(address: str, error: Exception) -> UserError:
    return UserError(f"the dataset {address} cannot be read: {first_line(error)}")
