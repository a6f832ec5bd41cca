"""Padding of rows of unequal length to one array, with optional truncation."""

from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from glassformer.common.errors import UserError

PaddingSide = Literal["left", "right"]
Ids = TypeVar("Ids", list[int], npt.NDArray[np.int64])


def truncate(ids: Ids, max_len: int, side: PaddingSide = "right") -> Ids:
    """Cut ids off at one side, so that at most `max_len` remain.

    >>> truncate([1, 2, 3], 2), truncate([1, 2, 3], 2, side="left")
    ([1, 2], [2, 3])
    """
    if side == "right":
        return ids[:max_len]
    return ids[max(0, len(ids) - max_len) :]


def pad(
    sequences: Sequence[npt.ArrayLike],
    pad_id: int,
    *,
    max_len: int | None = None,
    side: PaddingSide = "right",
    truncate_side: PaddingSide | None = None,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Pad token ids at `side` to an array (B, T), and return it with the attention mask (B, T): True = a real token.

    T is `max_len`, or by default the length of the longest row. A row longer than `max_len` is truncated at
    `truncate_side`. Without `truncate_side` it raises `UserError`, so that no text is lost silently.

    >>> ids, mask = pad([[5, 6, 7], [8]], 0)
    >>> ids.tolist(), mask.tolist()
    ([[5, 6, 7], [8, 0, 0]], [[True, True, True], [True, False, False]])
    """
    rows = [np.asarray(row, dtype=np.int64) for row in sequences]
    if max_len is not None and truncate_side is not None:
        rows = [truncate(row, max_len, truncate_side) for row in rows]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)[:, None]  # (B, 1)
    width = int(lengths.max(initial=0)) if max_len is None else max_len
    if (too_long := lengths > width).any():
        i = int(too_long.argmax())
        raise UserError(f"row {i} has {len(rows[i])} tokens, more than max_len = {width}; set truncate_side to cut it")
    columns = np.arange(width)
    mask = columns < lengths if side == "right" else columns >= width - lengths  # (B, T)
    ids = np.full(mask.shape, pad_id, dtype=np.int64)
    if rows:
        ids[mask] = np.concatenate(rows)  # row-major, as the True entries are
    return ids, mask
