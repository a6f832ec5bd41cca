"""Packed weights: copies of weights in the layout of the kernels of oneDNN or FBGEMM, for generation on a CPU.

A product with few rows is limited by the memory. oneDNN reads weights in fp32 and bfloat16 two to three times faster in
its own layout. FBGEMM reads packed weights in float16 and computes in fp32, without converting the whole weight. The
result equals `F.linear(x, layer.weight, layer.bias)` up to rounding, so that a reader may stop there.
"""

import threading
import weakref
from typing import Any, Self

import torch
from torch import Tensor, nn

from glassformer.kernels import processor
from glassformer.kernels.linear import is_plain, is_transformed, linear, onednn_product

MIN_PACKED = 1 << 17
"""Number of weights from which a layer is packed; smaller ones stay in the cache of the processor."""
MAX_PACKED_BYTES = 2 << 30
"""Packed weights are copies: of a larger network, only the first layers are packed."""
PackedWeight = Tensor | torch.ScriptObject
"""A weight in oneDNN's layout, or an object of FBGEMM."""

_here = threading.local()
"""Its `block` is the one that is open in this thread."""
_packed: "weakref.WeakKeyDictionary[nn.Linear, tuple[tuple[Any, ...], PackedWeight]]" = weakref.WeakKeyDictionary()
"""The packed weight of a layer, and the `_identity` of the values that were packed."""
_lock = threading.Lock()
"""Held while `_packed` is read or changed."""


def linear_layer(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return x Wᵀ + b of a layer: by packed weights in a block of `PackedWeights`, otherwise by `linear`."""
    block: PackedWeights | None = getattr(_here, "block", None)
    packed = None if block is None else block.of(layer, x)
    if packed is None:
        return linear(x, layer.weight, layer.bias)
    if isinstance(packed, Tensor):
        return onednn_product(x, packed, layer.bias)
    rows = x.reshape(-1, layer.in_features).float()
    product = torch.ops.quantized.linear_dynamic_fp16(rows, packed).to(x.dtype)
    product = product.view(*x.shape[:-1], layer.out_features)
    return product if layer.bias is None else product + layer.bias


class PackedWeights:
    """Block in which the layers of a CPU multiply, without gradients, by packed copies of their weights.

    A block may be entered many times; each layer compares its copy with its weight at its first use. The copies stay
    for later blocks. Other threads are not affected.

    >>> layer, packed = nn.Linear(2, 3), PackedWeights()
    >>> for _ in range(2):
    ...     with packed, torch.inference_mode():
    ...         y = linear_layer(layer, torch.zeros(1, 2))
    """

    def __init__(self) -> None:
        self._checked: dict[int, PackedWeight | None] = {}
        self._before: list[PackedWeights | None] = []

    def __enter__(self) -> Self:
        self._before.append(getattr(_here, "block", None))
        _here.block = self
        return self

    def __exit__(self, *_: object) -> None:
        _here.block = self._before.pop()

    def of(self, layer: nn.Linear, x: Tensor) -> PackedWeight | None:
        """Return the packed weight of a layer; None if it is not to be used for `x`."""
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or is_transformed():
            return None
        if not x.is_cpu or type(x) is not Tensor:
            return None
        n_rows = (processor.this.choices.packed_rows or 1) if x.dtype == torch.float32 else 1
        if x.dtype != layer.weight.dtype or x.numel() < n_rows * layer.in_features:
            return None
        if id(layer) not in self._checked:
            self._checked[id(layer)] = _pack(layer) if is_plain(x, layer.weight) else None
        return self._checked[id(layer)]


def forget_packed(network: nn.Module) -> None:
    """Free the packed copies of the weights of a network, for example because they are about to change."""
    with _lock:
        for module in network.modules():
            if isinstance(module, nn.Linear):
                _packed.pop(module, None)


def _identity(weight: Tensor) -> tuple[Any, ...]:
    """Return the address of a weight, and sums of its bits that change with its values and with their order.

    PyTorch's counter of changes does not count those through `weight.data`. Sums of integers are exact and fast.
    """
    bits = weight.view(torch.int64)
    sums = (bits.sum(dim=1), bits.sum(dim=0))
    return weight.data_ptr(), weight.dtype, *(int((x * torch.arange(1, len(x) + 1)).sum()) for x in sums)


def _pack(layer: nn.Linear) -> PackedWeight | None:
    """Return the packed weight; None for a weight that is not packed, and beyond `MAX_PACKED_BYTES`."""
    weight, here = layer.weight.detach(), processor.this
    is_packed = {
        torch.float32: here.choices.packed_rows is not None,
        torch.float16: here.choices.packs_float16 and here.packs_float16,
        torch.bfloat16: here.choices.bfloat16 and here.packs_bfloat16,
    }
    if weight.numel() < MIN_PACKED or not weight.is_contiguous() or not is_packed.get(weight.dtype):
        return None
    if any(n * weight.element_size() % 8 for n in (layer.in_features, weight.storage_offset())):
        return None  # `_identity` reads 8 bytes at a time
    with _lock:
        identity, found = _identity(weight), _packed.pop(layer, None)
        if found is None or found[0] != identity:
            if sum(one.weight.nbytes for one in _packed) + weight.nbytes > MAX_PACKED_BYTES:
                return None
            if weight.dtype == torch.float16:
                packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None)
            else:
                packed = torch.ops.mkldnn._reorder_linear_weight(weight)
            found = identity, packed
        _packed[layer] = found
        return found[1]
