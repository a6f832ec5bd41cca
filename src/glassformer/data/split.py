"""Choose a part of given units, each whole, whose total weight is near a wanted one.

A unit is all copies of a document, or all records with one key. Both functions see weights in an order that the
caller takes from hashes of the contents, so the choice does not depend on the order of the files.
"""

from collections.abc import Sequence

FEW = 0.5
"""The share reached is reported when it is below this part of the share that was asked for."""


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
