"""Linear products on a CPU: those of a large vocabulary, of packed weights, and of int8 weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.kernels import processor

MIN_PRODUCTS, MIN_WEIGHTS = 1 << 22, 1 << 20
"""Size of a product in fp32, or of its weight, from which oneDNN saves more time than its call takes."""
MIN_WIDE, WIDE_PART = 1 << 14, 1 << 12
"""Outputs of a wide layer, and outputs of a part for its gradient in bfloat16."""
MAX_HALF_ROWS = 16
"""Rows up to which PyTorch's product in float16 is faster than one in fp32 with a converted weight."""
MAX_INT8_ROWS = 8
INT8_UNIT = 32
"""The kernel for few rows reads so many weights at once, also beyond the end of a row."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b, (…, in) → (…, out), for `weight` (out, in): `F.linear`, or a faster product of equal value.

    A wide layer has kernels of its own. In float16, PyTorch reads the weight once per row, which is fast for few rows;
    a product of many rows is computed in fp32.

    >>> linear(torch.ones(1, 2), torch.tensor([[1.0, 2.0]]))
    tensor([[3.]])
    """
    if not is_plain(x, weight) or not x.numel():
        return F.linear(x, weight, bias)
    choices, is_autocast = processor.this.choices, torch.is_autocast_enabled("cpu")
    is_wide = bias is None and len(weight) >= MIN_WIDE and torch.is_grad_enabled()
    product: Tensor
    if is_autocast:
        is_cast = torch.get_autocast_dtype("cpu") == torch.bfloat16
        if is_wide and is_cast and choices.wide_bfloat16:
            product = _WideLinear.apply(x.bfloat16(), weight.bfloat16())
            return product
    elif x.dtype == weight.dtype == torch.float32:
        is_large = weight.numel() >= MIN_WEIGHTS or x.numel() * len(weight) >= MIN_PRODUCTS
        if (is_large and choices.onednn_fp32) or (is_wide and choices.wide_fp32):
            product = _OneDnnLinear.apply(x, weight, bias, choices.onednn_fp32)
            return product
    elif x.dtype == weight.dtype == torch.float16:
        has_many_rows = x.numel() > MAX_HALF_ROWS * weight.shape[1]
        if has_many_rows and choices.half_by_fp32:
            return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).half()
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


class _OneDnnLinear(torch.autograd.Function):
    """x Wᵀ + b in fp32 by oneDNN; the products of the backward pass are by oneDNN or by MKL."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, is_backward_by_onednn: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias, ctx.is_backward_by_onednn = bias is not None, is_backward_by_onednn
        return onednn_product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        multiply: Callable[[Tensor, Tensor], Tensor] = F.linear
        if ctx.is_backward_by_onednn and not torch.is_grad_enabled():  # gradients of gradients need F.linear
            multiply = onednn_product
        grad_rows, x_rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        of_x = of_weight = of_bias = None
        if needs_x:
            of_x = multiply(grad, weight.T)
        if needs_weight:
            of_weight = multiply(grad_rows.T, x_rows.T)
        if needs_bias and ctx.has_bias:
            of_bias = grad_rows.sum(dim=0)
        return of_x, of_weight, of_bias, None


class _WideLinear(torch.autograd.Function):
    """x Wᵀ in bfloat16 for a large vocabulary: oneDNN computes the gradient of W in parts in two thirds of the time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        of_x = of_weight = None
        if needs_x:
            of_x = grad @ weight
        if needs_weight:
            of_weight = _wide_gradient(grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1]))
        return of_x, of_weight


def _wide_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of a wide weight, gradᵀ x, for `grad` (N, out) and `x` (N, in)."""
    if torch.is_grad_enabled():  # gradients of gradients need one product
        return grad.T @ x
    of_weight = x.new_empty(grad.shape[1], x.shape[1])
    for begin in range(0, len(of_weight), WIDE_PART):
        part = slice(begin, begin + WIDE_PART)
        torch.mm(grad[:, part].T, x, out=of_weight[part])
    return of_weight


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

    On a CPU, products of few rows read the integers themselves (`torch._weight_int8pack_mm`). Others are computed in
    fp32 if the processor has no bfloat16 instructions.
    """
    n_in = integers.shape[1]
    rows = x.reshape(-1, n_in).bfloat16()
    if x.is_cpu and rows.shape[0] <= MAX_INT8_ROWS and n_in % INT8_UNIT == 0:
        product = torch._weight_int8pack_mm(rows.contiguous(), integers, scales)
    elif x.is_cpu and not processor.this.bfloat16:
        product = (F.linear(rows.float(), integers.float()) * scales).bfloat16()
    else:
        product = F.linear(rows, integers.bfloat16()) * scales
    return product.view(*x.shape[:-1], len(integers))
