"""Position-wise feed-forward layer, plain or gated."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.nn.linear_layers import Linear, stacked

Activation = Callable[[Tensor], Tensor]


def relu2(x: Tensor) -> Tensor:
    """Compute max(0, x)² (So 2021).

    >>> import torch
    >>> relu2(torch.tensor([-1.0, 2.0]))
    tensor([0., 4.])
    """
    return F.relu(x).square()


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute GELU in its tanh approximation (Hendrycks 2016, section 2), as GPT-2 does."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {f.__name__: f for f in (F.relu, F.gelu, gelu_tanh, F.silu, relu2)}


FUSED, APART = "gate_up_proj.", ("gate_proj.", "up_proj.")
"""Names of the layer that `FeedForward.fuse` makes, and of the two layers that it replaces."""


class FeedForward(nn.Module):
    """Feed-forward layer: down(act(up(x))) (Vaswani 2017, eq. 2), or gated: down(act(gate(x)) · up(x)) (Shazeer 2020).

    `activation` is GELU by default, as in `TransformerConfig`; the paper uses ReLU. `ACTIVATIONS` lists others by name.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        activation: Activation = F.gelu,
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.gate_proj = Linear(d_model, d_ff, bias=bias) if gated else None
        self.up_proj = Linear(d_model, d_ff, bias=bias)
        self.gate_up_proj: nn.Module | None = None
        self.down_proj = Linear(d_ff, d_model, bias=bias)
        self.activation = activation
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        if self.gate_up_proj is not None:
            gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
            h = self.activation(gate) * up
        elif self.gate_proj is None:
            h = self.activation(self.up_proj(x))
        else:
            h = self.activation(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(F.dropout(h, self.dropout, self.training))

    def fuse(self) -> None:
        """Replace the gate and up projections of a gated layer by one matrix, in place; stored names stay the same."""
        if self.gate_up_proj is not None or self.gate_proj is None:
            return
        self.gate_up_proj = stacked([self.gate_proj, self.up_proj])
        del self.gate_proj, self.up_proj
        self.register_state_dict_post_hook(_stored_apart)
        self.register_load_state_dict_pre_hook(_loaded_together)


def _stored_apart(module: nn.Module, state: dict[str, Tensor], prefix: str, metadata: object) -> None:
    """Store a fused layer as two layers: each part is a half of a tensor of the fused layer."""
    for name in [name for name in state if name.startswith(prefix + FUSED)]:
        part = name.removeprefix(prefix + FUSED)
        for half, x in zip(APART, state.pop(name).chunk(2), strict=True):
            state[prefix + half + part] = x


def _loaded_together(module: nn.Module, state: dict[str, Tensor], prefix: str, *others: object) -> None:
    """Invert `_stored_apart`."""
    gate, up = (prefix + half for half in APART)
    for name in [name for name in state if name.startswith(gate) and up + name.removeprefix(gate) in state]:
        part = name.removeprefix(gate)
        state[prefix + FUSED + part] = torch.cat([state.pop(gate + part), state.pop(up + part)])
