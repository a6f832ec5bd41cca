"""Layout of the rows of a tensor in files of other programs, and the exact conversion in both directions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def neighbours(x: Tensor, n_heads: int) -> Tensor:
    """Reorder the rows of queries or keys within each head: rows i and i + K/2, which rotate together, become adjacent.

    >>> neighbours(torch.arange(8), n_heads=2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return _reordered(x, n_heads, (2, -1))


def halves(x: Tensor, n_heads: int) -> Tensor:
    """Reorder the rows of queries or keys within each head: the inverse of `neighbours`.

    >>> halves(torch.tensor([0, 2, 1, 3, 4, 6, 5, 7]), n_heads=2).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return _reordered(x, n_heads, (-1, 2))


def _reordered(x: Tensor, n_heads: int, grid: tuple[int, int]) -> Tensor:
    heads = x.unflatten(0, (n_heads, -1))
    return heads.unflatten(1, grid).transpose(1, 2).flatten(0, 2)


@dataclass(frozen=True)
class Layout:
    """Layout of the tensors of transformers in a line of a table; by default that of glassformer."""

    transposed: bool = False
    """True if the matrix is stored as (in, out): GPT-2's Conv1D."""
    is_row: bool = False
    """True if the tensor has a first dimension of 1: the constant bias of BART's logits."""
    n_groups: int = 0
    """Number of key-value heads, if a fused matrix has the queries, the key and the value of group 0, of group 1, …"""
    offset: float = 0.0
    """Number that is added to the tensors: Gemma's norms multiply by 1 + weight. The sum is stored as float32."""

    def to_ours(self, theirs: Sequence[Tensor], rows: Sequence[int]) -> list[Tensor]:
        """Convert tensors of transformers; `rows` are those of queries, keys and values in a fused matrix."""
        parts = [self._transposed(x) for x in theirs]
        if self.offset:
            parts = [x.float() + self.offset for x in parts]
        if self.is_row:
            parts = [x[0] for x in parts]
        if self.n_groups:
            parts = [_apart(x, self.n_groups, rows) for x in parts]
        return parts

    def to_theirs(self, ours: Sequence[Tensor], rows: Sequence[int]) -> list[Tensor]:
        """Invert `to_ours`.

        >>> layout = Layout(n_groups=2)
        >>> [x.tolist() for x in layout.to_theirs([torch.arange(8)], rows=(4, 2, 2))]
        [[0, 1, 4, 6, 2, 3, 5, 7]]
        """
        parts = list(ours)
        if self.offset:
            parts = [x.float() - self.offset for x in parts]
        if self.n_groups:
            parts = [_by_group(x, self.n_groups, rows) for x in parts]
        if self.is_row:
            parts = [x[None] for x in parts]
        return [self._transposed(x) for x in parts]

    def _transposed(self, x: Tensor) -> Tensor:
        return x.mT if self.transposed and x.dim() == 2 else x


def _by_group(x: Tensor, n_groups: int, rows: Sequence[int]) -> Tensor:
    """Reorder rows: all queries, all keys, all values → those of each group together."""
    parts = [part.unflatten(0, (n_groups, -1)) for part in x.split_with_sizes(list(rows))]
    return torch.cat(parts, dim=1).flatten(0, 1)


def _apart(x: Tensor, n_groups: int, rows: Sequence[int]) -> Tensor:
    """Invert `_by_group`."""
    parts = x.unflatten(0, (n_groups, -1)).split_with_sizes([n // n_groups for n in rows], dim=1)
    return torch.cat([part.flatten(0, 1) for part in parts])
