"""Keys and values of the tokens seen so far, in buffers that the caller owns and that grow as they fill.

Slot s of a row holds the token at position s: rows of unequal length have no holes, so "attend to slots up to your
own position" is the whole mask. The last slot of a buffer takes what padding writes; no query reads it.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from glassformer.nn.tree_cache import Branches

FIRST_SLOTS = 32
"""Slots of a new buffer, unless its state holds fewer tokens."""


@dataclass
class LayerCache:
    """One layer's self-attention cache: `keys` (B, G, slots, K), `values` (B, G, slots, W)."""

    keys: Tensor
    values: Tensor

    @property
    def n_slots(self) -> int:
        """Slots of a row, the one for padding included."""
        return self.keys.shape[2]

    def append(self, key: Tensor, value: Tensor, where: "Slots") -> tuple[Tensor, Tensor]:
        """Writes (B, G, T, ·) into its slots, in place, and returns all that is filled: (B, G, S, ·)."""
        if where.start is not None:
            self.keys[:, :, where.start : where.n_filled] = key
            self.values[:, :, where.start : where.n_filled] = value
        else:
            rows = torch.arange(key.shape[0], device=key.device)[:, None]
            self.keys[rows, :, where.slots] = key.transpose(1, 2).to(self.keys.dtype)
            self.values[rows, :, where.slots] = value.transpose(1, 2).to(self.values.dtype)
        return self.keys[:, :, : where.n_filled], self.values[:, :, : where.n_filled]

    def select(self, rows: Tensor, n_filled: int) -> "LayerCache":
        """New buffers whose row i is row `rows[i]`; only the first `n_filled` slots are copied, the others are 0."""
        return LayerCache(*(_copied(x[:, :, :n_filled].index_select(0, rows), self.n_slots) for x in self._buffers))

    def branched(self, n_filled: int) -> "LayerCache":
        """New buffers that hold the first `n_filled` slots, and one more."""
        return LayerCache(*(_copied(x[:, :, :n_filled], n_filled + 1) for x in self._buffers))

    def grow(self, n_slots: int) -> None:
        """Replace the buffers by ones of `n_slots` slots; all is kept but the last slot, which padding has written."""
        self.keys, self.values = (_copied(x[:, :, :-1], n_slots) for x in self._buffers)

    @property
    def _buffers(self) -> tuple[Tensor, Tensor]:
        return self.keys, self.values


def _copied(filled: Tensor, n_slots: int) -> Tensor:
    """A buffer (B, G, n_slots, ·) that begins with the filled slots (B, G, S, ·); the others are 0."""
    # Masked slots get the weight 0, and 0 times what uninitialised memory holds may be NaN.
    new = filled.new_zeros(*filled.shape[:2], n_slots, filled.shape[3])
    new[:, :, : filled.shape[2]] = filled
    return new


@dataclass(frozen=True)
class Slots:
    """Where T new tokens of each row go: one contiguous run for all rows, or a slot of its own for each token."""

    start: int | None
    """First slot when all rows are equally long and nothing is padding; else None."""
    n_filled: int
    """Slots in use afterwards, over all rows."""
    slots: Tensor | None = None
    """(B, T) when `start` is None; padding has -1, the last slot, which no query reads."""


@dataclass(frozen=True)
class TransformerState:
    """What a Transformer remembers between steps of generation.

    The buffers are written and grown in place: after `step` returns a new state, the old one must not be stepped
    again.
    """

    layers: list[LayerCache]
    max_len: int
    """The most tokens that a row may have; memory follows the slots in use, not this."""
    lengths: Tensor
    """(B,) real tokens so far."""
    longest: int
    """The largest of `lengths`, known without asking the device."""
    uniform: bool = True
    """All rows are `longest` long."""
    memory: list[tuple[Tensor, Tensor]] | None = None
    """Per layer, keys and values of the source: computed once, (B, G, S, ·)."""
    memory_mask: Tensor | None = None
    """(B, S) True = a real source token."""
    branches: Branches | None = None
    """Where it is set, the rows of a group share their part of `layers` and `memory`."""

    def select(self, rows: Tensor) -> "TransformerState":
        """The state whose row i is this one's row `rows[i]`: expands, reorders, drops."""
        if self.branches is not None:
            return self._select_branches(self.branches, rows)
        layers = [layer.select(rows, self.longest) for layer in self.layers]
        return replace(self._select_memory(rows), layers=layers, lengths=self.lengths[rows])

    def _select_branches(self, branches: Branches, rows: Tensor) -> "TransformerState":
        lengths = self.lengths[rows]
        branches, kept = branches.select(rows)
        state = replace(self, lengths=lengths, longest=int(lengths.max()), branches=branches)
        if kept is None:
            return state
        layers = [LayerCache(kept.move(layer.keys), kept.move(layer.values)) for layer in self.layers]
        return replace(state._select_memory(kept.groups), layers=layers)

    def _select_memory(self, rows: Tensor) -> "TransformerState":
        if self.memory is None:
            return self
        memory = [(key.index_select(0, rows), value.index_select(0, rows)) for key, value in self.memory]
        return replace(self, memory=memory, memory_mask=None if self.memory_mask is None else self.memory_mask[rows])

    def branched(self) -> "TransformerState":
        """The same rows, ready to branch: from now on `select` moves no keys, and a step adds one token per row."""
        layers = [layer.branched(self.longest) for layer in self.layers]
        return replace(self, layers=layers, branches=Branches.at(self.lengths, self.longest))

    def make_room(self, n_filled: int) -> None:
        """Grow the buffers, in place, until `n_filled` slots and the one for padding fit.

        The size doubles at least, so that growing copies each key about once; rows that have not branched need no
        more than `max_len` slots and the one for padding.
        """
        n_slots = self.layers[0].n_slots if self.layers else n_filled + 1
        if n_filled < n_slots:
            return
        n_slots = max(2 * n_slots, n_filled + 1)
        if self.branches is None:
            n_slots = min(n_slots, self.max_len + 1)
        for layer in self.layers:
            layer.grow(n_slots)

    @property
    def cache_bytes(self) -> int:
        """Memory of the buffers, source included."""
        tensors = [t for layer in self.layers for t in (layer.keys, layer.values)]
        tensors += [t for pair in self.memory or [] for t in pair]
        return sum(t.numel() * t.element_size() for t in tensors)
