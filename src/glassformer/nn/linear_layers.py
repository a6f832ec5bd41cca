"""Linear layers, y = x Wᵀ + b, also with stacked matrices."""

from collections.abc import Sequence

import torch
from torch import nn

from glassformer.nn.kernels.packed import linear_layer


class Linear(nn.Linear):
    """`nn.Linear`, y = x Wᵀ + b.

    `linear_layer` equals `F.linear(x, self.weight, self.bias)` up to rounding, so that a reader may stop there; it
    calls the fastest library of the processor.
    """

    parts: tuple[int, ...] = ()
    """Numbers of outputs of the matrices that are stacked in the weight; empty for one matrix."""

    forward = linear_layer  # type: ignore[assignment]


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
