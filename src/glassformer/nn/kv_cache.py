"""Key-value cache: keys and values of the tokens so far, in buffers that belong to the caller and grow as needed.

Slot s of a row holds the token at position s, so rows of unequal length have no gaps, and "attend to slots up to your
own position" is the whole mask. Padding is written to the last slot of a buffer; no query reads it.

Rows that branch from common prefixes, such as the hypotheses of a beam, form a tree in which each token is stored once.
The rows of a group (a sentence) share one cache and one memory. All of them are queries of one attention over all
stored tokens, and a mask limits each row to its own past. Reordering, expanding or dropping rows only selects rows of
that mask; keys and values move only when no row sees most of the stored tokens any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

FIRST_SLOTS = 32
"""Number of slots of a new buffer, unless its state holds fewer tokens."""


def kept_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of kept keys and values: that of `weight`, but fp32 for half precision on a CPU.

    There, attention of one query would convert all keys and values to fp32 in each step, which takes longer than the
    attention itself (`docs/log.md`).

    >>> kept_dtype(torch.zeros(1, dtype=torch.bfloat16))
    torch.float32
    """
    is_half_on_cpu = weight.device.type == "cpu" and weight.element_size() == 2
    return torch.float32 if is_half_on_cpu else weight.dtype


@dataclass
class LayerCache:
    """One layer's self-attention cache: `keys` (B, G, slots, K), `values` (B, G, slots, W)."""

    keys: Tensor
    values: Tensor

    @property
    def n_slots(self) -> int:
        """Number of slots per row, including the one for padding."""
        return self.keys.shape[2]

    def append(self, key: Tensor, value: Tensor, where: "Slots") -> tuple[Tensor, Tensor]:
        """Write (B, G, T, ·) into its slots in place; return all filled slots, (B, G, S, ·)."""
        if where.start is not None:
            self.keys[:, :, where.start : where.n_filled] = key
            self.values[:, :, where.start : where.n_filled] = value
        else:
            rows = torch.arange(key.shape[0], device=key.device)[:, None]
            self.keys[rows, :, where.slots] = key.transpose(1, 2).to(self.keys.dtype)
            self.values[rows, :, where.slots] = value.transpose(1, 2).to(self.values.dtype)
        return self.keys[:, :, : where.n_filled], self.values[:, :, : where.n_filled]

    def select(self, rows: Tensor, n_filled: int) -> "LayerCache":
        """Return new buffers whose row i is row `rows[i]`: the first `n_filled` slots are copied, the others are 0."""
        return LayerCache(*(_copied(x[:, :, :n_filled].index_select(0, rows), self.n_slots) for x in self._buffers))

    def joined(self, other: "LayerCache", n_filled: int, n_filled_of_other: int) -> "LayerCache":
        """Return new buffers with the rows of this cache, then those of `other`; only filled slots are copied."""
        n_slots = max(self.n_slots, other.n_slots)
        buffers = zip(self._buffers, other._buffers, strict=True)
        parts = ((x[:, :, :n_filled], y[:, :, :n_filled_of_other]) for x, y in buffers)
        return LayerCache(*(torch.cat((_copied(x, n_slots), _copied(y, n_slots))) for x, y in parts))

    def branched(self, n_filled: int) -> "LayerCache":
        """Return new buffers that hold the first `n_filled` slots and one more."""
        return LayerCache(*(_copied(x[:, :, :n_filled], n_filled + 1) for x in self._buffers))

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
class Slots:
    """Destination of T new tokens per row: one contiguous range for all rows, or one slot per token."""

    start: int | None
    """First slot if all rows have the same length and no padding; otherwise `None`."""
    n_filled: int
    """Number of slots in use afterwards, over all rows."""
    slots: Tensor | None = None
    """(B, T) if `start` is `None`; padding has -1, the last slot, which no query reads."""


