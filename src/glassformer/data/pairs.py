"""Pairs of a source and a target: where they come from, what is dropped, and which are held out.

Sources: two aligned text files; one `.tsv`, `.csv` or `.jsonl` file; `builtin:NAME` (`builtin_pairs`), of which
`builtin:NAME#train`, `#valid` or `#test` is one part; `hf:NAME` or `hf:NAME:CONFIG`, a Hugging Face dataset (extra:
data). A pair with an empty side is dropped and counted; nothing else is. Pairs are held in memory as texts, which
serves some millions of them.

The split, where no validation pairs are given: pairs are ordered by a hash of their source, and the first ones, up to
`valid_fraction` of all, validate. All targets of one source stand on one side, whatever the order of the files.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.data import builtin_pairs
from glassformer.errors import UserError
from glassformer.run_config import PairData

READING_VERSION = 1  # changes when the same files would give other pairs or another split
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


class PairCorpus:
    """The pairs of a run and their split. Nothing is read until it is asked for."""

    def __init__(self, data: PairData) -> None:
        self.data = data
        self.dropped = Dropped()
        self.name = data.path or f"{_named(data.source, 'source')} and {_named(data.target, 'target')}"
        _check_sides(data)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the pairs of both sides and of their order: equal digests, equal training."""
        digest = hashlib.sha256(f"pairs {READING_VERSION}".encode())
        for pairs in self.split:
            for pair in pairs:
                for text in (pair.source, pair.target):
                    data = text.encode()
                    digest.update(len(data).to_bytes(8, "little") + data)
            digest.update(b"|")
        return digest.hexdigest()

    @cached_property
    def split(self) -> tuple[list[Pair], list[Pair]]:
        """Training and validation pairs; `UserError` when a side is empty."""
        data = self.data
        if data.path is not None and data.valid_path is None and data.path.startswith(builtin_pairs.PREFIX):
            train, valid = (list(_builtin(f"{data.path}#{part}")) for part in ("train", "valid"))
        elif data.valid_path is not None or data.valid_source is not None:
            train = list(_read(data, self.dropped))
            valid = list(_read(_of_validation(data), self.dropped))
        elif data.path is not None and data.path.startswith(HUB) and "validation" in _hub_splits(data.path):
            train = list(_hub_pairs(data, data.path, "train", self.dropped))
            valid = list(_hub_pairs(data, data.path, "validation", self.dropped))
        else:
            train, valid = held_out(list(_read(data, self.dropped)), data.valid_fraction)
        held = set(valid)
        kept = [pair for pair in train if pair not in held]
        self.dropped.n_repeated = len(train) - len(kept)
        for side, pairs in (("training", kept), ("validation", valid)):
            if not pairs:
                raise UserError(f"{self.name} leaves no {side} pair: give more pairs, or validation pairs of their own")
        return kept, valid

    def news(self) -> list[str]:
        """Reads the pairs; what was left out, in sentences."""
        _, dropped = self.split, self.dropped
        said = []
        if dropped.n_empty:
            said.append(
                f"{dropped.n_empty:,} pairs have an empty side and are left out (the first: {dropped.first_empty})"
            )
        if dropped.n_repeated:
            said.append(f"{dropped.n_repeated:,} training pairs also stand in the validation pairs and are left out")
        return said


def read_pairs(data: PairData, dropped: Dropped | None = None) -> list[Pair]:
    """All pairs of `path`, or of `source` and `target`, as they are, unsplit.

    Raises `UserError` for a file that cannot be read, sides of unequal length, and columns that are not there.
    """
    _check_sides(data)
    pairs = list(_read(data, dropped or Dropped()))
    if not pairs:
        raise UserError(f"{data.path or data.source} holds no pair with both sides")
    return pairs


