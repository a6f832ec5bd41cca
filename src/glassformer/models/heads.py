"""The base of networks, and output heads: logits over tokens or labels, or a vector per sequence."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.common.arguments import number, one_of
from glassformer.common.errors import no_attribute
from glassformer.nn.attention import capped
from glassformer.nn.layers import Activation, Linear, activation_of


class NetworkBase(nn.Module):
    """Base of the networks: their parts by the names under which readers of notebooks look for them."""

    def project(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the logits of hidden states: `head`, by its name in many notebooks."""
        return self.head(hidden, attention_mask)

    def n_parameters(self) -> int:
        """Return the number of trained parameters; a tied table counts once."""
        return sum(p.numel() for p in self.parameters())

    num_parameters = count_parameters = n_parameters

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in _INSTEAD:
                raise no_attribute("a network", name, _INSTEAD[name]) from None
            raise


_INSTEAD = {
    **dict.fromkeys(("generate", "translate", "beam_search"), "load(FOLDER).generate(text), or inference.generation"),
    **dict.fromkeys(("get_num_params", "num_params", "numel"), "n_parameters()"),
    **dict.fromkeys(("fit", "train_model"), "glassformer.train, or a loop of your own"),
    **dict.fromkeys(("lm_head", "projection_layer", "fc_out"), "network.output"),
    **dict.fromkeys(("wte", "token_embedding", "embed", "embedding", "W_E"), "network.decoder.embeddings.tokens"),
    **dict.fromkeys(("blocks", "layers", "transformer"), "network.decoder.blocks, or network.encoder.blocks"),
    **dict.fromkeys(("W_U", "unembed"), "network.output.proj"),
}
"""Names that other libraries give to parts of a network, and what to use instead."""


class TokenTransform(nn.Module):
    """Dense layer, activation and norm before the output projection, as in BERT.

    >>> TokenTransform(nn.Linear(16, 8), F.gelu, nn.LayerNorm(8))(torch.zeros(2, 5, 16)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(self, dense: nn.Linear, activation: Activation | str, norm: nn.Module) -> None:
        super().__init__()
        self.dense = dense
        self.activation = activation_of(activation)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class TokenLogits(nn.Module):
    """Head that maps hidden states to logits over the vocabulary.

    The projection `proj` may share the weight of an embedding table; this weight is one parameter with two names. If
    the input of `proj` is narrower than the model, `narrow` (or the transform) reduces the width first.

    >>> TokenLogits(16, nn.Linear(16, 100, bias=False), cap=30.0)(torch.zeros(2, 5, 16)).shape
    torch.Size([2, 5, 100])
    """

    bias: Tensor | None

    def __init__(
        self,
        d_model: int,
        proj: nn.Linear,
        *,
        transform: TokenTransform | None = None,
        bias: str = "none",
        scale: float = 1.0,
        cap: float = 0.0,
    ) -> None:
        super().__init__()
        one_of("bias", bias, ("none", "learned", "constant"))
        self.transform = transform
        self.narrow = None
        if transform is None and proj.in_features != d_model:
            self.narrow = Linear(d_model, proj.in_features, bias=False)
        self.proj = proj
        if bias == "learned":
            self.bias = nn.Parameter(torch.zeros(proj.out_features))
        elif bias == "constant":
            self.register_buffer("bias", torch.zeros(proj.out_features))
        else:
            self.register_buffer("bias", None)
        self.scale, self.cap = number("scale", scale), number("cap", cap, 0)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (…, D) to logits (…, V), bounded by `cap` (`capped`)."""
        if self.transform is not None:
            hidden = self.transform(hidden)
        if self.narrow is not None:
            hidden = self.narrow(hidden)
        if self.scale != 1:
            hidden = hidden * self.scale
        logits = self.proj(hidden)
        if self.bias is not None:
            logits = logits + self.bias
        return capped(logits, self.cap)


def vocabulary_projection(table: nn.Embedding, width: int, *, tied: bool) -> Linear:
    """Return a layer (…, width) → (…, V) for the V tokens of `table`; if `tied`, its weight is the table."""
    projection = Linear(width, table.num_embeddings, bias=False)
    if tied:
        projection.weight = table.weight
    return projection


