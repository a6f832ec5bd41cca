"""LayerNorm and RMSNorm: fused modules and their reference formulas."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.nn.arguments import number


def layer_norm_reference(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Compute y = (x - mean) / √(var + eps) · weight + bias over the last axis (Ba 2016, equations 3 and 4).

    The variance is the biased one (divided by the width), and eps is added inside the root.

    >>> layer_norm_reference(torch.tensor([1.0, 3.0]), None, None, 0.0)
    tensor([-1.,  1.])
    """
    mean = x.mean(dim=-1, keepdim=True)
    variance = (x - mean).square().mean(dim=-1, keepdim=True)
    y = (x - mean) / torch.sqrt(variance + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rms_norm_reference(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Compute y = x / √(mean(x²) + eps) · weight over the last axis (Zhang 2019, equation 4).

    >>> rms_norm_reference(torch.tensor([3.0, 3.0]), None, 0.0)
    tensor([1., 1.])
    """
    y = x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return y if weight is None else y * weight


class LayerNorm(nn.Module):
    """Layer normalisation (`layer_norm_reference`) with PyTorch's fused kernel; scale and shift are optional."""

    def __init__(self, width: int, eps: float = 1e-5, weight: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.width, self.eps = width, number("eps", eps, 0)
        self.weight = nn.Parameter(torch.ones(width)) if weight else None
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.width,), self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}"


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (`rms_norm_reference`) with PyTorch's operator; the scale is optional."""

    def __init__(self, width: int, eps: float = 1e-5, weight: bool = True) -> None:
        super().__init__()
        self.width, self.eps = width, number("eps", eps, 0)
        self.weight = nn.Parameter(torch.ones(width)) if weight else None

    def forward(self, x: Tensor) -> Tensor:
        # Under autocast, x may have a lower precision than the weight; the fused operator needs equal dtypes.
        weight = self.weight
        return torch.rms_norm(x, (self.width,), None if weight is None else weight.to(x.dtype), self.eps)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}"


NormFactory = Callable[[int], nn.Module]
"""Function that makes the chosen norm for a width."""
