"""Products of rows in groups, each group with a matrix of its own: the fast path of experts.

On a GPU of compute capability 9, `torch.nn.functional.grouped_mm` multiplies all groups in bfloat16 in one kernel,
which reads the sizes of the groups on the GPU. On a CPU and on other GPUs, `grouped_mm` is a loop over the groups, so
`grouped_linear` has its own loop there, with the products of `linear`.
"""

import functools
import sys

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.nn.kernels.linear import is_transformed, linear, product_dtype

ALIGNED_BYTES = 16
"""The kernel requires that rows and matrices begin at multiples of this number of bytes."""
MAX_GROUPS = 1023
"""Largest number of groups of the kernel."""


class Groups:
    """The groups of N rows that are sorted by group.

    >>> Groups(torch.tensor([0, 0, 2]), n_groups=3).ends
    tensor([2, 2, 3], dtype=torch.int32)
    """

    def __init__(self, of_rows: Tensor, n_groups: int) -> None:
        self.of_rows = of_rows
        """(N,): the group of each row, in ascending order."""
        numbers = torch.arange(n_groups, device=of_rows.device)
        self.ends = torch.searchsorted(of_rows, numbers, right=True, out_int32=True)
        """(G,): the row after the last one of each group."""

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The number of rows of each group; on a GPU, the first use waits for its results."""
        return self.ends.diff(prepend=self.ends.new_zeros(1)).tolist()


def grouped_linear(rows: Tensor, groups: Groups, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b for `rows` (N, in), where each group has its own W and b; (N, out).

    `weight` (G·out, in) and `bias` (G·out) are stacked by groups. A group without rows takes no time.

    >>> rows, weight = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[10.0], [0.0], [20.0]])
    >>> grouped_linear(rows, Groups(torch.tensor([0, 0, 2]), n_groups=3), weight, None)
    tensor([[10.],
            [20.],
            [60.]])
    """
    multiply = _by_kernel if _fits_kernel(rows, groups, weight) else _by_loop
    return multiply(rows, groups, weight, bias)


def _by_loop(rows: Tensor, groups: Groups, weight: Tensor, bias: Tensor | None) -> Tensor:
    n_groups = len(groups.ends)
    # The gradient of `unbind` is one tensor for all groups; an index would fill a tensor of zeros for each.
    weights = weight.unflatten(0, (n_groups, -1)).unbind()
    biases = [None] * n_groups if bias is None else bias.unflatten(0, (n_groups, -1)).unbind()
    parts = zip(rows.split(groups.sizes), weights, biases, strict=True)
    return torch.cat([linear(part, w, b) for part, w, b in parts if len(part)])


def _by_kernel(rows: Tensor, groups: Groups, weight: Tensor, bias: Tensor | None) -> Tensor:
    n_groups, dtype = len(groups.ends), product_dtype(rows)
    # Autocast does not know this function, so the operands are cast here.
    weights = weight.to(dtype).unflatten(0, (n_groups, -1))  # (G, out, in)
    product = F.grouped_mm(rows.to(dtype), weights.transpose(1, 2), offs=groups.ends)
    if bias is not None:
        product = product + bias.to(dtype).unflatten(0, (n_groups, -1))[groups.of_rows]
    return product


def _fits_kernel(rows: Tensor, groups: Groups, weight: Tensor) -> bool:
    """Return True if the product of these groups is one kernel, forward and backward."""
    if not has_kernel(rows.device) or is_transformed() or product_dtype(rows) != torch.bfloat16:
        return False
    n_groups = len(groups.ends)
    widths = (rows.shape[1], len(weight) // n_groups)
    begins = (weight.data_ptr(), *(width * torch.bfloat16.itemsize for width in widths))
    return n_groups <= MAX_GROUPS and all(n % ALIGNED_BYTES == 0 for n in begins)


def has_kernel(device: torch.device) -> bool:
    """Return True for a GPU of NVIDIA of compute capability 9 (Hopper), on Linux.

    On capability 10, the kernel of PyTorch 2.13 has wrong gradients for groups without rows
    (https://github.com/pytorch/pytorch/issues/172439). On Windows, PyTorch is built without it.
    """
    if device.type != "cuda" or torch.version.cuda is None or sys.platform != "linux":
        return False
    return torch.cuda.get_device_capability(device)[0] == 9
