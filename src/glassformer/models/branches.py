"""The tree of a beam: rows that branch from common prefixes share one cache, in which each token is stored once.

The rows of a group (a sentence) share one cache and one memory. All rows are queries of one attention over all stored
tokens of the group, and a mask limits each row to its own past. Reordering, expanding or dropping rows only selects
rows of that mask. Keys and values move only when the rows need at most half of the stored slots (`Branches.select`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Branches:
    """R branched rows: the group of each row, and the slots of the group that hold the tokens of the row.

    The rows are arranged as cells (group, column), so that the rows of a group are adjacent.
    """

    groups: Sequence[int]
    """Group of each row."""
    width: int
    """Number of columns: the largest number of rows of a group."""
    cells: Tensor
    """(R,) cell of each row, group · width + column."""
    rows: Tensor | None
    """(groups · width,) row of each cell; `None` if row i is cell i and no cell is unused.

    An unused cell repeats the first row of its group, or row 0 for an empty group. The result of an unused cell is
    never read.
    """
    seen: Tensor
    """(R, S) bool: the slots with the row's own tokens."""
    positions: Tensor
    """(groups, S) position of the token in each slot; undefined for a slot that no row sees."""

    @classmethod
    def of(cls, groups: Sequence[int], seen: Tensor, positions: Tensor) -> Self:
        """Arrange rows by their groups; rows keep their order within a group.

        >>> branches = Branches.of([0, 0, 1], torch.ones(3, 9, dtype=torch.bool), torch.zeros(2, 9))
        >>> branches.fold(torch.tensor([[5], [6], [7]]))
        tensor([[5, 6],
                [7, 7]])
        """
        columns: list[int] = []
        members: list[list[int]] = [[] for _ in range(len(positions))]
        for row, group in enumerate(groups):
            columns.append(len(members[group]))
            members[group].append(row)
        width = max(map(len, members))
        cells = [group * width + column for group, column in zip(groups, columns, strict=True)]
        rows = [row for own in members for row in own + (own or [0])[:1] * (width - len(own))]
        of_cell = None if rows == list(range(len(groups))) else torch.tensor(rows, device=seen.device)
        return cls(groups, width, torch.tensor(cells, device=seen.device), of_cell, seen, positions)

    @classmethod
    def at(cls, lengths: Tensor, longest: int) -> Self:
        """Make each row its own group, with its tokens in the first slots; the longest row has `longest` tokens."""
        slots = torch.arange(longest, device=lengths.device).expand(len(lengths), longest)
        return cls.of(range(len(lengths)), slots < lengths[:, None], slots)

    @property
    def n_slots(self) -> int:
        return self.seen.shape[1]

    def fold(self, x: Tensor) -> Tensor:
        """Arrange the rows of `x` (R, 1, …) as cells (groups, width, …)."""
        x = x if self.rows is None else x.index_select(0, self.rows)
        return x.reshape(len(self.positions), self.width, *x.shape[2:])

    def unfold(self, x: Tensor) -> Tensor:
        """Invert `fold`: (groups, width, …) → (R, 1, …)."""
        x = x.flatten(0, 1).unsqueeze(1)
        return x if self.rows is None else x.index_select(0, self.cells)

    def grown(self, lengths: Tensor) -> Self:
        """Add one token per row at position `lengths` (R,): each group gets one new slot for each column."""
        columns = self.cells % self.width
        new = columns[:, None] == torch.arange(self.width, device=lengths.device)  # (R, width)
        positions = self.fold(lengths[:, None])
        return replace(self, seen=torch.cat((self.seen, new), 1), positions=torch.cat((self.positions, positions), 1))

    def select(self, rows: Tensor) -> tuple[Self, tuple[Tensor, Tensor] | None]:
        """Return the branches of `rows`, and the groups (N,) and slots (N, S) to keep; `None` to keep all.

        Slots are dropped if (number of kept groups) × (largest number of needed slots in a group) is at most half of
        all slots. Then the kept slots become the first slots of their group (`LayerCache.compacted`).
        """
        branches = self.of([self.groups[row] for row in rows.tolist()], self.seen[rows], self.positions)
        needed = branches.fold(branches.seen[:, None]).any(dim=1)  # (groups, S)
        used, n_needed = sorted(set(branches.groups)), int(needed.sum(dim=1).max())
        if 2 * len(used) * n_needed > self.positions.numel():
            return branches, None
        numbers = {group: number for number, group in enumerate(used)}
        groups = [numbers[group] for group in branches.groups]
        of_row, kept = (torch.tensor(x, device=rows.device) for x in (groups, used))
        slots = needed[kept].byte().sort(dim=1, descending=True, stable=True).indices[:, :n_needed]
        seen, positions = branches.seen.gather(1, slots[of_row]), self.positions[kept].gather(1, slots)
        return self.of(groups, seen, positions), (kept, slots)
