"""Pairs as they stand somewhere: two aligned files, a table, jsonl, something built in, a Hugging Face dataset."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from glassformer import files
from glassformer.config.run import PairData
from glassformer.data import builtin_pairs, records
from glassformer.data.records import HUB, SUFFIXES, Wanted, lines
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
        yield from _aligned(Path(data.source), Path(data.target), dropped)
    elif data.path.startswith(builtin_pairs.PREFIX):
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


def _aligned(source: Path, target: Path, dropped: DroppedPairs) -> Iterator[Pair]:
    for number, (one, other) in enumerate(aligned_lines(source, target), 1):
        yield from _kept(one, other, f"line {number} of {source}", dropped)


def _kept(source: str, target: str, where: str, dropped: DroppedPairs) -> Iterator[Pair]:
    if source.strip() and target.strip():
        yield Pair(source.strip(), target.strip())
    else:
        dropped.empty(where)
