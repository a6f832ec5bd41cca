"""Packed weights: copies of weights in the layout of the kernels of oneDNN, for generation on a CPU.

A product with few rows is limited by the memory. oneDNN reads weights in fp32 and bfloat16 two to three times faster in
its own layout. Results equal `F.linear(x, layer.weight, layer.bias)` up to rounding.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from glassformer.nn.kernels import processor
from glassformer.nn.kernels.linear import is_plain, linear, onednn_product

MIN_PACKED = 1 << 17
"""Number of weights from which a layer is packed; smaller ones stay in the cache of the processor."""
MAX_PACKED_BYTES = 2 << 30
"""Packed weights are copies: of a larger network, only the first layers are packed."""


class _Here(threading.local):
    """The block that is open in this thread.

    Each thread has the attribute from its start: a compiled network is compiled again if an attribute is added.
    """

    def __init__(self) -> None:
        self.block: PackedWeights | None = None


_here = _Here()
_packed = WeakTensorKeyDictionary()
"""By weight: the `_identity` of the values that were packed, and the packed weight."""
_lock = threading.Lock()
"""Held while `_packed` is read or changed."""


def linear_layer(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return x Wᵀ + b of a layer: by packed weights in a block of `PackedWeights`, otherwise by `linear`."""
    block = _here.block
    if block is None or torch.compiler.is_dynamo_compiling():
        return linear(x, layer.weight, layer.bias)
    return block.product(layer, x)


class PackedWeights:
    """Block in which the layers of a CPU multiply, without gradients, by packed copies of their weights.

    A block may be entered many times; each copy is compared with its weight at its first use. The copies stay
    for later blocks. Other threads are not affected.

    >>> layer, packed = nn.Linear(2, 3), PackedWeights()
    >>> for _ in range(2):
    ...     with packed, torch.inference_mode():
    ...         y = linear_layer(layer, torch.zeros(1, 2))
    """

    def __init__(self) -> None:
        self._chosen: dict[tuple[int, torch.dtype], Callable[[Tensor], Tensor]] = {}
        """The product of each weight and dtype of an input, by the `id` of the weight, which the product keeps."""
        self._before: list[PackedWeights | None] = []

    def __enter__(self) -> Self:
        self._before.append(_here.block)
        _here.block = self
        return self

    def __exit__(self, *_: object) -> None:
        _here.block = self._before.pop()

    def product(self, layer: nn.Linear, x: Tensor) -> Tensor:
        """Return x Wᵀ + b of a layer, by the product that was chosen at the first use of its weight in this block."""
        weight = layer._parameters["weight"]
        product = self._chosen.get((id(weight), x.dtype))
        if product is None or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
            product = self._choose(layer.weight, layer.bias, x)
        return product(x)

    def _choose(self, weight: Tensor, bias: Tensor | None, x: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the product of a weight; keep it if it depends on the weight and the dtype of `x` alone."""
        product = partial(linear, weight=weight, bias=bias)
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not is_plain(x, weight):
            return product
        if weight.dtype != x.dtype or not x.numel():
            return product
        packed = _pack(weight)
        if packed is not None:
            product = partial(onednn_product, weight=packed, bias=bias)
        elif not processor.this.is_fast_in_bfloat16:  # `linear` is `F.linear` then, for inputs of any size
            product = partial(F.linear, weight=weight, bias=bias)
        self._chosen[id(weight), x.dtype] = product
        return product


def forget_packed(network: nn.Module) -> None:
    """Free the packed copies of the weights of a network, for example because they are about to change."""
    with _lock:
        for weight in network.parameters():
            _packed.pop(weight, None)


def _identity(weight: Tensor) -> tuple[Any, ...]:
    """Return the address of a weight, and sums of its bits that change with its values and with their order.

    PyTorch's counter of changes does not count those through `weight.data`. Sums of integers are exact and fast.
    """
    bits = weight.view(torch.int64)
    sums = (bits.sum(dim=1), bits.sum(dim=0))
    return weight.data_ptr(), weight.dtype, *(int((x * torch.arange(1, len(x) + 1)).sum()) for x in sums)


def _pack(weight: Tensor) -> Tensor | None:
    """Return the packed weight; None for a weight that is not packed, and beyond `MAX_PACKED_BYTES`."""
    values, here = weight.detach(), processor.this
    is_packed = {
        torch.float32: here.uses_onednn,
        torch.bfloat16: here.is_fast_in_bfloat16 and here.packs_bfloat16,
    }
    if values.numel() < MIN_PACKED or not values.is_contiguous() or not is_packed.get(values.dtype):
        return None
    if any(n * values.element_size() % 8 for n in (values.shape[1], values.storage_offset())):
        return None  # `_identity` reads 8 bytes at a time
    with _lock:
        identity, found = _identity(values), _packed.pop(weight, None)
        if found is None or found[0] != identity:
            if sum(each.nbytes for each in [*_packed, weight]) > MAX_PACKED_BYTES:
                return None
            found = identity, torch.ops.mkldnn._reorder_linear_weight(values)
        _packed[weight] = found
        return found[1]
