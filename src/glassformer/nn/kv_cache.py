"""State of a Transformer between steps of generation: the cache of each attention, and the keys of the source.

Slot s of a row holds the token at position s, so rows of unequal length have no gaps, and "attend to slots up to your
own position" is the whole mask. Padding is written to the last slot of a buffer; no query reads it. Buffers belong to
the caller and grow as needed. Rows of a beam share their buffers (`kernels/branches.py`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.kernels.branches import Branches, Compaction

FIRST_SLOTS = 32
"""Number of slots of a new buffer, unless its state holds fewer tokens."""


def cache_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of cached keys and values: that of `weight`, but fp32 for half precision on a CPU.

    There, attention of one query would convert all keys and values to fp32 in each step, which takes longer than the
    attention itself (`docs/log.md`).

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
    """Number of slots in use afterwards, over all rows."""
    slots: Tensor | None = None
    """(B, T) if `start` is `None`; padding has -1, the last slot, which no query reads."""

    @property
    def real(self) -> Tensor | None:
        """(B, T) True = a real token; `None` if no new token is padding."""
        return None if self.slots is None else self.slots >= 0


class Cache(ABC):
    """State of one attention between steps of generation, one row per sequence.

    In a `LayerCache`, each token has a slot, so that tokens can be dropped and rows can share slots. Other caches, such
    as a recurrent state, cannot.
    """

    @abstractmethod
    def select(self, rows: Tensor, n_filled: int) -> Self:
        """Return a new cache whose row i is row `rows[i]`; `n_filled` slots are in use."""

    @abstractmethod
    def joined(self, other: Self, n_filled: int, n_filled_of_other: int) -> Self:
        """Return a new cache with the rows of this one, then those of `other`."""


@dataclass(frozen=True)
class CacheStep:
    """The cache of one attention, and the slots of the new tokens of one step."""

    cache: Any
    """A `Cache`, of the class that the attention makes."""
    slots: Slots


@dataclass
class LayerCache(Cache):
    """Cache of two vectors per token: `keys` (B, G, slots, K), `values` (B, G, slots, W)."""

    keys: Tensor
    values: Tensor

    @classmethod
    def empty(cls, shape: tuple[int, int], widths: tuple[int, int], max_len: int, like: Tensor) -> Self:
        """Return empty buffers of `shape` (B, G) and `widths` (K, W), on the device of `like`, with `cache_dtype`.

        They grow up to `max_len` tokens plus one slot for padding.
        """
        n_slots, dtype = min(FIRST_SLOTS, max_len + 1), cache_dtype(like)
        return cls(*(like.new_zeros(*shape, n_slots, width, dtype=dtype) for width in widths))

    @property
    def n_slots(self) -> int:
        """Number of slots per row, including the one for padding."""
        return self.keys.shape[2]

    def append(self, key: Tensor, value: Tensor, to: Slots) -> tuple[Tensor, Tensor]:
        """Write (B, G, T, ·) into its slots in place; return all filled slots, (B, G, S, ·)."""
        if to.start is not None:
            self.keys[:, :, to.start : to.n_filled] = key
            self.values[:, :, to.start : to.n_filled] = value
        else:
            rows = torch.arange(key.shape[0], device=key.device)[:, None]
            self.keys[rows, :, to.slots] = key.transpose(1, 2).to(self.keys.dtype)
            self.values[rows, :, to.slots] = value.transpose(1, 2).to(self.values.dtype)
        return self.keys[:, :, : to.n_filled], self.values[:, :, : to.n_filled]

    def select(self, rows: Tensor, n_filled: int) -> Self:
        """Return new buffers whose row i is row `rows[i]`: the first `n_filled` slots are copied, the others are 0."""
        return type(self)(*(_copied(x[:, :, :n_filled].index_select(0, rows), self.n_slots) for x in self._buffers))

    def joined(self, other: Self, n_filled: int, n_filled_of_other: int) -> Self:
        """Return new buffers with the rows of this cache, then those of `other`; only filled slots are copied."""
        n_slots = max(self.n_slots, other.n_slots)
        buffers = zip(self._buffers, other._buffers, strict=True)
        parts = ((x[:, :, :n_filled], y[:, :, :n_filled_of_other]) for x, y in buffers)
        return type(self)(*(torch.cat((_copied(x, n_slots), _copied(y, n_slots))) for x, y in parts))

    def branched(self, n_filled: int) -> Self:
        """Return new buffers that hold the first `n_filled` slots and one more."""
        return type(self)(*(_copied(x[:, :, :n_filled], n_filled + 1) for x in self._buffers))

    def compacted(self, compaction: Compaction) -> Self:
        """Return buffers with the groups and slots that remain, in the memory of these."""
        return type(self)(*map(compaction.move, self._buffers))

    def make_room(self, n_filled: int, max_slots: int | None) -> None:
        """Grow in place, at least to double the size, until `n_filled` slots and the one for padding fit."""
        if n_filled < self.n_slots:
            return
        n_slots = max(2 * self.n_slots, n_filled + 1)
        self.grow(n_slots if max_slots is None else min(n_slots, max_slots))

    def grow(self, n_slots: int) -> None:
        """Replace the buffers by ones of `n_slots` slots; keep all slots except the last, which holds padding."""
        self.keys, self.values = (_copied(x[:, :, :-1], n_slots) for x in self._buffers)

    @property
    def _buffers(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values


def _copied(filled: Tensor, n_slots: int) -> Tensor:
    """Return a buffer (B, G, n_slots, ·) that begins with the filled slots (B, G, S, ·); the others are 0."""
    # Zeros, because masked slots get weight 0, and 0 times uninitialised memory can be NaN.
    new = filled.new_zeros(*filled.shape[:2], n_slots, filled.shape[3])
    new[:, :, : filled.shape[2]] = filled
    return new


def join_rows(first: Tensor, second: Tensor, dim: int) -> Tensor:
    """Return the rows of two tensors (B, …), then padded with 0 in dimension `dim` < 0 to the larger size.

    >>> join_rows(torch.ones(1, 1), torch.ones(1, 3), -1)
    tensor([[1., 0., 0.],
            [1., 1., 1.]])
    """
    size = max(first.shape[dim], second.shape[dim])
    return torch.cat([F.pad(x, (*[0, 0] * (-dim - 1), 0, size - x.shape[dim])) for x in (first, second)])


def join_masks(first: Tensor | None, second: Tensor | None, keys: Tensor, others: Tensor) -> Tensor | None:
    """Return the mask (B, S) of the joined rows of `keys` and `others` (B, …, S, ·); `None` if no key is padding."""
    if first is None and second is None and keys.shape[-2] == others.shape[-2]:
        return None
    masks = [
        x.new_ones(len(x), x.shape[-2], dtype=torch.bool) if mask is None else mask
        for mask, x in ((first, keys), (second, others))
    ]
    return join_rows(masks[0], masks[1], -1)


@dataclass(frozen=True)
class TransformerState:
    """State of a Transformer between generation steps.

    The caches are written and grown in place: after `step`, use only the state that it returns.
    """

    layers: Sequence[Cache]
    max_len: int
    """Maximum number of tokens per row; memory depends on the slots in use, not on this limit."""
    lengths: Tensor
    """(B,) number of real tokens so far."""
    longest: int
    """Maximum of `lengths`, stored so that reading it needs no device synchronisation."""
    uniform: bool = True
    """True if all rows have length `longest`."""
    memory: list[tuple[Tensor, ...]] | None = None
    """Projected source of each layer, (B, G, S, ·): keys and values, computed once."""
    memory_mask: Tensor | None = None
    """(B, S) True = a real source token."""
    branches: Branches | None = None
    """If set, the rows of a group share their part of `layers` and `memory`."""

    def select(self, rows: Tensor) -> "TransformerState":
        """Return the state whose row i is row `rows[i]` of this one: expand, reorder or drop rows."""
        if self.branches is not None:
            return self._select_branches(self.branches, rows)
        layers = [layer.select(rows, self.longest) for layer in self.layers]
        return replace(self._select_memory(rows), layers=layers, lengths=self.lengths[rows])

    def joined(self, other: "TransformerState") -> "TransformerState":
        """Return the state with the rows of this one, then those of `other`; lengths and sources may differ in size."""
        if self.branches is not None or other.branches is not None:
            raise ValueError("joined: expected two states that have not branched")
        pairs = zip(self.layers, other.layers, strict=True)
        state = replace(
            self,
            layers=[one.joined(two, self.longest, other.longest) for one, two in pairs],
            max_len=max(self.max_len, other.max_len),
            lengths=torch.cat((self.lengths, other.lengths)),
            longest=max(self.longest, other.longest),
            uniform=self.uniform and other.uniform and self.longest == other.longest,
        )
        if self.memory is None or other.memory is None:
            return state
        memory = [
            tuple(join_rows(x, y, -2) for x, y in zip(one, two, strict=True))
            for one, two in zip(self.memory, other.memory, strict=True)
        ]
        mask = join_masks(self.memory_mask, other.memory_mask, self.memory[0][0], other.memory[0][0])
        return replace(state, memory=memory, memory_mask=mask)

    def crop(self, lengths: Sequence[int]) -> "TransformerState":
        """Return the state of the first `lengths[i]` tokens of row i; later steps write over the slots of the others.

        Raises `ValueError` for more tokens than the state has, for rows that have branched, and for a cache without
        slots.
        """
        if self.branches is not None:
            raise ValueError("crop: expected rows that have not branched, because branched rows share their slots")
        if len(self._slotted) < len(self.layers):
            raise ValueError("crop: expected a slot for each token, because other caches cannot drop tokens")
        longest = max(lengths)
        if longest > self.longest:
            raise ValueError(f"lengths: expected at most {self.longest} tokens, got {longest}")
        cropped = torch.tensor(lengths, device=self.lengths.device)
        return replace(self, lengths=cropped, longest=longest, uniform=min(lengths) == longest)

    def branched(self) -> "TransformerState":
        """Return the same rows, ready to branch: then `select` moves no keys, and a step adds one token per row.

        A cache without slots cannot be shared by several rows; then this is the state itself.
        """
        slotted = self._slotted
        if len(slotted) < len(self.layers):
            return self
        layers = [layer.branched(self.longest) for layer in slotted]
        return replace(self, layers=layers, branches=Branches.at(self.lengths, self.longest))

    def make_room(self, n_filled: int) -> None:
        """Grow the caches in place until `n_filled` tokens fit.

        Rows that have not branched need at most `max_len` slots plus the one for padding.
        """
        max_slots = self.max_len + 1 if self.branches is None else None
        for layer in self._slotted:
            layer.make_room(n_filled, max_slots)

    @property
    def _slotted(self) -> list[LayerCache]:
        return [layer for layer in self.layers if isinstance(layer, LayerCache)]

    def _select_branches(self, branches: Branches, rows: Tensor) -> "TransformerState":
        lengths = self.lengths[rows]
        branches, compaction = branches.select(rows)
        state = replace(self, lengths=lengths, longest=int(lengths.max()), branches=branches)
        if compaction is None:
            return state
        layers = [layer.compacted(compaction) for layer in self._slotted]
        return replace(state._select_memory(compaction.groups), layers=layers)

    def _select_memory(self, rows: Tensor) -> "TransformerState":
        if self.memory is None:
            return self
        memory = [tuple(x.index_select(0, rows) for x in layer) for layer in self.memory]
        mask = None if self.memory_mask is None else self.memory_mask[rows]
        return replace(self, memory=memory, memory_mask=mask)
