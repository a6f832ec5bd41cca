"""The split of records into training and validation data: fractions, parts of a source, and repeats.

`held_out` selects the validation data, of records and of texts (`corpus`), in units that are never divided: all copies
of a document, or all records with one key. The caller sorts the units by a hash of their contents, so the selection
does not depend on the order of the files.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TypeVar

from glassformer.common.errors import UserError

T = TypeVar("T")

FEW = 0.5
"""A note is printed if the held-out fraction is below this part of `valid_fraction`."""


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


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