@dataclass(frozen=True)
class Grid:
    """R rows arranged as cells (group, place), so that the rows of a group are adjacent.

    An unused cell repeats the first row of its group, or row 0 for an empty group; its result is never read.
    """

    n_groups: int
    width: int
    """Number of places per group."""
    places: Tensor
    """(R,) place of each row in its group."""
    cells: Tensor | None
    """(R,) group · width + place of each row; `None` if row i is cell i and no cell is a repeat."""
    rows: Tensor | None
    """(groups · width,) row of each cell; `None` in the same case."""

    @classmethod
    def of(cls, groups: Sequence[int], n_groups: int, device: torch.device) -> "Grid":
        """Build the grid from the group of each row; rows keep their order within a group.

        >>> Grid.of([0, 0, 1], 2, torch.device("cpu")).fold(torch.tensor([[5], [6], [7]]))
        tensor([[5, 6],
                [7, 7]])
        """
        count, places = [0] * n_groups, []
        for group in groups:
            places.append(count[group])
            count[group] += 1
        width = max(count)
        cells = [group * width + place for group, place in zip(groups, places, strict=True)]
        first = {group: row for row, group in reversed(list(enumerate(groups)))}
        rows = [first.get(group, 0) for group in range(n_groups) for _ in range(width)]
        for row, cell in enumerate(cells):
            rows[cell] = row
        in_order = cells == list(range(n_groups * width))
        of_rows, of_cells = (None if in_order else torch.tensor(x, device=device) for x in (cells, rows))
        return cls(n_groups, width, torch.tensor(places, device=device), of_rows, of_cells)

    def fold(self, x: Tensor) -> Tensor:
        """Arrange (R, 1, …) or (R, 1) as (groups, width, …)."""
        x = x if self.rows is None else x.index_select(0, self.rows)
        return x.reshape(self.n_groups, self.width, *x.shape[2:])

    def unfold(self, x: Tensor) -> Tensor:
        """Invert `fold`: (groups, width, …) → (R, 1, …)."""
        x = x.reshape(self.n_groups * self.width, 1, *x.shape[2:])
        return x if self.cells is None else x.index_select(0, self.cells)


@dataclass(frozen=True)
class Branches:
    """Branched rows: the group of each row, and the slots of that group that hold its past."""

    groups: list[int]
    """Group of each row."""
    grid: Grid
    seen: Tensor
    """(R, S) bool: the slots with the row's own tokens."""
    positions: Tensor
    """(groups, S) position of the token in each slot; undefined for a slot that no row sees."""

    @classmethod
    def at(cls, lengths: Tensor, longest: int) -> "Branches":
        """Make each row its own group, with its tokens in the first slots; the longest row has `longest` tokens."""
        n_rows = len(lengths)
        slots = torch.arange(longest, device=lengths.device).expand(n_rows, longest)
        groups = list(range(n_rows))
        return cls(groups, Grid.of(groups, n_rows, lengths.device), slots < lengths[:, None], slots)

    @property
    def n_slots(self) -> int:
        return self.seen.shape[1]

    def grown(self, lengths: Tensor) -> "Branches":
        """Add one token per row at position `lengths` (R,): each group gets one new slot for each of its places."""
        width = self.grid.width
        own = self.grid.places[:, None] == torch.arange(width, device=lengths.device)  # (R, width)
        positions = self.grid.fold(lengths[:, None])
        return replace(self, seen=torch.cat((self.seen, own), 1), positions=torch.cat((self.positions, positions), 1))

    def select(self, rows: Tensor) -> tuple["Branches", "Kept | None"]:
        """Return the branches of `rows`, and the slots to keep if no row sees most of the buffers (else `None`)."""
        groups = [self.groups[row] for row in rows.tolist()]
        grid = Grid.of(groups, self.grid.n_groups, rows.device)
        seen = self.seen[rows]
        needed = grid.fold(seen[:, None]).any(dim=1)  # (groups, S)
        used, n_needed = sorted(set(groups)), int(needed.sum(dim=1).max())
        if 2 * len(used) * n_needed > self.positions.numel():
            return replace(self, groups=groups, grid=grid, seen=seen), None
        numbers = {group: number for number, group in enumerate(used)}
        groups = [numbers[group] for group in groups]
        of_row, kept_groups = (torch.tensor(x, device=rows.device) for x in (groups, used))
        slots = needed[kept_groups].byte().sort(dim=1, descending=True, stable=True).indices[:, :n_needed]
        grid, positions = Grid.of(groups, len(used), rows.device), self.positions[kept_groups].gather(1, slots)
        return Branches(groups, grid, seen.gather(1, slots[of_row]), positions), Kept(kept_groups, slots)


