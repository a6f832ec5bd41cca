"""Packed weights: copies of weights in the layout of the kernels of oneDNN or FBGEMM, for generation on a CPU.

A product with few rows is limited by the memory. oneDNN reads weights in fp32 and bfloat16 two to three times faster in
its own layout. FBGEMM reads packed weights in float16 and computes in fp32, without converting the whole weight. The
result equals `F.linear(x, layer.weight, layer.bias)` up to rounding, so that a reader may stop there.
"""

import threading
import weakref
from types import TracebackType
from typing import Any, NamedTuple, Self

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


class _Here(threading.local):
    """The block that is open in this thread."""

    block: "PackedWeights | None" = None


_here = _Here()
_packed: "weakref.WeakKeyDictionary[nn.Linear, _Packed]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()
"""Held while `_packed` is read or changed."""


def linear_layer(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return x Wᵀ + b of a layer: by packed weights in a block of `PackedWeights`, otherwise by `linear`."""
    block = _here.block
    packed = block.of(layer, x) if block is not None else None
    if packed is None:
        return linear(x, layer.weight, layer.bias)
    if isinstance(packed, Tensor):
        return onednn_product(x, packed, layer.bias)
    rows = x.reshape(-1, layer.in_features).float()
    product: Tensor = torch.ops.quantized.linear_dynamic_fp16(rows, packed).to(x.dtype)
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
        self._before.append(_here.block)
        _here.block = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _here.block = self._before.pop()

    def of(self, layer: nn.Linear, x: Tensor) -> PackedWeight | None:
        """Return the packed weight of a layer; None if it is not to be used for `x`."""
        if torch.is_grad_enabled() or is_transformed() or torch.is_autocast_enabled("cpu"):
            return None
        if x.dtype == torch.float32 and x.numel() < (processor.this.choices.packed_rows or 1) * layer.in_features:
            return None
        if x.dtype != layer.weight.dtype or not x.is_cpu or type(x) is not Tensor or not x.numel():
            return None
        if id(layer) not in self._checked:
            if not is_plain(x, layer.weight):
                return None
            self._checked[id(layer)] = _pack(layer)
        return self._checked[id(layer)]


def forget_packed(network: nn.Module) -> None:
    """Free the packed copies of the weights of a network, for example because they are about to change.

    >>> forget_packed(nn.Linear(2, 3))
    """
    with _lock:
        for module in network.modules():
            if isinstance(module, nn.Linear):
                _packed.pop(module, None)


class _Packed(NamedTuple):
    """A copy of a weight, and what identifies the values that were copied."""

    identity: tuple[Any, ...]
    weight: PackedWeight
    n_bytes: int


def _identity(weight: Tensor) -> tuple[Any, ...]:
    """Return the address of a weight, and sums of its bits that change with its values and with their order.

    PyTorch's counter of changes does not count those through `weight.data`. Sums of integers are exact and fast.
    """
    bits = weight.detach().view(torch.int64)
    sums = (bits.sum(dim=1), bits.sum(dim=0))
    return weight.data_ptr(), weight.dtype, *(int((x * torch.arange(1, len(x) + 1)).sum()) for x in sums)


def _pack(layer: nn.Linear) -> PackedWeight | None:
    """Return the packed weight; None for a weight that is not packed, and beyond `MAX_PACKED_BYTES`."""
    if not _can_pack(layer):
        return None
    weight = layer.weight
    n_bytes = weight.numel() * weight.element_size()
    with _lock:
        packed, identity = _packed.get(layer), _identity(weight)
        if packed is not None and packed.identity == identity:
            return packed.weight
        _packed.pop(layer, None)
        if sum(one.n_bytes for one in _packed.values()) + n_bytes > MAX_PACKED_BYTES:
            return None
        if weight.dtype == torch.float16:
            copied = torch.ops.quantized.linear_prepack_fp16(weight.detach().float(), None)
        else:
            copied = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        _packed[layer] = _Packed(identity, copied, n_bytes)
        return _packed[layer].weight


def _can_pack(layer: nn.Linear) -> bool:
    """Return True for a large weight whose layout `_identity` can read and whose type is packed here."""
    weight, choices = layer.weight, processor.this.choices
    if weight.numel() < MIN_PACKED or not weight.is_contiguous():
        return False
    n_bytes = weight.element_size()
    if layer.in_features * n_bytes % 8 or weight.storage_offset() * n_bytes % 8:
        return False
    if weight.dtype == torch.float32:
        return choices.packed_rows is not None
    if weight.dtype == torch.float16:
        return choices.packs_float16
    return weight.dtype == torch.bfloat16 and choices.packs_bfloat16
