"""The records of a run and their split, for every kind of record."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

from glassformer.common.errors import UserError
from glassformer.config.run import ConversationData, LabelData, PairData, PreferenceData, PromptData
from glassformer.data import builtin, hub
from glassformer.data.in_memory import name_of
from glassformer.data.records import Dropped, Kind, Request
from glassformer.data.split import share_news

D = TypeVar("D", bound=PairData | LabelData | ConversationData | PreferenceData | PromptData)
R = TypeVar("R")


class RecordCorpus(ABC, Generic[D, R]):
    """The records of a run and their split; files are read on first use."""

    NOUN: ClassVar[str]
    """Name of a record in messages."""
    USABLE: ClassVar[str]
    """The same of a record that is not skipped."""
    REASON: ClassVar[tuple[str, str]]
    """Why a record is skipped: the words for one record, and for several."""

    def __init__(self, data: D, name: str) -> None:
        self.data, self.name, self.dropped = data, name, Dropped(self.NOUN, self.REASON)
        self.share_news: list[str] = []

    @property
    def valid_data(self) -> D | None:
        """The data of a separate validation file."""
        if self.data.valid_path is None:
            return None
        return replace(self.data, path=self.data.valid_path)

    @abstractmethod
    def records(self, data: D, split: str) -> Iterator[R]:
        """Yield the records of `data`; `split` is for a dataset whose address names no split."""

    def request(
        self, data: D, split: str, settings: Sequence[str], kind: Kind = "conversations", may_lack_header: bool = False
    ) -> Request:
        """Return the request for the fields that some settings of `data` name."""
        names = tuple(getattr(data, name) for name in settings)
        told = ", ".join(f"data.{name}" for name in settings)
        return Request(kind, names, told, split, self.dropped, may_lack_header, data.format, data.encoding)

    def look(self, context: int = 0) -> None:
        """Read the first record of the training data, and of separate validation data; data on the hub is not read."""
        for part in filter(None, (self.data, self.valid_data)):
            if not (part.path or "").startswith(hub.PREFIX):
                next(self.records(part, "train"), None)

    def read(self) -> Iterator[R]:
        """Yield all records of `data.path`."""
        return self.records(self.data, "train")

    @abstractmethod
    def texts(self, record: R) -> tuple[str, ...]:
        """Return the texts of a record, from which the digest of the data is computed."""

    @abstractmethod
    def divide(self, records: list[R]) -> tuple[list[R], list[R]]:
        """Divide records that have no separate validation data, by a hash of each."""

    def identity(self, record: R) -> Hashable:
        """Return the value that a training record must not share with a validation record."""
        return self.texts(record)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the records of both sides in their order; equal digests mean equal data."""
        digest = hashlib.sha256(self.data.kind.encode())
        for side in self.split:
            for text in (text for record in side for text in self.texts(record)):
                data = text.encode()
                digest.update(len(data).to_bytes(8, "little") + data)
            digest.update(b"|")
        return digest.hexdigest()

    @cached_property
    def split(self) -> tuple[list[R], list[R]]:
        """Training and validation records; raises `UserError` if a side is empty."""
        train, valid = self._sides()
        return self.distinct(train, valid), valid

    def _sides(self) -> tuple[list[R], list[R]]:
        """Read training and validation records.

        Without separate validation data, built-in records use their own parts, a dataset uses its split named
        validation, and all other data are divided.
        """
        data, valid, path = self.data, self.valid_data, self.data.path or ""
        if valid is None and builtin.has_parts(path):
            data, valid = replace(data, path=f"{path}#train"), replace(data, path=f"{path}#valid")
        elif valid is None and path.startswith(hub.PREFIX) and "#" not in path and hub.VALIDATION in hub.splits(path):
            valid = data
        train = list(self.records(data, "train"))
        if valid is not None:
            return train, list(self.records(valid, hub.VALIDATION))
        train, held = self.divide(train)
        self.share_news = share_news(len(held) / max(1, len(train) + len(held)), data.valid_fraction)
        return train, held

    def distinct(self, train: list[R], valid: list[R]) -> list[R]:
        """Return the training records that are not validation records; raise `UserError` if a side is empty."""
        held = set(map(self.identity, valid))
        distinct = [record for record in train if self.identity(record) not in held]
        self.dropped.n_repeated = len(train) - len(distinct)
        repeated = ", because all of them are also validation data" if train else ""
        for side, reason, records in (("training", repeated, distinct), ("validation", "", valid)):
            if not records:
                raise UserError(
                    f"the split of {self.name} has no {side} {self.NOUN}{reason}; use more {self.NOUN}s, or set "
                    "data.valid_path"
                )
        return distinct

    def whole(self, split: str = hub.VALIDATION) -> list[R]:
        """Return all records without a division; `split` is for a dataset whose address names no split.

        Raises `UserError` for an unreadable file, missing columns, and data without a usable record.
        """
        found = list(self.records(self.data, split))
        if not found:
            raise UserError(f"{name_of(self.name)} has no {self.USABLE}; use another file")
        return found

    def news(self) -> list[str]:
        """Read the records and return notes: skipped ones, and a held-out fraction that is too small."""
        _ = self.split
        return [*self.dropped.sentences(), *self.share_news]


def percentiles(lengths: list[int]) -> tuple[int, int, int]:
    """Return the median, the 99th percentile and the maximum of some numbers."""
    ordered = sorted(lengths)
    return ordered[len(ordered) // 2], ordered[int(0.99 * (len(ordered) - 1))], ordered[-1]
