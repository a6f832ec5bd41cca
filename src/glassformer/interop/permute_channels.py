"""The channels of the residual stream in another order: the same model, to the bit of its weights.

Nothing in a Transformer knows the order of these channels. What writes into the stream (tables, output projections,
norms) and what reads it (queries, keys, values, feed-forward, heads) need only agree.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from glassformer.config.transformer import SinusoidalPositions, TransformerConfig
from glassformer.interop.equivalent import Recast, Weights

ATTENTION = ("q_proj", "k_proj", "v_proj", "qkv_proj")
NORMS = ("attn_norm", "ff_norm", "out_norm", "final_norm", "embeddings.norm", "transform.norm")


def _parameters(*modules: str) -> tuple[str, ...]:
    return tuple(f"{module}.{part}" for module in modules for part in ("weight", "bias"))


TABLES = ("embeddings.tokens.weight", "positions.table.weight", "token_types.weight", "output.proj.weight")
READERS = tuple(f"{module}.weight" for module in (*ATTENTION, "gate_proj", "up_proj"))
WRITERS = (*_parameters("out_proj", "down_proj", *NORMS), "transform.dense.bias", "pooler.bias")
INSIDE_HEADS = ("transform.dense.weight", "pooler.weight")
"""They read the stream, and the projection behind them is permuted too."""
OTHERS = (
    *(f"{module}.bias" for module in (*ATTENTION, "gate_proj", "up_proj", "output", "output.proj")),
    *_parameters("q_norm", "k_norm"),
    "attn_bias.table.weight",
)
"""Of heads, inner widths, tokens and labels: the stream's channels are none of theirs."""


def permute_residual(weights: Mapping[str, Tensor], config: TransformerConfig, order: Tensor) -> dict[str, Tensor]:
    """Weights whose residual channel c is the channel `order[c]` of those given; `order` (D,) is a permutation.

    A norm's mean and variance are of all channels, so the logits stay the same, but for the order of summation.
    `ValueError` when `order` is no permutation of d_model channels, or the stream meets something that it does not
    reorder: a token table of another width, heads without an output projection.

    >>> from glassformer.config.transformer import Stack
    >>> config = TransformerConfig(decoder=Stack(n_heads=1), d_model=2)
    >>> permute_residual({"decoder.embeddings.tokens.weight": torch.tensor([[1, 2]])}, config, torch.tensor([1, 0]))
    {'decoder.embeddings.tokens.weight': tensor([[2, 1]])}
    """
    if not torch.equal(order.sort().values, torch.arange(config.d_model)):
        raise ValueError(f"the order must name each of {config.d_model} channels once")
    if config.table_width != config.d_model or not config.attn_out_proj:
        raise ValueError("tables narrower than the stream and heads that write into it as they are cannot be permuted")
    return {name: _permuted(name, x, order.to(x.device)) for name, x in weights.items()}


def _permuted(name: str, x: Tensor, order: Tensor) -> Tensor:
    if name.endswith(INSIDE_HEADS):
        return x[order][:, order]
    if name.endswith((*TABLES, *READERS)):
        return x[:, order]
    if name.endswith(WRITERS):
        return x[order]
    if name.endswith(OTHERS):
        return x
    raise ValueError(f"nothing is known of {name} and the residual stream")


def halves_order(d_model: int) -> Tensor:
    """Where each channel of sinusoids in halves stands in interleaved ones.

    >>> halves_order(6)
    tensor([0, 2, 4, 1, 3, 5])
    """
    return torch.arange(d_model).view(-1, 2).T.flatten()


def with_halves(config: TransformerConfig, weights: Weights) -> Recast:
    """The same model with all sines before all cosines, where they stand side by side."""
    if config.positions != SinusoidalPositions("interleaved"):
        return config, weights
    halves = replace(config, positions=SinusoidalPositions("halves"))
    return halves, permute_residual(weights, config, halves_order(config.d_model))
