"""The small layers: linear, norms, feed-forward and embeddings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.common.arguments import function, number, one_of, takes_other_names
from glassformer.nn.boundary import described, vectors_of, wrong_activations
from glassformer.nn.kernels.linear import linear_layer, linear_layers, rms_norm_layer


class Linear(nn.Linear):
    """`nn.Linear`, y = x Wᵀ + b.

    `linear_layer` calls the fastest library of the processor. Its result equals `F.linear(x, self.weight, self.bias)`
    up to rounding, so that a reader may stop here.
    """

    parts: tuple[int, ...] = ()
    """Number of outputs of each matrix that is stacked in the weight; empty for a single matrix."""

    forward = linear_layer  # type: ignore[assignment]


@takes_other_names
def layer_norm_reference(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
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


def rms_norm_reference(x: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Compute y = x / √(mean(x²) + eps) · weight over the last axis (Zhang 2019, equation 4).

    >>> rms_norm_reference(torch.tensor([3.0, 3.0]), None, 0.0)
    tensor([1., 1.])
    """
    y = x / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def one_width(width: Any) -> int:
    """Return the width of a norm, given as a number or, as in `torch.nn`, as a shape of one number.

    >>> one_width(8), one_width((8,))
    (8, 8)
    """
    return int(
        number("width", width[0] if isinstance(width, tuple | list) and len(width) == 1 else width, 1, whole=True)
    )


