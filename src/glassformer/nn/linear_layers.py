"""Linear layers on a CPU: the same products as `nn.Linear`, by the fastest library that PyTorch contains.

PyTorch multiplies in fp32 with MKL, which on AMD processors takes twice the time of oneDNN, its other library
(`docs/log.md` has the times). And a product with few rows, as in generation, is limited by the memory: oneDNN reads
weights two to three times faster in its own layout, into which `PackedWeights` copies them.
"""

import threading
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from glassformer.nn import processor

MIN_PRODUCTS, MIN_WEIGHTS = 1 << 22, 1 << 20
"""Size of a product in fp32, or of its weight, from which oneDNN saves more time than its call takes."""
MIN_WIDE, WIDE_PART = 1 << 14, 1 << 12
"""Outputs from which the gradient of a weight is computed in parts in bfloat16, and outputs of a part."""
MIN_PACKED = 1 << 17
"""Number of weights from which a layer is packed; smaller ones stay in the cache of the processor."""
MAX_PACKED_BYTES = 2 << 30
"""Packed weights are copies: of a larger network, only the first layers are packed."""
MAX_PLAIN_ROWS = 2
"""Up to this number of rows, MKL multiplies in fp32 faster than packed weights, unless oneDNN is preferred
(`docs/log.md`)."""


class Linear(nn.Linear):
    """`nn.Linear`, y = x Wᵀ + b, with `linear` as its product; in a block of `PackedWeights`, with packed weights."""

    def forward(self, x: Tensor) -> Tensor:
        block = _here.block
        if block is not None and (packed := block.of(self, x)) is not None:
            return _product(x, packed, self.bias)
        return linear(x, self.weight, self.bias)


@torch.no_grad()
def stacked(layers: Sequence[nn.Linear]) -> Linear:
    """Return one layer whose output is that of several layers with the same input, one after the other.

    >>> first, second, x = Linear(2, 3), Linear(2, 1), torch.ones(1, 2)
    >>> torch.allclose(stacked([first, second])(x), torch.cat([first(x), second(x)], dim=1))
    True
    """
    weight, bias = layers[0].weight, layers[0].bias
    n_out = sum(layer.out_features for layer in layers)
    one = Linear(layers[0].in_features, n_out, bias is not None, device=weight.device, dtype=weight.dtype)
    one.weight.copy_(torch.cat([layer.weight for layer in layers]))
    if bias is not None:
        one.bias.copy_(torch.cat([layer.bias for layer in layers]))
    return one.train(layers[0].training)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b, (…, in) → (…, out), for `weight` (out, in): `F.linear`, by oneDNN where that is faster.

    >>> linear(torch.ones(1, 2), torch.tensor([[1.0, 2.0]]))
    tensor([[3.]])
    """
    is_large = weight.numel() >= MIN_WEIGHTS or x.numel() * len(weight) >= MIN_PRODUCTS
    if (
        is_large
        and x.numel()
        and x.dtype == weight.dtype == torch.float32
        and _on_plain_cpu(x, weight)
        and processor.this.prefers_onednn
    ):
        found: Tensor = _OneDnnLinear.apply(x, weight, bias)
        return found
    if bias is None and len(weight) >= MIN_WIDE and _is_cast_to_bfloat16(x, weight):
        wide: Tensor = _WideLinear.apply(x.bfloat16(), weight.bfloat16())
        return wide
    return F.linear(x, weight, bias)


def _on_plain_cpu(x: Tensor, weight: Tensor) -> bool:
    """Return True for tensors that oneDNN can read: not traced, not distributed, and not cast by autocast."""
    return _is_plain(x, weight) and not torch.is_autocast_enabled("cpu")


def _is_cast_to_bfloat16(x: Tensor, weight: Tensor) -> bool:
    """Return True if autocast casts the operands of a product with gradients to bfloat16, on a CPU."""
    is_cast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return is_cast and torch.is_grad_enabled() and _is_plain(x, weight)


def _is_plain(x: Tensor, weight: Tensor) -> bool:
    is_plain = type(x) in (Tensor, nn.Parameter) and type(weight) in (Tensor, nn.Parameter)
    return is_plain and x.device.type == weight.device.type == "cpu" and not is_transformed()


def is_transformed() -> bool:
    """Return True in `torch.compile` and `torch.func`, which need PyTorch's own operations for forward and backward."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


class _OneDnnLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows, of_rows = (of.reshape(-1, of.shape[-1]) for of in (grad, x))
        multiply = F.linear if torch.is_grad_enabled() else _product  # gradients of gradients need F.linear
        return (
            multiply(grad, weight.T) if needs_x else None,
            multiply(rows.T, of_rows.T) if needs_weight else None,
            rows.sum(dim=0) if needs_bias and ctx.has_bias else None,
        )