@dataclass(frozen=True)
class Kept:
    """Groups and slots that remain when shared buffers are compacted."""

    groups: Tensor
    """(N,) indices of the groups."""
    slots: Tensor
    """(N, S) slots of each of these groups; they become its first slots."""

    def move(self, buffer: Tensor) -> Tensor:
        """Compact (groups, G, slots, K) to (N, G, slots, K) within the buffer's own memory."""
        n_groups, n_slots, n_heads = *self.slots.shape, buffer.shape[1]
        heads = self.groups[:, None] * n_heads + torch.arange(n_heads, device=buffer.device)  # (N, G)
        places = heads[:, :, None] * buffer.shape[2] + self.slots[:, None]  # (N, G, S)
        kept = buffer.flatten(0, 2).index_select(0, places.flatten())
        buffer = buffer[:n_groups]
        buffer[:, :, :n_slots] = kept.view(n_groups, n_heads, n_slots, -1)
        return buffer


@dataclass(frozen=True)
class TransformerState:
    """State of a Transformer between generation steps.

    The buffers are written and grown in place: after `step`, use only the state that it returns.
    """

    layers: list[LayerCache]
    max_len: int
    """Maximum number of tokens per row; memory depends on the slots in use, not on this limit."""
    lengths: Tensor
    """(B,) number of real tokens so far."""
    longest: int
    """Maximum of `lengths`, stored so that reading it needs no device synchronisation."""
    uniform: bool = True
    """True if all rows have length `longest`."""
    memory: list[tuple[Tensor, Tensor]] | None = None
    """Keys and values of the source per layer, (B, G, S, ·), computed once."""
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
            layers=[mine.joined(its, self.longest, other.longest) for mine, its in pairs],
            max_len=max(self.max_len, other.max_len),
            lengths=torch.cat((self.lengths, other.lengths)),
            longest=max(self.longest, other.longest),
            uniform=self.uniform and other.uniform and self.longest == other.longest,
        )
        if self.memory is None or other.memory is None:
            return state
        memory = [
            (join_rows(key, its_key, -2), join_rows(value, its_value, -2))
            for (key, value), (its_key, its_value) in zip(self.memory, other.memory, strict=True)
        ]
        mask = join_masks(self.memory_mask, other.memory_mask, self.memory[0][0], other.memory[0][0])
        return replace(state, memory=memory, memory_mask=mask)

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

    def crop(self, lengths: Sequence[int]) -> "TransformerState":
        """Return the state of the first `lengths[i]` tokens of row i; later steps write over the slots of the others.

        Raises `ValueError` for more tokens than the state has, and for rows that have branched.
        """
        if self.branches is not None:
            raise ValueError("crop: expected rows that have not branched, because branched rows share their slots")
        longest = max(lengths)
        if longest > self.longest:
            raise ValueError(f"lengths: expected at most {self.longest} tokens, got {longest}")
        kept = torch.tensor(lengths, device=self.lengths.device)
        return replace(self, lengths=kept, longest=longest, uniform=min(lengths) == longest)

    def branched(self) -> "TransformerState":
        """Return the same rows, ready to branch: then `select` moves no keys, and a step adds one token per row."""
        layers = [layer.branched(self.longest) for layer in self.layers]
        return replace(self, layers=layers, branches=Branches.at(self.lengths, self.longest))

    def make_room(self, n_filled: int) -> None:
        """Grow the buffers in place until `n_filled` slots and the one for padding fit.

        The size at least doubles, so that growing copies each key about once. Rows that have not branched need at most
        `max_len` slots plus the one for padding.
        """
        n_slots = self.layers[0].n_slots if self.layers else n_filled + 1
        if n_filled < n_slots:
            return
        n_slots = max(2 * n_slots, n_filled + 1)
        if self.branches is None:
            n_slots = min(n_slots, self.max_len + 1)
        for layer in self.layers:
            layer.grow(n_slots)