class LayerNorm(nn.Module):
    """Layer normalisation (`layer_norm_reference`) with PyTorch's fused kernel; scale and shift are optional."""

    @takes_other_names
    def __init__(self, width: int, eps: float = 1e-5, weight: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.width, self.eps = one_width(width), number("eps", eps, 0)
        self.weight = nn.Parameter(torch.ones(self.width)) if weight else None
        self.bias = nn.Parameter(torch.zeros(self.width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.width:
            raise ValueError(f"x: expected width {self.width}, got {described(x)}")
        return F.layer_norm(x, (self.width,), self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}"


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (`rms_norm_reference`); the scale is optional.

    `rms_norm_layer` calls PyTorch's operator, or fewer operations of equal result up to rounding.
    """

    @takes_other_names
    def __init__(self, width: int, eps: float = 1e-5, weight: bool = True) -> None:
        super().__init__()
        self.width, self.eps = one_width(width), number("eps", eps, 0)
        self.weight = nn.Parameter(torch.ones(self.width)) if weight else None

    forward = rms_norm_layer

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}"


NormFactory = Callable[[int], nn.Module]
"""Function that returns a norm module for vectors of a given width."""


Activation = Callable[[Tensor], Tensor]


def relu2(x: Tensor) -> Tensor:
    """Compute max(0, x)² (So 2021).

    >>> import torch
    >>> relu2(torch.tensor([-1.0, 2.0]))
    tensor([0., 4.])
    """
    return x.relu().square()


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute GELU in its tanh approximation (Hendrycks 2016, section 2), as GPT-2 does.

    >>> import torch
    >>> gelu_tanh(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1588,  0.0000,  0.8412])
    """
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {f.__name__: f for f in (F.relu, F.gelu, gelu_tanh, F.silu, relu2)}


def activation_of(given: Activation | str) -> Activation:
    """Return an activation, given as a function, as a module or its class, or by its name in `ACTIVATIONS`.

    >>> activation_of("relu2") is activation_of(relu2)
    True
    """
    if isinstance(given, str):
        given = ACTIVATIONS[one_of("activation", given, ACTIVATIONS)]
    elif isinstance(given, type) and issubclass(given, nn.Module):
        given = given()
    return function("activation", given)


class FeedForward(nn.Module):
    """Feed-forward layer: down(act(up(x))) (Vaswani 2017, eq. 2), or gated: down(act(gate(x)) · up(x)) (Shazeer 2020).

    `activation` is a function or a name of `ACTIVATIONS`, GELU by default, as in `TransformerConfig`; the paper uses
    ReLU. `d_ff` is 4 · `d_model` by default.
    """

    @takes_other_names
    def __init__(
        self,
        d_model: int,
        d_ff: int | None = None,
        activation: Activation | str = F.gelu,
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.d_model, d_ff = d_model, 4 * d_model if d_ff is None else d_ff
        self.gate_proj = Linear(d_model, d_ff, bias=bias) if gated else None
        self.up_proj = Linear(d_model, d_ff, bias=bias)
        self.down_proj = Linear(d_ff, d_model, bias=bias)
        self.activation = activation_of(activation)
        self.dropout = number("dropout", dropout, 0, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate_proj = self.gate_proj
        if x.shape[-1] != self.d_model:
            raise wrong_activations("x", x, self.d_model, "d_model")
        if gate_proj is None:
            h = self.activation(self.up_proj(x))
        else:
            gate, up = linear_layers(self, (("gate_proj",), ("up_proj",)), x)
            h = self.activation(gate) * up
        if self.dropout:
            h = F.dropout(h, self.dropout, self.training)
        return self.down_proj(h)


@dataclass(frozen=True)
class EmbeddingTables:
    """The tables of an embedding layer, all of the same width; for each token, one row of each table is added."""

    tokens: nn.Embedding
    positions: nn.Module | None = None
    """Module that returns a vector for each position."""
    token_types: nn.Embedding | None = None


class Embeddings(nn.Module):
    """Embedding layer: (tokens · scale + types + positions) → norm → dropout → projection.

    The token table may be narrower than the model (`d_embedding`, Lan 2020). Then positions, types and norm have the
    width of the token table, and a projection widens the sum. During training, token dropout zeroes whole token vectors
    and scales up the other vectors (Gal 2016, "A Theoretically Grounded Application of Dropout in RNNs", section 4.2).
    Each position is dropped independently, whereas Gal drops a word at all its positions.
    """

    def __init__(
        self,
        tables: EmbeddingTables,
        d_model: int,
        *,
        norm: nn.Module | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
        token_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not isinstance(tables, EmbeddingTables):
            one = "InputEmbeddings(d_model, vocab_size) makes one table"
            raise TypeError(f"tables: expected EmbeddingTables(torch.nn.Embedding(V, D)), got {tables!r:.60}; {one}")
        self.tokens = tables.tokens
        self.positions = tables.positions
        self.token_types = tables.token_types
        self.norm = norm
        self.projection = None
        if self.tokens.embedding_dim != d_model:
            self.projection = Linear(self.tokens.embedding_dim, d_model, bias=False)
        self.scale = number("scale", scale)
        self.dropout = number("dropout", dropout, 0, 1)
        self.token_dropout = number("token_dropout", token_dropout, 0, 1)

    def forward(self, token_ids: Tensor, positions: Tensor | None = None, token_types: Tensor | None = None) -> Tensor:
        """Embed `token_ids` (B, T) at `positions` (T,) or (B, T), by default 0 to T - 1; return (B, T, d_model)."""
        x = vectors_of(self.tokens, token_ids)
        if self.token_dropout:
            x = x * F.dropout(x.new_ones(*token_ids.shape, 1), self.token_dropout, self.training)
        if self.scale != 1:
            x = x * self.scale
        if self.token_types is not None:
            if token_types is None:
                token_types = torch.zeros_like(token_ids)
            x = x + self.token_types(token_types)
        elif token_types is not None:
            raise ValueError("token_types: expected None, because this model has n_token_types 0; leave it out")
        if self.positions is not None:
            if positions is None:
                positions = torch.arange(token_ids.shape[1], device=token_ids.device)
            x = x + self.positions(positions).to(x.dtype)
        if self.norm is not None:
            x = self.norm(x)
        if self.dropout:
            x = F.dropout(x, self.dropout, self.training)
        if self.projection is not None:
            x = self.projection(x)
        return x
