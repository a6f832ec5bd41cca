"""Kinds of processor that `pytest --processor KIND` makes of this one.

Hidden instructions are hidden from PyTorch's libraries too, in this process and in those that it starts. The rest is
what glassformer reads from `processor.this`. A kind never has an ability that the libraries lack here.

`sums`, `sums-2` and `sums-3` are processors whose kernels add the terms of every product in another order. The order is
a function of the shapes, as in real kernels, so equal operations still give equal bits.
"""

import functools
import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.kernels.processor import Processor

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
AMD, INTEL = "AuthenticAMD", "GenuineIntel"
BF16 = ("avx512_bf16", "amx_bf16")
NO_ONEDNN = {"has_onednn": False, "packs_bfloat16": False, "packs_float16": False, "bfloat16": ()}
KINDS: dict[str, tuple[Mapping[str, str], Mapping[str, Any]]] = {
    "amd-avx2": (AVX2, {"kind": (AMD, 25, "AVX2"), "bfloat16": ()}),
    "amd-zen5": ({}, {"kind": (AMD, 26, "AVX512", *BF16[:1]), "bfloat16": BF16[:1]}),
    "intel-avx2": (AVX2, {"kind": (INTEL, 6, "AVX2"), "bfloat16": ()}),
    "intel-amx": ({}, {"kind": (INTEL, 6, "AVX512", *BF16), "bfloat16": BF16}),
    "unknown": ({}, {"kind": ("", 0, "AVX512")}),
    "arm": ({}, {"kind": ("", 0, "DEFAULT"), **NO_ONEDNN}),
}
"""Environment variables, read by the libraries at their first product, and fields of `Processor`."""
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
    "aten::_weight_int8pack_mm": (0, -1),
    "mkldnn::_linear_pointwise": (0, -1),
}
"""Products of PyTorch on a CPU: the place of the left operand, and the dimension of the right one that is summed."""
chosen = ""
"""The kind that this processor has become."""
_KEPT: list[Callable[[], None]] = []
"""Functions that bring the products of PyTorch back; the replaced products exist as long as these."""
_drawn: list[int] = []
"""The order of sums of the tests that run now, if the short run drew another one for them."""


def of_kind(kind: str, real: "Processor") -> "Processor":
    """Return a processor of a kind, with the choices of the table as far as the libraries of the real one have them."""
    from glassformer.kernels import processor

    changed = replace(real, **KINDS[kind][1])
    choices = processor.MEASURED.get(changed.kind, processor.PLAIN) if real.has_onednn else processor.PLAIN
    return replace(changed, choices=choices)


def become(kind: str) -> None:
    """Make this processor one of a kind, as far as it can, before the first product."""
    global chosen
    chosen = kind
    if kind in SUMS:
        _KEPT.append(add_in_another_order(SUMS[kind]))
        return
    os.environ.update(KINDS[kind][0])
    from glassformer.kernels import processor

    processor.this = of_kind(kind, processor.detect())


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
