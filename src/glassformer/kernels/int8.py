"""Products with weights in int8: one integer per weight, and a scale per row."""

import torch
from torch import Tensor
from torch.nn import functional as F

FEW_ROWS = 16
UNIT = 32
"""The kernel for few rows reads so many weights at once, also beyond the end of a row."""


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
    if x.is_cpu and rows.shape[0] <= FEW_ROWS and n_in % UNIT == 0:
        product = torch._weight_int8pack_mm(rows.contiguous(), integers, scales)
    else:
        product = F.linear(rows, integers.bfloat16()) * scales
    return product.view(*x.shape[:-1], len(integers))
