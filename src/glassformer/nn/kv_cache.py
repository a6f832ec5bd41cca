"""Keys and values of the tokens seen so far, in buffers of fixed size that the caller owns.

Slot s of a row holds the token at position s: rows of unequal length have no holes, so "attend to slots up to your
own position" is the whole mask. One slot more than `max_len` takes what padding writes.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from glassformer.nn.branches import Branches


@dataclass
class LayerCache:
    """One layer's self-attention cache: `keys` (B, G, max_len + 1, K), `values` (B, G, max_len + 1, W)."""

    keys: Tensor
    values: Tensor

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

    def select(self, rows: Tensor) -> "LayerCache":
        return LayerCache(self.keys.index_select(0, rows), self.values.index_select(0, rows))

    def resized(self, n_filled: int, n_slots: int) -> "LayerCache":
        """Buffers of `n_slots` slots that begin with the first `n_filled` of these."""

        def copy(old: Tensor) -> Tensor:
            new = old.new_empty(*old.shape[:2], n_slots, old.shape[3])
            new[:, :, :n_filled] = old[:, :, :n_filled]
            return new

        return LayerCache(copy(self.keys), copy(self.values))


@dataclass(frozen=True)
class Slots:
    """Where T new tokens of each row go: one contiguous run for all rows, or a slot of its own for each token."""

    start: int | None
    """First slot when all rows are equally long and nothing is padding; else None."""
    n_filled: int
    """Slots in use afterwards, over all rows."""
    slots: Tensor | None = None
    """(B, T) when `start` is None; padding points at the slot that nobody reads."""


@dataclass(frozen=True)
class TransformerState:
    """What a Transformer remembers between steps of generation.

    The buffers are written in place: after `step` returns a new state, the old one must not be stepped again.
    """

    layers: list[LayerCache]
    max_len: int
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
        layers = [layer.select(rows) for layer in self.layers]
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

    def branched(self, width: int) -> "TransformerState":
        """The same rows, ready to branch: from now on `select` moves no keys, at most `width` rows come of each, and a
        step adds one token a row."""
        n_slots = self.longest + (self.max_len - int(self.lengths.min())) * width
        return replace(
            self,
            layers=[layer.resized(self.longest, n_slots) for layer in self.layers],
            branches=Branches.at(self.lengths, self.longest),
        )

    def crop(self, lengths: Tensor) -> "TransformerState":
        """Forgets all but the first `lengths` (B,) tokens of each row; slots beyond them are written over."""
        if self.branches is not None:
            raise ValueError("a state that has branched cannot be cropped")
        if bool((lengths > self.lengths).any()):
            raise ValueError("a state can only be cropped to fewer tokens than it holds")
        longest = int(lengths.max())
        return replace(self, lengths=lengths, longest=longest, uniform=bool((lengths == longest).all()))

    @property
    def cache_bytes(self) -> int:
        """Memory of the buffers, source included."""
        tensors = [t for layer in self.layers for t in (layer.keys, layer.values)]
        tensors += [t for pair in self.memory or [] for t in pair]
        return sum(t.numel() * t.element_size() for t in tensors)