class _WideLinear(torch.autograd.Function):
    """x Wᵀ in bfloat16 for a large vocabulary: oneDNN computes the gradient of W in parts in two thirds of the time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        of_x = grad @ weight if needs_x else None
        if not needs_weight:
            return of_x, None
        rows, of_rows = (of.reshape(-1, of.shape[-1]) for of in (grad, x))
        of_weight = torch.empty_like(weight)
        for begin in range(0, len(weight), WIDE_PART):
            part = slice(begin, begin + WIDE_PART)
            torch.mm(rows[:, part].T, of_rows, out=of_weight[part])
        return of_x, of_weight


# Packed weights


class _Here(threading.local):
    """The block that is open in this thread."""

    block: "PackedWeights | None" = None


_here = _Here()
_packed: "weakref.WeakKeyDictionary[Linear, _Packed]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()
"""Held while `_packed` is read or changed."""


class _Packed:
    """A copy of a weight in the layout of oneDNN, and what identifies the values that were copied."""

    def __init__(self, weight: Tensor) -> None:
        self.identity = _identity(weight)
        self.tensor: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self.n_bytes = weight.numel() * weight.element_size()


def _identity(weight: Tensor) -> tuple[Any, ...]:
    """Return the place of a weight, and sums of its bits that change with its values and with their order.

    PyTorch's counter of changes does not count those through `weight.data`. Sums of integers are exact and fast.
    """
    bits = weight.detach().view(torch.int64)
    sums = (bits.sum(dim=1), bits.sum(dim=0))
    return weight.data_ptr(), weight.dtype, *(int((x * torch.arange(1, len(x) + 1)).sum()) for x in sums)


class PackedWeights:
    """Block in which `Linear` layers of a CPU multiply, without gradients, by packed copies of their weights.

    A block may be entered many times; each layer compares its copy with its weight at its first use. The copies stay
    for later blocks. Other threads are not affected.

    >>> layer, packed = Linear(2, 3), PackedWeights()
    >>> for _ in range(2):
    ...     with packed, torch.inference_mode():
    ...         found = layer(torch.zeros(1, 2))
    """

    def __init__(self) -> None:
        self._checked: dict[int, Tensor | None] = {}
        self._before: list[PackedWeights | None] = []

    def __enter__(self) -> Self:
        self._before.append(_here.block)
        _here.block = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _here.block = self._before.pop()

    def of(self, layer: Linear, x: Tensor) -> Tensor | None:
        """Return the packed weight of a layer; None if it is not to be used for `x`."""
        if torch.is_grad_enabled() or is_transformed() or torch.is_autocast_enabled("cpu"):
            return None
        has_few_rows = x.numel() <= MAX_PLAIN_ROWS * layer.in_features
        if has_few_rows and x.dtype == torch.float32 and processor.this.has_mkl and not processor.this.prefers_onednn:
            return None
        if id(layer) not in self._checked:
            if x.dtype != layer.weight.dtype or not _is_plain(x, layer.weight):
                return None
            self._checked[id(layer)] = _pack(layer)
        packed = self._checked[id(layer)]
        is_fit = packed is not None and x.dtype == packed.dtype and x.is_cpu and type(x) is Tensor and x.numel()
        return packed if is_fit else None


def forget_packed(network: nn.Module) -> None:
    """Free the packed copies of the weights of a network, for example because they are about to change.

    >>> forget_packed(Linear(2, 3))
    """
    with _lock:
        for module in network.modules():
            if isinstance(module, Linear):
                _packed.pop(module, None)


def _pack(layer: Linear) -> Tensor | None:
    """Return the packed weight; None for a small weight, and beyond `MAX_PACKED_BYTES`."""
    weight = layer.weight
    n_bytes = weight.numel() * weight.element_size()
    places = (layer.in_features, weight.storage_offset())
    is_fit = weight.is_contiguous() and all(n * weight.element_size() % 8 == 0 for n in places)  # for `_identity`
    if not is_fit or weight.numel() < MIN_PACKED or weight.dtype not in (torch.float32, torch.bfloat16):
        return None
    this = processor.this
    if not this.has_onednn or (weight.dtype == torch.bfloat16 and not this.packs_bfloat16):
        return None
    with _lock:
        found = _packed.get(layer)
        if found is not None and found.identity == _identity(weight):
            return found.tensor
        _packed.pop(layer, None)
        if sum(one.n_bytes for one in _packed.values()) + n_bytes > MAX_PACKED_BYTES:
            return None
        _packed[layer] = found = _Packed(weight)
        return found.tensor
