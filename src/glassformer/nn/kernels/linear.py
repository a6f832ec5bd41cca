"""Linear products on a CPU: those of a large vocabulary, and of packed weights.

The speed of a product with few rows is limited by the memory. So `PackedWeights` is a block of generation in which
layers multiply by copies of their weights in the layout of oneDNN's kernels. A copy is used only while its weight is
unchanged.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.nn.kernels import processor

MIN_PRODUCTS, MIN_WEIGHTS = 1 << 22, 1 << 20
"""Size of a product in fp32, or of its weight, from which oneDNN saves more time than its call takes."""
MIN_WIDE, WIDE_PART = 1 << 14, 1 << 12
"""Outputs of a wide layer, and outputs of a part for its gradient in bfloat16."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b, (…, in) → (…, out), for `weight` (out, in): `F.linear`, or a faster product of equal value.

    On a CPU with bfloat16 instructions, oneDNN computes all large products in fp32, with their gradients. On another
    one, it computes only the products of a wide layer, and MKL their gradients.

    >>> linear(torch.ones(1, 2), torch.tensor([[1.0, 2.0]]))
    tensor([[3.]])
    """
    if not is_plain(x, weight) or not x.numel():
        return F.linear(x, weight, bias)
    here = processor.this
    is_wide = bias is None and len(weight) >= MIN_WIDE and torch.is_grad_enabled()
    if torch.is_autocast_enabled("cpu"):
        if is_wide and here.is_fast_in_bfloat16 and torch.get_autocast_dtype("cpu") == torch.bfloat16:
            return _Product.apply(x.bfloat16(), weight.bfloat16(), None, F.linear, F.linear, _in_parts)
    elif x.dtype == weight.dtype == torch.float32:
        is_large = weight.numel() >= MIN_WEIGHTS or x.numel() * len(weight) >= MIN_PRODUCTS
        if (is_large and here.is_fast_in_bfloat16) or (is_wide and here.uses_onednn):
            for_gradients = onednn_product if here.is_fast_in_bfloat16 else F.linear
            return _Product.apply(x, weight, bias, onednn_product, for_gradients, for_gradients)
    return F.linear(x, weight, bias)


def is_transformed() -> bool:
    """Return True in `torch.compile` and `torch.func`, which need PyTorch's own operations for forward and backward."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def is_plain(x: Tensor, weight: Tensor) -> bool:
    """Return True for tensors of a CPU that oneDNN can read: neither traced nor distributed."""
    has_plain_types = type(x) in (Tensor, nn.Parameter) and type(weight) in (Tensor, nn.Parameter)
    return has_plain_types and x.device.type == weight.device.type == "cpu" and not is_transformed()


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of a linear product of `x`: its own, or that of autocast."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b by oneDNN, without a gradient; the weight is plain or packed."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _in_parts(x: Tensor, weight: Tensor) -> Tensor:
    """Return x Wᵀ for a wide `x` (N, in), some rows at a time: in bfloat16, oneDNN takes two thirds of the time."""
    product = x.new_empty(len(x), len(weight))
    for part, of_part in zip(x.split(WIDE_PART), product.split(WIDE_PART), strict=True):
        torch.mm(part, weight.T, out=of_part)
    return product


class _Product(torch.autograd.Function):
    """x Wᵀ + b by the first function; the gradients of x and of W are such products by the second and the third."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *multiply: Callable[..., Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.for_gradients = multiply[1:]
        return multiply[0](x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight = ctx.for_gradients
        if torch.is_grad_enabled():  # gradients of gradients
            for_x = for_weight = F.linear
        grad_rows, x_rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        of_x = for_x(grad, weight.T) if needs_x else None
        of_weight = for_weight(grad_rows.T, x_rows.T) if needs_weight else None
        of_bias = grad_rows.sum(dim=0) if needs_bias else None
        return of_x, of_weight, of_bias, None, None, None
