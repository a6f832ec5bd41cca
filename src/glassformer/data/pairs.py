"""Pairs of a source and a target: where they come from, what is dropped, and which are held out.

Sources: two aligned text files; one `.tsv`, `.csv` or `.jsonl` file; `builtin:NAME` (`builtin_pairs`), of which
`builtin:NAME#train`, `#valid` or `#test` is one part; `hf:NAME` or `hf:NAME:CONFIG`, a Hugging Face dataset (extra:
data), of which `hf:NAME#SPLIT` is one split. A pair with an empty side is dropped and counted; nothing else is. Pairs
are held in memory as texts, which serves some millions of them.

The split, where no validation pairs are given: built-in pairs have one of their own, and so has a dataset with a
split named validation; else as many pairs as come nearest to `valid_fraction` of all validate, chosen by a hash of
their source (`records.held_out_keys`). All targets of one source then stand on one side, whatever the order of the
files.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from glassformer import files
from glassformer.config.run import NEWEST_READING, PairData, Reading
from glassformer.data import builtin_pairs, records
from glassformer.data.builtin import PREFIX
from glassformer.data.records import HUB, SUFFIXES, VALIDATION, Wanted, digest_of, lines, read_sides, split_records
from glassformer.errors import UserError


@dataclass(frozen=True)
class Pair:
    """A source and its target."""

    source: str
    target: str


class DroppedPairs(records.Dropped):
    """Pairs that reading left out."""

    EMPTY: ClassVar = ("pair has an empty side", "pairs have an empty side")
    REPEATED: ClassVar = ("pair also stands in the validation pairs", "pairs also stand in the validation pairs")


def read_pair_files(data: PairData, dropped: DroppedPairs, split: str = "train") -> Iterator[Pair]:
    """The pairs of `path`, or of `source` and `target`; of a Hugging Face dataset that names none, those of a split."""
    if data.path is None:
        assert data.source is not None and data.target is not None  # checked before
        for number, sides in enumerate(aligned_lines(Path(data.source), Path(data.target)), 1):
            yield from _kept(*sides, f"line {number} of {data.source}", dropped)
    elif data.path.startswith(PREFIX):
        yield from (Pair(source, target) for source, target in builtin_pairs.pairs(data.path))
    elif data.path.startswith(HUB) or Path(data.path).suffix.lower() in SUFFIXES:
        wanted = Wanted((data.source_field, data.target_field), "data.source_field, data.target_field")
        for record in records.records(data.path, wanted, split, dropped):
            source, target = (record.text(name) for name in wanted.names)
            yield from _kept(source, target, record.where, dropped)
    else:
        raise UserError(
            f"{data.path} is none of .tsv, .csv and .jsonl: two text files are given as --data.source and --data.target"
        )


def aligned_lines(source: Path, target: Path) -> list[tuple[str, str]]:
    """Line i of one file and line i of the other, empty ones too; `UserError` when the files are not equally long."""
    sources, targets = lines(files.read_text(source)), lines(files.read_text(target))
    if len(sources) != len(targets):
        raise UserError(
            f"{source} has {len(sources):,} lines and {target} has {len(targets):,} lines: line i of one must be the "
            "other side of line i"
        )
    return list(zip(sources, targets, strict=True))


def _kept(source: str, target: str, where: str, dropped: DroppedPairs) -> Iterator[Pair]:
    if source.strip() and target.strip():
        yield Pair(source.strip(), target.strip())
    else:
        dropped.empty(where)


class PairCorpus:
    """The pairs of a run and their split. Nothing is read until it is asked for."""

    def __init__(self, data: PairData) -> None:
        self.data = data
        self.dropped = DroppedPairs()
        self.name = data.path or f"{data.source or 'no source'} and {data.target or 'no target'}"
        _check_sides(data)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the pairs of both sides and of their order: equal digests, equal training."""
        sides = ([(pair.source, pair.target) for pair in pairs] for pairs in self.split)
        return digest_of(f"pairs {self.data.reading}", sides)

    @cached_property
    def split(self) -> tuple[list[Pair], list[Pair]]:
        """Training and validation pairs; `UserError` when a side is empty."""
        data, given = self.data, None
        if data.valid_path is not None or data.valid_source is not None:
            given = replace(data, path=data.valid_path, source=data.valid_source, target=data.valid_target)
        train, valid, self._share_news = read_sides(
            data,
            given,
            lambda of, split: list(read_pair_files(of, self.dropped, split)),
            lambda pairs: split_pairs(pairs, data.valid_fraction, data.reading),
        )
        held = set(valid)
        kept = [pair for pair in train if pair not in held]
        self.dropped.n_repeated = len(train) - len(kept)
        for side, pairs in (("training", kept), ("validation", valid)):
            if not pairs:
                raise UserError(f"{self.name} leaves no {side} pair: give more pairs, or validation pairs of their own")
        return kept, valid

    def news(self) -> list[str]:
        """Read the pairs, and return in sentences what was left out, and a held-out share that is not reached."""
        _ = self.split
        return [*self.dropped.sentences(), *self._share_news]


def read_pairs(data: PairData, dropped: DroppedPairs | None = None) -> list[Pair]:
    """All pairs of `path`, or of `source` and `target`, as they are, unsplit; of a dataset its validation split.

    Raises `UserError` for a file that cannot be read, sides of unequal length, and columns that are not there.
    """
    _check_sides(data)
    pairs = list(read_pair_files(data, DroppedPairs() if dropped is None else dropped, VALIDATION))
    if not pairs:
        raise UserError(f"{data.path or data.source} holds no pair with both sides")
    return pairs


def split_pairs(
    pairs: Sequence[Pair], valid_fraction: float, reading: Reading = NEWEST_READING
) -> tuple[list[Pair], list[Pair]]:
    """Training and validation pairs, in their order; equal sources stand on one side.

    >>> train, valid = split_pairs([Pair("a", "1"), Pair("b", "2"), Pair("a", "3"), Pair("c", "4")], 0.25)
    >>> [pair.target for pair in train], [pair.target for pair in valid]
    (['1', '2', '3'], ['4'])
    """
    return split_records(pairs, [pair.source for pair in pairs], valid_fraction, reading)


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
        return "\n".join([*lines, *(f"note        {line}" for line in self.news)])


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
