"""Linear products on a CPU: those of a large vocabulary, of packed weights, and of int8 weights."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.kernels import processor

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
    is_wide = bias is None and len(weight) >= MIN_WIDE and x.numel() > 0
    if is_wide and torch.is_grad_enabled() and is_plain(x, weight):
        choices, is_autocast = processor.this.choices, torch.is_autocast_enabled("cpu")
        product: Tensor
        if choices.wide_bfloat16 and is_autocast and torch.get_autocast_dtype("cpu") == torch.bfloat16:
            product = _WideLinear.apply(x.bfloat16(), weight.bfloat16())
            return product
        if choices.wide_fp32 and not is_autocast and x.dtype == weight.dtype == torch.float32:
            product = _WideLinear.apply(x, weight)
            return product
    if x.dtype == weight.dtype == torch.float16 and _converts_half(x, weight):
        bias = None if bias is None else bias.float()
        return F.linear(x.float(), weight.float(), bias).half()
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


def _converts_half(x: Tensor, weight: Tensor) -> bool:
    has_many_rows = x.numel() > MAX_HALF_ROWS * weight.shape[1]
    return has_many_rows and processor.this.choices.half_by_fp32 and is_plain(x, weight)


class _WideLinear(torch.autograd.Function):
    """The product x Wᵀ for a large vocabulary.

    In fp32, oneDNN takes two thirds of the time of MKL forward, and more backward. In bfloat16, oneDNN computes the
    gradient of W in parts in two thirds of the time.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn_product(x, weight) if x.dtype == torch.float32 else F.linear(x, weight)

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
    if x.dtype == torch.float32 or torch.is_grad_enabled():  # gradients of gradients need one product
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
