"""Linear products on a CPU: wide ones in bfloat16, those of packed weights by oneDNN, and those of int8 weights."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from glassformer.kernels import processor

MIN_WIDE, WIDE_PART = 1 << 14, 1 << 12
"""Outputs from which the gradient of a weight is computed in parts in bfloat16, and outputs of a part."""
MAX_INT8_ROWS = 16
INT8_UNIT = 32
"""The kernel for few rows reads so many weights at once, also beyond the end of a row."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b, (…, in) → (…, out), for `weight` (out, in), as `F.linear` does.

    >>> linear(torch.ones(1, 2), torch.tensor([[1.0, 2.0]]))
    tensor([[3.]])
    """
    is_wide = bias is None and len(weight) >= MIN_WIDE and processor.this.choices.split_gradients
    if is_wide and _is_cast_to_bfloat16(x, weight):
        wide: Tensor = _WideLinear.apply(x.bfloat16(), weight.bfloat16())
        return wide
    return F.linear(x, weight, bias)


def is_transformed() -> bool:
    """Return True in `torch.compile` and `torch.func`, which need PyTorch's own operations for forward and backward."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def is_plain(x: Tensor, weight: Tensor) -> bool:
    """Return True for tensors of a CPU that oneDNN can read: neither traced nor distributed."""
    has_plain_types = type(x) in (Tensor, nn.Parameter) and type(weight) in (Tensor, nn.Parameter)
    return has_plain_types and x.device.type == weight.device.type == "cpu" and not is_transformed()


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b by oneDNN, without a gradient; the weight is plain or packed."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _is_cast_to_bfloat16(x: Tensor, weight: Tensor) -> bool:
    """Return True if autocast casts the operands of a product with gradients to bfloat16, on a CPU."""
    is_cast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return is_cast and torch.is_grad_enabled() and is_plain(x, weight)


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
        of_x = of_weight = None
        if needs_x:
            of_x = grad @ weight
        if needs_weight:
            grad_rows, x_rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
            of_weight = torch.empty_like(weight)
            for begin in range(0, len(weight), WIDE_PART):
                part = slice(begin, begin + WIDE_PART)
                torch.mm(grad_rows[:, part].T, x_rows, out=of_weight[part])
        return of_x, of_weight


# Weights in int8: one integer per weight, and a scale per row


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integers q of a weight (out, in) and the scales s of its rows: w ≈ s · q.

    s is the largest absolute weight of a row / 127 in bfloat16, and q the nearest integer to w / s.

    >>> quantize(torch.tensor([[127.0, -2.0]]))
    (tensor([[127,  -2]], dtype=torch.int8), tensor([1.], dtype=torch.bfloat16))
    """
    weight = weight.detach().float()
    scales = (weight.abs().amax(dim=1) / 127).clamp(min=1e-30).bfloat16()
    integers = (weight / scales[:, None].float()).round().clamp(-127, 127).to(torch.int8)
    return integers, scales


def int8_linear(x: Tensor, integers: Tensor, scales: Tensor) -> Tensor:
    """Return x (s · q)ᵀ, (…, in) → (…, out), in bfloat16.

    On a CPU, products of few rows read the integers themselves (`torch._weight_int8pack_mm`).
    """
    n_in = integers.shape[1]
    rows = x.reshape(-1, n_in).bfloat16()
    if x.is_cpu and rows.shape[0] <= MAX_INT8_ROWS and n_in % INT8_UNIT == 0:
        product = torch._weight_int8pack_mm(rows.contiguous(), integers, scales)
    else:
        product = F.linear(rows, integers.bfloat16()) * scales
    return product.view(*x.shape[:-1], len(integers))
