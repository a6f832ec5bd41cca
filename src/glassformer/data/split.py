"""The split into training and validation data, and the records of a run (`RecordCorpus`).

`held_out` selects the validation data of records and of texts (`corpus`). It selects only whole units: all copies of a
document, or all records with the same key. The caller sorts the units by a hash of their contents, so the selection
does not depend on the order of the files.
"""

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

from glassformer.common.errors import UserError
from glassformer.config.run import ConversationData, LabelData, PairData, PreferenceData, PromptData
from glassformer.data import builtin
from glassformer.data.formats import HUB, VALIDATION, splits_on_hub
from glassformer.data.in_memory import name_of
from glassformer.data.records import Dropped, Kind, Request

T = TypeVar("T")
D = TypeVar("D", bound=PairData | LabelData | ConversationData | PreferenceData | PromptData)
R = TypeVar("R")

FEW = 0.5
"""A note is printed if the held-out fraction is less than `FEW` times `valid_fraction`."""


def held_out(
    weights: Sequence[int], fraction: float, *, training: Collection[int] = (), fits_only: bool = False
) -> list[int]:
    """Choose units for validation, so that units of every size are held out at about `fraction` of their weight.

    Units are grouped by weight: 1, 2-3, 4-7, … The group of the lightest units comes first. The target of a group is
    `fraction` of its weight, plus what the earlier groups have chosen below their targets, or minus what they have
    chosen above. The units of a group are tried in their order. A unit is chosen if it brings the chosen weight nearer
    to the target. At the end, one more unit is chosen if it brings the total nearer to `fraction` of all. Neither side
    is empty, and units in `training` are never chosen.

    With `fits_only`, a unit is chosen only if the chosen weight stays within the target. So the total is at most
    `fraction` of all, and perhaps no unit is chosen.

    >>> held_out([40, 1, 60, 1, 60, 1, 1], 0.25)  # one of the four units 1, and 40 of 160
    [1, 0]
    >>> held_out([9, 8], 0.1), held_out([9, 8], 0.1, training=[1]), held_out([9, 8], 0.1, fits_only=True)
    ([1], [0], [])
    """
    groups: dict[int, list[int]] = {}
    for unit, weight in enumerate(weights):
        groups.setdefault(weight.bit_length(), []).append(unit)
    chosen: list[int] = []
    missing = 0.0
    limit = 1 if fits_only else 2  # a unit below 2 × missing brings the total nearer
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
        if abs(weights[nearest] - missing) < missing:
            chosen.append(nearest)
    return chosen


def require_fraction(fraction: float) -> None:
    """Raise `UserError` for a fraction of a text that leaves nothing for training or for validation."""
    if not 0 < fraction < 1:
        raise UserError(
            f"data.valid_fraction: expected a number above 0 and below 1, got {fraction}; "
            "to train on the whole text, set data.valid_path to a validation text"
        )


def cut_of(name: str, n_characters: int, fraction: float) -> int:
    """Return the number of characters of one document for training; raise `UserError` if one side would be empty.

    >>> cut_of("a.txt", 100, 0.1)
    90
    """
    cut = int(n_characters * (1 - fraction))
    if not 0 < cut < n_characters:
        raise UserError(
            f"{name} has {n_characters} characters, too few to hold out a fraction of {fraction:g}; "
            "use more text, or set data.valid_path"
        )
    return cut


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


def split_records(
    records: Sequence[T], keys: Sequence[str], valid_fraction: float, training: Collection[str] = ()
) -> tuple[list[T], list[T]]:
    """Split into training and validation records by the key of each record; both sides keep the order of `records`.

    Keys are sorted by their hash, and selected by their number of records (`held_out`): keys with few records and keys
    with many are both held out at about `valid_fraction`. Keys in `training` are never selected. The selection does not
    depend on the order of the records.

    >>> split_records("badc", ["a", "b", "a", "c"], 0.25)
    (['b', 'a', 'd'], ['c'])
    """
    counts = Counter(keys)
    ordered = sorted(counts, key=lambda key: hashlib.sha256(key.encode()).digest())
    fixed = {unit for unit, key in enumerate(ordered) if key in training}
    chosen = {ordered[unit] for unit in held_out([counts[key] for key in ordered], valid_fraction, training=fixed)}
    sides: tuple[list[T], list[T]] = ([], [])
    for record, key in zip(records, keys, strict=True):
        sides[key in chosen].append(record)
    return sides


class RecordCorpus(ABC, Generic[D, R]):
    """The records of a run and their split; files are read on first use."""

    NOUN: ClassVar[str]
    """Name of a record in messages."""
    USABLE: ClassVar[str]
    """Name in messages of a record that is not skipped."""
    REASON: ClassVar[tuple[str, str]]
    """Why a record is skipped: the words for one record, and for several."""

    def __init__(self, data: D, name: str) -> None:
        self.data, self.name, self.dropped = data, name, Dropped(self.NOUN, self.REASON)
        self.share_news: list[str] = []

    @property
    def valid_data(self) -> D | None:
        """The data of a separate validation file; None without one."""
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
            if not (part.path or "").startswith(HUB):
                next(self.records(part, "train"), None)

    def read(self) -> Iterator[R]:
        """Yield all records of `data.path`."""
        return self.records(self.data, "train")

    @abstractmethod
    def texts(self, record: R) -> tuple[str, ...]:
        """Return the texts of a record, from which the digest of the data is computed."""

    @abstractmethod
    def divide(self, records: list[R]) -> tuple[list[R], list[R]]:
        """Divide records without separate validation data into training and validation records, by a hash of each."""

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
        elif valid is None and path.startswith(HUB) and "#" not in path and VALIDATION in splits_on_hub(path):
            valid = data
        train = list(self.records(data, "train"))
        if valid is not None:
            return train, list(self.records(valid, VALIDATION))
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

    def whole(self, split: str = VALIDATION) -> list[R]:
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


def spread(of: tuple[int, int, int], unit: str = "") -> str:
    """Describe the `percentiles` of some numbers."""
    return f"median {of[0]:,}{unit}, 99th percentile {of[1]:,}, maximum {of[2]:,}"
