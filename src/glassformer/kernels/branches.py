"""The tree of a beam: rows that branch from common prefixes share one cache, in which each token is stored once.

The rows of a group (a sentence) share one cache and one memory. All of them are queries of one attention over all
stored tokens, and a mask limits each row to its own past. Reordering, expanding or dropping rows only selects rows of
that mask; keys and values move only when no row sees most of the stored tokens any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Grid:
    """R rows arranged as cells (group, column), so that the rows of a group are adjacent.

    An unused cell repeats the first row of its group, or row 0 for an empty group; its result is never read.
    """

    n_groups: int
    width: int
    """Number of columns: the largest number of rows of a group."""
    columns: Tensor
    """(R,) column of each row in its group."""
    cells: Tensor | None
    """(R,) group · width + column of each row; `None` if row i is cell i and no cell is a repeat."""
    rows: Tensor | None
    """(groups · width,) row of each cell; `None` in the same case."""

    @classmethod
    def of(cls, groups: Sequence[int], n_groups: int, device: torch.device) -> "Grid":
        """Build the grid from the group of each row; rows keep their order within a group.

        >>> Grid.of([0, 0, 1], 2, torch.device("cpu")).fold(torch.tensor([[5], [6], [7]]))
        tensor([[5, 6],
                [7, 7]])
        """
        count, columns = [0] * n_groups, []
        for group in groups:
            columns.append(count[group])
            count[group] += 1
        width = max(count)
        cells = [group * width + column for group, column in zip(groups, columns, strict=True)]
        first = {group: row for row, group in reversed(list(enumerate(groups)))}
        rows = [first.get(group, 0) for group in range(n_groups) for _ in range(width)]
        for row, cell in enumerate(cells):
            rows[cell] = row
        of_columns = torch.tensor(columns, device=device)
        if cells == list(range(n_groups * width)):
            return cls(n_groups, width, of_columns, None, None)
        of_rows, of_cells = (torch.tensor(x, device=device) for x in (cells, rows))
        return cls(n_groups, width, of_columns, of_rows, of_cells)

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
        """Add one token per row at position `lengths` (R,): each group gets one new slot for each column."""
        width = self.grid.width
        new = self.grid.columns[:, None] == torch.arange(width, device=lengths.device)  # (R, width)
        positions = self.grid.fold(lengths[:, None])
        return replace(self, seen=torch.cat((self.seen, new), 1), positions=torch.cat((self.positions, positions), 1))

    def select(self, rows: Tensor) -> tuple["Branches", "Compaction | None"]:
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
        return Branches(groups, grid, seen.gather(1, slots[of_row]), positions), Compaction(kept_groups, slots)


@dataclass(frozen=True)
class Compaction:
    """Groups and slots that remain when shared buffers are compacted."""

    groups: Tensor
    """(N,) indices of the groups."""
    slots: Tensor
    """(N, S) slots of each of these groups; they become its first slots."""

    def move(self, buffer: Tensor) -> Tensor:
        """Compact (groups, G, slots, K) to (N, G, slots, K) within the buffer's own memory."""
        n_groups, n_slots, n_heads = *self.slots.shape, buffer.shape[1]
        heads = self.groups[:, None] * n_heads + torch.arange(n_heads, device=buffer.device)  # (N, G)
        rows = heads[:, :, None] * buffer.shape[2] + self.slots[:, None]  # (N, G, S)
        moved = buffer.flatten(0, 2).index_select(0, rows.flatten())
        buffer = buffer[:n_groups]
        buffer[:, :, :n_slots] = moved.view(n_groups, n_heads, n_slots, -1)
        return buffer
