"""Cache of an attention between steps of generation.

Slot s of a row holds the token at position s, so rows of unequal length have no gaps, and "attend to slots up to your
own position" is the whole mask. Padding is written to the last slot of a buffer, which no query reads. Buffers belong
to the caller and grow as needed. Rows of a beam share their buffers (`models/branches.py`).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

FIRST_SLOTS = 32
"""Number of slots of a new buffer, or fewer if `max_len` is smaller."""


def cache_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of cached keys and values: the dtype of `weight`, but fp32 for half precision on a CPU.

    On a CPU, attention of one query would otherwise convert all keys and values to fp32 in each step, which takes
    longer than the attention itself (`docs/log/2026-speed.md`).

    >>> cache_dtype(torch.zeros(1, dtype=torch.bfloat16))
    torch.float32
    """
    is_half_on_cpu = weight.device.type == "cpu" and weight.element_size() == 2
    return torch.float32 if is_half_on_cpu else weight.dtype


@dataclass(frozen=True)
class Slots:
    """Destination of T new tokens per row: one contiguous range for all rows, or one slot per token."""

    start: int | None
    """First slot if all rows have the same length and no padding; otherwise `None`."""
    n_filled: int
    """Number of slots in use after the new tokens are written: the maximum over the rows."""
    slots: Tensor | None = None
    """(B, T) slot of each token, if `start` is `None`. Padding has -1, the last slot, which no query reads."""

    @property
    def real(self) -> Tensor | None:
        """(B, T) True = a real token; `None` if no new token is padding."""
        return None if self.slots is None else self.slots >= 0


class Cache(ABC):
    """State of one attention between steps of generation, one row per sequence.

    In a `LayerCache`, each token has a slot, so that tokens can be dropped and rows can share slots. Other caches, such
    as a recurrent state, can do neither.
    """

    slots: Slots
    """The slots of the new tokens, which the state sets before each step."""

    @abstractmethod
    def select(self, rows: Tensor, n_filled: int) -> Self:
        """Return a new cache whose row i is row `rows[i]`; `n_filled` slots are in use."""

    @abstractmethod
    def joined(self, other: Self, n_filled: int, n_filled_of_other: int) -> Self:
        """Return a new cache with the rows of this cache, then the rows of `other`."""


@dataclass
class LayerCache(Cache):
    """Cache of two vectors per token: `keys` (B, G, slots, K), `values` (B, G, slots, W)."""

    keys: Tensor
    values: Tensor

    @classmethod
    def empty(cls, shape: tuple[int, int], widths: tuple[int, int], max_len: int, like: Tensor) -> Self:
        """Return empty buffers of `shape` (B, G) and `widths` (K, W), on the device of `like`, with `cache_dtype`.

        The buffers grow up to `max_len` tokens plus one slot for padding.
        """
        n_slots, dtype = min(FIRST_SLOTS, max_len + 1), cache_dtype(like)
        return cls(*(like.new_zeros(*shape, n_slots, width, dtype=dtype) for width in widths))

    @property
    def n_slots(self) -> int:
        """Number of slots per row, including the one for padding."""
        return self.keys.shape[2]

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write new keys and values (B, G, T, ·) into the `slots` in place; return all filled slots, (B, G, S, ·)."""
        to = self.slots
        if to.start is not None:
            self.keys[:, :, to.start : to.n_filled] = key
            self.values[:, :, to.start : to.n_filled] = value
        else:
            rows = torch.arange(key.shape[0], device=key.device)[:, None]
            self.keys[rows, :, to.slots] = key.transpose(1, 2).to(self.keys.dtype)
            self.values[rows, :, to.slots] = value.transpose(1, 2).to(self.values.dtype)
        return self.keys[:, :, : to.n_filled], self.values[:, :, : to.n_filled]

    def select(self, rows: Tensor, n_filled: int) -> Self:
        """Return new buffers whose row i is row `rows[i]`: the first `n_filled` slots are copied, other slots are 0.

        They have at most 2 · `n_filled` slots (or `FIRST_SLOTS`), so that they shrink when the longest row is dropped.
        """
        n_slots = min(self.n_slots, max(FIRST_SLOTS, 2 * n_filled))
        return type(self)(*(_copied(x[:, :, :n_filled].index_select(0, rows), n_slots) for x in self._buffers))

    def joined(self, other: Self, n_filled: int, n_filled_of_other: int) -> Self:
        """Return new buffers with the rows of this cache, then the rows of `other`; only filled slots are copied."""
        n_slots = max(self.n_slots, other.n_slots)
        buffers = zip(self._buffers, other._buffers, strict=True)
        parts = ((x[:, :, :n_filled], y[:, :, :n_filled_of_other]) for x, y in buffers)
        return type(self)(*(torch.cat((_copied(x, n_slots), _copied(y, n_slots))) for x, y in parts))

    def branched(self, n_filled: int) -> Self:
        """Return new buffers that hold the first `n_filled` slots and one empty slot."""
        return type(self)(*(_copied(x[:, :, :n_filled], n_filled + 1) for x in self._buffers))

    def compacted(self, groups: Tensor, slots: Tensor) -> Self:
        """Return buffers with only these groups (N,) and their slots (N, S), in the memory of the old buffers."""
        return type(self)(*(_compacted(x, groups, slots) for x in self._buffers))

    def grow(self, n_slots: int) -> None:
        """Replace the buffers by buffers with `n_slots` slots; keep all slots except the last, which holds padding."""
        self.keys, self.values = (_copied(x[:, :, :-1], n_slots) for x in self._buffers)

    @property
    def _buffers(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values


def _copied(filled: Tensor, n_slots: int) -> Tensor:
    """Return a buffer (B, G, n_slots, ·) that begins with the filled slots (B, G, S, ·); other slots are 0."""
    # Zeros, because masked slots get weight 0, and 0 times uninitialised memory can be NaN.
    new = filled.new_zeros(*filled.shape[:2], n_slots, filled.shape[3])
    new[:, :, : filled.shape[2]] = filled
    return new


def _compacted(buffer: Tensor, groups: Tensor, slots: Tensor) -> Tensor:
    """Compact (groups, G, slots, K) to these groups and their slots, (N, G, slots, K), in the buffer's own memory."""
    (n_groups, n_slots), n_heads = slots.shape, buffer.shape[1]
    heads = groups[:, None] * n_heads + torch.arange(n_heads, device=buffer.device)  # (N, G)
    rows = heads[:, :, None] * buffer.shape[2] + slots[:, None]  # (N, G, S)
    moved = buffer.flatten(0, 2).index_select(0, rows.flatten())
    buffer = buffer[:n_groups]
    buffer[:, :, :n_slots] = moved.view(n_groups, n_heads, n_slots, -1)
    return buffer
