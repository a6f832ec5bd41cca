"""The records of a run and their split, for every kind of record."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Generic, TypeVar

from glassformer.config.run import ConversationData, LabelData, PairData, PreferenceData, PromptData
from glassformer.data.records import Dropped
from glassformer.data.split import digest_of, read_sides, without_repeats

D = TypeVar("D", bound=PairData | LabelData | ConversationData | PreferenceData | PromptData)
R = TypeVar("R")


class RecordCorpus(ABC, Generic[D, R]):
    """The records of a run and their split; files are read on first use."""

    def __init__(self, data: D, name: str, dropped: Dropped) -> None:
        self.data, self.name, self.dropped = data, name, dropped

    @property
    def valid_data(self) -> D | None:
        """The data of a separate validation file."""
        if self.data.valid_path is None:
            return None
        return replace(self.data, path=self.data.valid_path)

    @abstractmethod
    def records(self, data: D, split: str) -> Iterator[R]:
        """Yield the records of `data`; `split` is for a dataset whose address names no split."""

    @abstractmethod
    def texts(self, record: R) -> tuple[str, ...]:
        """Return the texts of a record, from which the digest of the data is computed."""

    @abstractmethod
    def divide(self, records: list[R]) -> tuple[list[R], list[R]]:
        """Divide records that have no separate validation data."""

    def identity(self, record: R) -> Hashable:
        """Return what a training record must not share with a validation record."""
        return self.texts(record)

    def distinct(self, train: list[R], valid: list[R]) -> list[R]:
        """Return the training records that are not validation records; raise `UserError` if a side is empty."""
        return without_repeats(train, valid, self.identity, self.dropped, self.name)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the records of both sides in their order; equal digests mean equal data."""
        return digest_of(self.data.kind, (map(self.texts, side) for side in self.split))

    @cached_property
    def split(self) -> tuple[list[R], list[R]]:
        """Training and validation records; raises `UserError` if a side is empty."""
        train, valid, self._share_news = read_sides(self.data, self.valid_data, self.records, self.divide)
        return self.distinct(train, valid), valid

    def news(self) -> list[str]:
        """Read the records and return notes: skipped ones, and a held-out fraction that is too small."""
        _ = self.split
        return [*self.dropped.sentences(), *self._share_news]
