"""Other processors for `pytest --processor`: `sums`, `sums-2` and `sums-3` add the terms of products in another order.

The order is a function of the shapes, as in real kernels, so equal operations still give equal bits.
"""

import functools
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

SUMS = {"sums": 1, "sums-2": 2, "sums-3": 3}
"""Processors with another order of sums, and the seeds of these orders."""
PRODUCTS = {
    "aten::mm": (0, -2),
    "aten::mm.out": (0, -2),
    "aten::addmm": (1, -2),
    "aten::addmm.out": (1, -2),
    "aten::bmm": (0, -2),
    "aten::bmm.out": (0, -2),
    "aten::baddbmm": (1, -2),
    "aten::baddbmm.out": (1, -2),
    "aten::mv": (0, -1),
    "aten::addmv": (1, -1),
    "aten::dot": (0, -1),
    "mkldnn::_linear_pointwise": (0, -1),
}
"""Products of PyTorch on a CPU: the place of the left operand, and the dimension of the right one that is summed."""
chosen = ""
"""The name in `SUMS` of what this processor has become."""
_KEPT: list[Callable[[], None]] = []
"""Functions that bring the products of PyTorch back; the replaced products exist as long as these."""
_drawn: list[int] = []
"""The order of sums of the tests that run now, if the short run drew another one for them."""


def become(kind: str) -> None:
    """Make this processor one of `SUMS`, before the first product."""
    global chosen
    chosen = kind
    _KEPT.append(add_in_another_order(SUMS[kind]))


@contextmanager
def order(seed: int) -> Iterator[None]:
    """Add the terms of products in another order, for the tests of one file."""
    _KEPT.append(add_in_another_order(seed))
    _drawn.append(seed)
    try:
        yield
    finally:
        _drawn.pop()
        _KEPT.pop()()


@contextmanager
def order_of_all_tests() -> Iterator[None]:
    """Leave the order of the file for a block: what it makes is kept for other files."""
    if not _drawn:
        yield
        return
    _KEPT.pop()()
    try:
        yield
    finally:
        _KEPT.append(add_in_another_order(_drawn[-1]))


def add_in_another_order(seed: int) -> Callable[[], None]:
    """Replace the products of the CPU, forward and backward, in all threads and forked processes.

    Return a function that brings the products of PyTorch back. Neighbouring rows of a product have different orders, as
    at the edge of a kernel's tile.
    """
    import torch

    @functools.cache
    def orders(*shapes: tuple[int, ...]) -> "list[Tensor]":
        generator = torch.Generator().manual_seed(zlib.crc32(repr((seed, shapes)).encode()))
        return [torch.randperm(shapes[0][-1], generator=generator) for _ in range(2)]

    def reordered(kernel: Any, left: int, dim: int) -> Callable[..., "Tensor"]:
        def product(keys: Any, *args: Any, out: "Tensor | None" = None, **options: Any) -> "Tensor":
            before, (a, b), after = args[:left], args[left : left + 2], args[left + 2 :]
            found, other = (
                kernel.call_boxed(keys, *before, a.index_select(-1, p), b.index_select(dim, p), *after, **options)
                for p in orders(tuple(a.shape), tuple(b.shape))
            )
            if found.dim() > 1:
                found[..., 1::2, :] = other[..., 1::2, :]
            return found if out is None else out.resize_(found.shape).copy_(found)

        return product

    libraries = []
    torch.backends.cuda.enable_flash_sdp(False)  # on a CPU too: attention then consists of these products
    for name, (left, dim) in PRODUCTS.items():
        namespace, operation = name.split("::")
        kernel = torch.library.get_kernel(name.removesuffix(".out"), "CPU")
        library = torch.library.Library(namespace, "IMPL")
        libraries.append(library)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel is replaced
            library.impl(operation, reordered(kernel, left, dim), "CPU", with_keyset=True)

    def undo() -> None:
        torch.backends.cuda.enable_flash_sdp(True)
        for library in libraries:
            library._destroy()

    return undo
