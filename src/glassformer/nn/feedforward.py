"""Position-wise feed-forward layer, plain or gated."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.nn.arguments import function, number, one_of
from glassformer.nn.linear_layers import Linear

Activation = Callable[[Tensor], Tensor]


def relu2(x: Tensor) -> Tensor:
    """Compute max(0, x)² (So 2021).

    >>> import torch
    >>> relu2(torch.tensor([-1.0, 2.0]))
    tensor([0., 4.])
    """
    return F.relu(x).square()


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute GELU in its tanh approximation (Hendrycks 2016, section 2), as GPT-2 does.

    >>> import torch
    >>> gelu_tanh(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1588,  0.0000,  0.8412])
    """
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {f.__name__: f for f in (F.relu, F.gelu, gelu_tanh, F.silu, relu2)}


def activation_of(given: Activation | str) -> Activation:
    """Return an activation, given as a function or by its name in `ACTIVATIONS`.

    >>> activation_of("relu2") is activation_of(relu2)
    True
    """
    if isinstance(given, str):
        given = ACTIVATIONS[one_of("activation", given, ACTIVATIONS)]
    return function("activation", given)


class FeedForward(nn.Module):
    """Feed-forward layer: down(act(up(x))) (Vaswani 2017, eq. 2), or gated: down(act(gate(x)) · up(x)) (Shazeer 2020).

    `activation` is a function or a name of `ACTIVATIONS`, GELU by default, as in `TransformerConfig`; the paper uses
    ReLU.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        activation: Activation | str = F.gelu,
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.gate_proj = Linear(d_model, d_ff, bias=bias) if gated else None
        self.up_proj = Linear(d_model, d_ff, bias=bias)
        self.down_proj = Linear(d_ff, d_model, bias=bias)
        self.activation = activation_of(activation)
        self.dropout = number("dropout", dropout, 0, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate_proj
        h = self.activation(self.up_proj(x)) if gate is None else self.activation(gate(x)) * self.up_proj(x)
        if self.dropout:
            h = F.dropout(h, self.dropout, self.training)
        return self.down_proj(h)