class PositionLogits(nn.Module):
    """Head that maps the hidden states to logits over labels at every position.

    >>> PositionLogits(16, n_labels=3)(torch.zeros(2, 5, 16)).shape
    torch.Size([2, 5, 3])
    """

    def __init__(self, d_model: int, n_labels: int, transform: TokenTransform | None = None) -> None:
        super().__init__()
        self.transform = transform
        self.proj = Linear(d_model, n_labels)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (B, T, D) to logits (B, T, n_labels)."""
        if self.transform is not None:
            hidden = self.transform(hidden)
        return self.proj(hidden)


POOLINGS = ("first", "last", "mean", "max")


def pool(hidden: Tensor, attention_mask: Tensor | None, how: str) -> Tensor:
    """Pool (B, T, D) to (B, D): `how` (in `POOLINGS`) takes the first or last real token, or the mean or maximum.

    >>> pool(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]), "mean")
    tensor([[2.]])
    """
    if attention_mask is None:
        attention_mask = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    index = torch.arange(hidden.shape[1], device=hidden.device)
    rows = torch.arange(hidden.shape[0], device=hidden.device)
    if how == "first":
        return hidden[rows, attention_mask.int().argmax(dim=1)]
    if how == "last":
        return hidden[rows, (attention_mask * index).argmax(dim=1)]
    real = attention_mask[:, :, None]
    if how == "max":
        return hidden.masked_fill(~real, -torch.inf).amax(dim=1)
    return (hidden * real).sum(dim=1) / real.sum(dim=1).clamp(min=1)


@dataclass(frozen=True)
class Pooler:
    """Layers after pooling: a dense layer and a norm; without an activation, the dense layer is stored but not used.

    >>> SequenceVector("first", Pooler(nn.Linear(16, 16), torch.tanh, None))(torch.zeros(2, 5, 16)).shape
    torch.Size([2, 16])
    """

    dense: nn.Linear
    activation: Activation | str | None
    norm: nn.Module | None


class SequenceVector(nn.Module):
    """Head that maps the hidden states of a sequence to a vector: pooling, then an optional pooler and L2 norm.

    >>> vectors = SequenceVector("mean", None, normalize=True)(torch.randn(2, 5, 16))
    >>> torch.allclose(vectors.norm(dim=-1), torch.ones(2))
    True
    """

    def __init__(self, pooling: str, pooler: Pooler | None, *, normalize: bool = False) -> None:
        super().__init__()
        self.pooling = one_of("pooling", pooling, POOLINGS)
        self.pooler = self.pooler_activation = self.pooler_norm = None
        if pooler is not None:
            self.pooler, self.pooler_norm = pooler.dense, pooler.norm
            self.pooler_activation = None if pooler.activation is None else activation_of(pooler.activation)
        self.normalize = normalize

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map (B, T, D) and a mask (B, T), True = real, to (B, D)."""
        x = pool(hidden, attention_mask, self.pooling)
        if self.pooler is not None and self.pooler_activation is not None:
            x = self.pooler_activation(self.pooler(x))
        if self.pooler_norm is not None:
            x = self.pooler_norm(x)
        if self.normalize:
            x = F.normalize(x, dim=-1)
        return x


class SequenceLogits(SequenceVector):
    """Head that maps the hidden states of a sequence to logits over labels, or to a number.

    For a number, the head returns mean + std × output with `unit` = (mean, std), so the output is in standard
    deviations.

    >>> SequenceLogits("first", None, nn.Linear(16, 3))(torch.zeros(2, 5, 16)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, pooling: str, pooler: Pooler | None, proj: nn.Linear, unit: tuple[float, float] = (0.0, 1.0)
    ) -> None:
        super().__init__(pooling, pooler)
        self.unit = unit
        self.proj = proj

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map (B, T, D) and a mask (B, T), True = real, to (B, n_labels)."""
        outputs = self.proj(super().forward(hidden, attention_mask))
        if self.unit == (0.0, 1.0):
            return outputs
        mean, std = self.unit
        return mean + std * outputs.float()