def held_out(pairs: Sequence[Pair], valid_fraction: float) -> tuple[list[Pair], list[Pair]]:
    """Training and validation pairs, in their order; equal sources stand on one side.

    >>> train, valid = held_out([Pair("a", "1"), Pair("b", "2"), Pair("a", "3"), Pair("c", "4")], 0.25)
    >>> [pair.target for pair in train], [pair.target for pair in valid]
    (['1', '2', '3'], ['4'])
    """
    counts: dict[str, int] = {}
    for pair in pairs:
        counts[pair.source] = counts.get(pair.source, 0) + 1
    chosen: set[str] = set()
    room = valid_fraction * len(pairs)
    for source in sorted(counts, key=lambda text: hashlib.sha256(text.encode()).digest()):
        if counts[source] > room:
            break
        chosen.add(source)
        room -= counts[source]
    if not chosen and len(counts) > 1:  # few pairs: the fewest that can be
        chosen.add(min(counts, key=lambda text: (counts[text], hashlib.sha256(text.encode()).digest())))
    train = [pair for pair in pairs if pair.source not in chosen]
    return train, [pair for pair in pairs if pair.source in chosen]


def _named(path: str | None, side: str) -> str:
    return path if path is not None else f"no {side}"


def _check_sides(data: PairData) -> None:
    if data.path is None and data.source is None and data.target is None:
        raise UserError("the run names no pairs: give --data.source FILE and --data.target FILE, or --data.path FILE")
    if data.path is not None and (data.source is not None or data.target is not None):
        raise UserError("data.path holds both sides: give it alone, or data.source and data.target without it")
    for one, other in (("source", "target"), ("valid_source", "valid_target")):
        for given, missing in ((one, other), (other, one)):
            if getattr(data, given) is not None and getattr(data, missing) is None:
                flag = missing.replace("_", "-")
                raise UserError(
                    f"the {missing.replace('valid_', 'validation ')} side is missing: give --data.{flag} FILE"
                )
    if data.valid_path is not None and data.valid_source is not None:
        raise UserError("data.valid_path holds both sides: leave out data.valid_source and data.valid_target")


def _of_validation(data: PairData) -> PairData:
    return replace(data, path=data.valid_path, source=data.valid_source, target=data.valid_target)


def _read(data: PairData, dropped: Dropped) -> Iterator[Pair]:
    if data.path is None:
        assert data.source is not None and data.target is not None  # checked before
        yield from _aligned(Path(data.source), Path(data.target), dropped)
    elif data.path.startswith(builtin_pairs.PREFIX):
        yield from _builtin(data.path)
    elif data.path.startswith(HUB):
        yield from _hub_pairs(data, data.path, "train", dropped)
    else:
        yield from _one_file(data, Path(data.path), dropped)


def _builtin(address: str) -> Iterator[Pair]:
    return (Pair(source, target) for source, target in builtin_pairs.pairs(address))


