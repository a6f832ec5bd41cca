"""Linear layers, y = x Wᵀ + b: in fp32 or half precision, with stacked matrices, or with weights in int8."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from glassformer.kernels.linear import int8_dtype
from glassformer.kernels.packed import int8_layer, linear_layer


class Linear(nn.Linear):
    """`nn.Linear`, y = x Wᵀ + b.

    `linear_layer` equals `F.linear(x, self.weight, self.bias)` up to rounding, so that a reader may stop there; it
    calls the fastest library of the processor.
    """

    parts: tuple[int, ...] = ()
    """Numbers of outputs of the matrices that are stacked in the weight; empty for one matrix."""

    def forward(self, x: Tensor) -> Tensor:
        return linear_layer(self, x)


@torch.no_grad()
def stacked(layers: Sequence[nn.Linear]) -> Linear:
    """Return one layer whose output is that of several layers with the same input, one after the other.

    >>> first, second, x = Linear(2, 3), Linear(2, 1), torch.ones(1, 2)
    >>> torch.allclose(stacked([first, second])(x), torch.cat([first(x), second(x)], dim=1))
    True
    """
    weight, bias = layers[0].weight, layers[0].bias
    parts = tuple(layer.out_features for layer in layers)
    one = Linear(layers[0].in_features, sum(parts), bias is not None, device=weight.device, dtype=weight.dtype)
    one.parts = parts
    one.weight.copy_(torch.cat([layer.weight for layer in layers]))
    if bias is not None:
        one.bias.copy_(torch.cat([layer.bias for layer in layers]))
    return one.train(layers[0].training)


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


class Int8Linear(nn.Module):
    """Linear layer with one int8 number per weight: y = x (s · q)ᵀ + b, with a scale s per row; without gradients."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        integers, scales = quantize(base.weight)
        dtype = int8_dtype(integers.device)
        self.weight = nn.Parameter(integers, requires_grad=False)
        self.scales = nn.Parameter(scales.to(dtype), requires_grad=False)
        self.bias = None if base.bias is None else nn.Parameter(base.bias.detach().to(dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map `x` (…, in) to (…, out), in bfloat16, or in fp32 on a CPU without bfloat16 instructions."""
        y = int8_layer(self.weight, self.scales, x)
        return y if self.bias is None else y + self.bias
