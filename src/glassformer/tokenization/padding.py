"""Rectangles out of rows of unequal length: padding, and truncation where it is asked for."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from glassformer.errors import UserError

PaddingSide = Literal["left", "right"]


def truncate(ids: Sequence[int], max_len: int, side: PaddingSide = "right") -> list[int]:
    """Cuts ids off at one side, until `max_len` are left.

    >>> truncate([1, 2, 3], 2), truncate([1, 2, 3], 2, side="left")
    ([1, 2], [2, 3])
    """
    if len(ids) <= max_len:
        return list(ids)
    return list(ids[:max_len]) if side == "right" else list(ids[len(ids) - max_len :])


def pad(
    sequences: Sequence[Sequence[int]],
    *,
    pad_id: int,
    max_len: int | None = None,
    side: PaddingSide = "right",
    truncate_side: PaddingSide | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Token ids (B, T) filled up with `pad_id` at `side`, and the attention mask (B, T): True = a real token.

    T is `max_len`, or without it the length of the longest row. A row that is longer than `max_len` is cut at
    `truncate_side`; without one it is a `UserError`, since text must never vanish silently.

    >>> ids, mask = pad([[5, 6, 7], [8]], pad_id=0)
    >>> ids.tolist(), mask.tolist()
    ([[5, 6, 7], [8, 0, 0]], [[True, True, True], [True, False, False]])
    """
    width = max(map(len, sequences), default=0) if max_len is None else max_len
    ids = np.full((len(sequences), width), pad_id, np.int64)
    mask = np.zeros((len(sequences), width), np.bool_)
    for i, row in enumerate(sequences):
        if len(row) > width:
            if truncate_side is None:
                raise UserError(
                    f"row {i} has {len(row)} tokens, more than max_len = {width}; say at which side to cut it"
                )
            row = truncate(row, width, truncate_side)
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[i, place] = row
        mask[i, place] = True
    return ids, mask