def _lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, which end at a line feed alone: other separators are part of the text."""
    lines = files.read_text(path).removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _aligned(source: Path, target: Path, dropped: Dropped) -> Iterator[Pair]:
    sources, targets = _lines(source), _lines(target)
    if len(sources) != len(targets):
        raise UserError(
            f"{source} has {len(sources):,} lines and {target} has {len(targets):,} lines: line i of one must be the "
            "other side of line i"
        )
    for number, (one, other) in enumerate(zip(sources, targets, strict=True), 1):
        yield from _kept(one, other, f"line {number} of {source}", dropped)


def _kept(source: str, target: str, where: str, dropped: Dropped) -> Iterator[Pair]:
    if source.strip() and target.strip():
        yield Pair(source.strip(), target.strip())
    else:
        dropped.empty(where)


def _one_file(data: PairData, path: Path, dropped: Dropped) -> Iterator[Pair]:
    suffix = path.suffix.lower()
    if suffix == ".jsonl":
        for number, line in enumerate(_lines(path), 1):
            if line.strip():
                where = f"{path}:{number}"
                yield from _from_record(data, _record(line, where), where, dropped)
    elif suffix in (".tsv", ".csv"):
        yield from _from_table(data, path, "\t" if suffix == ".tsv" else ",", dropped)
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
        raise UserError(f"{where}: the field {name!r} is no text but {json.dumps(value)[:40]}")
    return value


def _from_table(data: PairData, path: Path, delimiter: str, dropped: Dropped) -> Iterator[Pair]:
    """Rows of a table with a header that names both columns; a tsv of two columns needs none."""
    if delimiter == "\t":  # tab-separated text has no quoting: a quotation mark is a quotation mark
        rows: Iterable[list[str]] = (line.split("\t") for line in _lines(path))
    else:
        rows = csv.reader(io.StringIO("\n".join(_lines(path)) + "\n", newline=""))
    numbered = iter(enumerate(rows, 1))
    _, header = next(numbered, (0, []))
    names = [data.source_field, data.target_field]
    if all(name in header for name in names):
        places = [header.index(name) for name in names]
    elif delimiter == "\t" and len(header) == 2:
        places = [0, 1]
        yield from _kept(header[0], header[1], f"{path}:1", dropped)
    else:
        raise UserError(
            f"{path} has the columns {', '.join(header) or 'none'}, and not {names[0]} and {names[1]} "
            "(data.source_field, data.target_field)"
        )
    for number, row in numbered:
        if row and any(cell.strip() for cell in row):
            if len(row) != len(header):
                raise UserError(f"{path}:{number} has {len(row)} columns and the first line {len(header)}")
            yield from _kept(row[places[0]], row[places[1]], f"{path}:{number}", dropped)


def _hub_address(address: str) -> list[str]:
    """`hf:NAME:CONFIG` → [NAME, CONFIG]; a local folder is a name too."""
    return [part for part in address.removeprefix(HUB).split(":", 1) if part]


def _datasets() -> Any:
    try:
        import datasets  # type: ignore[import-not-found]
    except ImportError as error:
        raise UserError("pairs of a Hugging Face dataset need the extra: pip install 'glassformer[data]'") from error
    return datasets


def _hub_splits(address: str) -> list[str]:
    try:
        return list(_datasets().get_dataset_split_names(*_hub_address(address)))
    except UserError:
        raise
    except Exception as error:  # whatever the library raises: no network, no such name, a script that it refuses
        raise UserError(f"the dataset {address} cannot be read: {str(error).splitlines()[0]}") from error


def _hub_pairs(data: PairData, address: str, split: str, dropped: Dropped) -> Iterator[Pair]:
    library = _datasets()
    try:
        rows = library.load_dataset(*_hub_address(address), split=split)
    except Exception as error:
        raise UserError(f"the dataset {address} cannot be read: {str(error).splitlines()[0]}") from error
    for number, row in enumerate(rows, 1):
        yield from _from_record(data, row, f"row {number} of {address} ({split})", dropped)


@dataclass(frozen=True)
class PairReport:
    """What there is of pairs; lengths in characters."""

    n_train: int
    n_valid: int
    n_distinct_sources: int
    source_characters: tuple[int, int, int]
    """The median, the 99th percentile and the longest of a source."""
    target_characters: tuple[int, int, int]
    n_repeats: int
    """Training pairs that stand there more than once."""
    news: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"pairs       {self.n_train:,} for training, {self.n_valid:,} for validation",
            f"sources     {self.n_distinct_sources:,} distinct; {_lengths(self.source_characters)}",
            f"targets     {_lengths(self.target_characters)}",
            f"repeats     {self.n_repeats:,} training pairs stand there more than once",
        ]
        return "\n".join([*lines, *(f"left out    {line}" for line in self.news)])


def pair_report(corpus: PairCorpus) -> PairReport:
    """Counts and lengths of a corpus of pairs."""
    train, valid = corpus.split
    everything = [*train, *valid]
    return PairReport(
        n_train=len(train),
        n_valid=len(valid),
        n_distinct_sources=len({pair.source for pair in everything}),
        source_characters=_percentiles([len(pair.source) for pair in everything]),
        target_characters=_percentiles([len(pair.target) for pair in everything]),
        n_repeats=len(train) - len(set(train)),
        news=tuple(corpus.news()),
    )


def _percentiles(lengths: list[int]) -> tuple[int, int, int]:
    ordered = sorted(lengths)
    return ordered[len(ordered) // 2], ordered[int(0.99 * (len(ordered) - 1))], ordered[-1]


def _lengths(of: tuple[int, int, int]) -> str:
    return f"{of[0]:,} characters in the middle, {of[1]:,} at the 99th percentile, {of[2]:,} at most"
