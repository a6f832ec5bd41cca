"""State of a Transformer between steps of generation: the cache of each attention, and the keys of the source."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.models.branches import Branches
from glassformer.nn.kv_cache import Cache, LayerCache, Slots


def join_rows(first: Tensor, second: Tensor, dim: int) -> Tensor:
    """Concatenate the rows of two tensors (B, …), padded with 0 in dimension `dim` < 0 to the larger size.

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
    if first is None:
        first = keys.new_ones(len(keys), keys.shape[-2], dtype=torch.bool)
    if second is None:
        second = others.new_ones(len(others), others.shape[-2], dtype=torch.bool)
    return join_rows(first, second, -1)


@dataclass(frozen=True)
class TransformerState:
    """State of a Transformer between generation steps.

    `step` writes and grows the caches in place. So after a step, use only the new state.
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
        """Return the state whose row i is row `rows[i]` of this state; so rows are repeated, reordered or dropped."""
        if self.branches is not None:
            return self._select_branches(self.branches, rows)
        lengths, longest = self.lengths[rows], self.longest
        if not self.uniform:  # then a step reads the lengths too
            longest = int(lengths.max())
        layers = [layer.select(rows, longest) for layer in self.layers]
        return replace(self._select_memory(rows), layers=layers, lengths=lengths, longest=longest)

    def joined(self, other: "TransformerState") -> "TransformerState":
        """Return a state with the rows of this state, then the rows of `other`; lengths and source sizes may differ."""
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
        """Return the state with only the first `lengths[i]` tokens of row i; later steps overwrite the other slots.

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
        """Return a state with the same rows, in which `select` seldom moves keys, and a step adds one token per row.

        Several rows cannot share a cache without slots. If there is such a cache, return this state itself.
        """
        slotted = self._slotted
        if len(slotted) < len(self.layers):
            return self
        layers = [layer.branched(self.longest) for layer in slotted]
        return replace(self, layers=layers, branches=Branches.at(self.lengths, self.longest))

    def make_room(self, slots: Slots) -> None:
        """Give the caches the slots of the new tokens; grow full caches in place, at least to double their size.

        Rows that have not branched need at most `max_len` slots and one slot for padding.
        """
        for layer in self.layers:
            layer.slots = slots
            if isinstance(layer, LayerCache) and slots.n_filled >= layer.keys.shape[2]:
                n_slots = max(2 * layer.n_slots, slots.n_filled + 1)
                layer.grow(n_slots if self.branches is not None else min(n_slots, self.max_len + 1))

    @property
    def _slotted(self) -> list[LayerCache]:
        return [layer for layer in self.layers if isinstance(layer, LayerCache)]

    def _select_branches(self, branches: Branches, rows: Tensor) -> "TransformerState":
        lengths = self.lengths[rows]
        branches, kept = branches.select(rows)
        state = replace(self, lengths=lengths, longest=int(lengths.max()), branches=branches)
        if kept is None:
            return state
        return replace(state._select_memory(kept[0]), layers=[layer.compacted(*kept) for layer in self._slotted])

    def _select_memory(self, rows: Tensor) -> "TransformerState":
        if self.memory is None:
            return self
        memory = [tuple(x.index_select(0, rows) for x in layer) for layer in self.memory]
        mask = None if self.memory_mask is None else self.memory_mask[rows]
        return replace(self, memory=memory, memory_mask=mask)
