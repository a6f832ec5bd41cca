"""Products of rows in groups, each group with a matrix of its own: the fast path of experts."""

from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.kernels.linear import linear


def grouped_linear(rows: Tensor, counts: Sequence[int], weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b for rows (N, in) that are sorted by group; group g has `counts[g]` of them.

    `weight` (G·out, in) and `bias` (G·out) are stacked by groups. A group without rows takes no time.

    >>> rows, weight = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[10.0], [0.0], [20.0]])
    >>> grouped_linear(rows, [2, 0, 1], weight, None)
    tensor([[10.],
            [20.],
            [60.]])
    """
    n_groups = len(counts)
    # The gradient of `unbind` is one tensor for all groups; an index would fill a tensor of zeros for each.
    weights = weight.unflatten(0, (n_groups, -1)).unbind()
    biases = [None] * n_groups if bias is None else bias.unflatten(0, (n_groups, -1)).unbind()
    groups = zip(rows.split(list(counts)), weights, biases, strict=True)
    return torch.cat([linear(part, w, b) for part, w, b in groups if len(part)])
