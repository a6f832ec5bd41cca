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

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from glassformer.config.run import NEWEST_READING, PairData, Reading
from glassformer.data import builtin_pairs
from glassformer.data.pair_files import DroppedPairs, Pair, read_pair_files
from glassformer.data.records import HUB, digest_of, hub_splits, split_records
from glassformer.data.split import share_news
from glassformer.errors import UserError

VALIDATION = "validation"
"""What the split of a Hugging Face dataset is called that a run validates on."""


class PairCorpus:
    """The pairs of a run and their split. Nothing is read until it is asked for."""

    def __init__(self, data: PairData) -> None:
        self.data = data
        self.dropped = DroppedPairs()
        self._share_news: list[str] = []
        self.name = data.path or f"{_named(data.source, 'source')} and {_named(data.target, 'target')}"
        _check_sides(data)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the pairs of both sides and of their order: equal digests, equal training."""
        sides = ([(pair.source, pair.target) for pair in pairs] for pairs in self.split)
        return digest_of(f"pairs {self.data.reading}", sides)

    @cached_property
    def split(self) -> tuple[list[Pair], list[Pair]]:
        """Training and validation pairs; `UserError` when a side is empty."""
        data, path = self.data, self.data.path
        if data.valid_path is not None or data.valid_source is not None:
            train, valid = (
                list(read_pair_files(data, self.dropped)),
                list(read_pair_files(_of_validation(data), self.dropped, VALIDATION)),
            )
        elif path is not None and path.startswith(builtin_pairs.PREFIX) and "#" not in path:
            train, valid = (
                list(read_pair_files(replace(data, path=f"{path}#{part}"), self.dropped)) for part in ("train", "valid")
            )
        elif path is not None and path.startswith(HUB) and VALIDATION in hub_splits(path) and "#" not in path:
            train, valid = (list(read_pair_files(data, self.dropped, split)) for split in ("train", VALIDATION))
        else:
            train, valid = split_pairs(list(read_pair_files(data, self.dropped)), data.valid_fraction, data.reading)
            self._share_news = share_news(len(valid) / max(1, len(train) + len(valid)), data.valid_fraction)
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
