"""Pairs of a source and a target: reading, and the split into training and validation data.

Pairs are two aligned text files, or the records of one source (`addresses.SOURCES`). A pair with an empty side is
skipped and counted. All other pairs are kept in memory as text, which is practical for some millions of pairs.

`RecordCorpus` makes the split, by a hash of the source: all targets of one source are on one side.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glassformer.common.errors import UserError
from glassformer.config.run import PairData
from glassformer.data import addresses
from glassformer.data.formats import aligned_lines
from glassformer.data.kinds import DataReport, notes
from glassformer.data.records import Record, with_fields
from glassformer.data.split import RecordCorpus, percentiles, split_records, spread


@dataclass(frozen=True)
class Pair:
    """A source and its target."""

    source: str
    target: str


def _aligned_records(data: PairData) -> Iterator[Record]:
    assert data.source is not None and data.target is not None  # checked by _check_sides
    pairs = aligned_lines(Path(data.source), Path(data.target), data.encoding)
    for number, (source, target) in enumerate(pairs, 1):
        fields = {data.source_field: source, data.target_field: target}
        yield Record(f"line {number} of {data.source}", fields, "")


class PairCorpus(RecordCorpus[PairData, Pair]):
    """The pairs of a run and their split."""

    NOUN, USABLE = "pair", "pair with both sides"
    REASON = ("pair has an empty side", "pairs have an empty side")

    def __init__(self, data: PairData) -> None:
        super().__init__(data, data.path or f"{data.source or 'no source'} and {data.target or 'no target'}")
        _check_sides(data)

    @property
    def valid_data(self) -> PairData | None:
        """The data of separate validation files; None without them."""
        data = self.data
        if data.valid_path is None and data.valid_source is None:
            return None
        return replace(data, path=data.valid_path, source=data.valid_source, target=data.valid_target)

    def records(self, data: PairData, split: str) -> Iterator[Pair]:
        request = self.request(data, split, data.columns, "pairs", may_lack_header=True)
        records = _aligned_records(data) if data.path is None else addresses.records(data.path, request)
        for record in with_fields(records, request.names):
            source, target = (record.text(name).strip() for name in request.names)
            if source and target:
                yield Pair(source, target)
            else:
                self.dropped.empty(record.where)

    def texts(self, record: Pair) -> tuple[str, ...]:
        return record.source, record.target

    def divide(self, records: list[Pair]) -> tuple[list[Pair], list[Pair]]:
        return split_records(records, [pair.source for pair in records], self.data.valid_fraction)


def report_of(corpus: PairCorpus, *_: Any) -> DataReport:
    """Return the report on pairs; lengths are in characters."""
    train, valid = corpus.split
    everything = [*train, *valid]
    lengths = {
        "source_characters": percentiles([len(pair.source) for pair in everything]),
        "target_characters": percentiles([len(pair.target) for pair in everything]),
    }
    news = corpus.news()
    n_sources, n_repeats = len({pair.source for pair in everything}), len(train) - len(set(train))
    sources, targets = (spread(of, " characters") for of in lengths.values())
    return DataReport(
        {
            "n_train": len(train),
            "n_valid": len(valid),
            "n_distinct_sources": n_sources,
            **lengths,
            "n_repeats": n_repeats,
            "news": news,
        },
        [
            ("pairs", f"{len(train):,} for training, {len(valid):,} for validation"),
            ("sources", f"{n_sources:,} distinct; {sources}"),
            ("targets", targets),
            ("repeats", f"{n_repeats:,} training pairs repeat an earlier one"),
            *notes(news),
        ],
    )


def _check_sides(data: PairData) -> None:
    if data.path is None and data.source is None and data.target is None:
        raise UserError("no pairs are given; set --data.source FILE and --data.target FILE, or --data.path FILE")
    if data.path is not None and (data.source is not None or data.target is not None):
        raise UserError("data.path contains both sides; set it alone, or set data.source and data.target without it")
    for one, other in (("source", "target"), ("valid_source", "valid_target")):
        for given, missing in ((one, other), (other, one)):
            if getattr(data, given) is not None and getattr(data, missing) is None:
                flag, side = missing.replace("_", "-"), missing.replace("valid_", "validation ")
                raise UserError(f"the {side} side is missing; set --data.{flag} FILE")
    if data.valid_path is not None and data.valid_source is not None:
        raise UserError("data.valid_path contains both sides; remove data.valid_source and data.valid_target")
