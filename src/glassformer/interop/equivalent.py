"""Equal models: the same function of its inputs, in a configuration that a family of theirs has.

Each is named and exact: a scale of ones multiplies by 1, a bias of zeros adds 0. What such a model has more of is read
back as weights like others.

The channels of the residual stream may stand in any order: nothing in a Transformer knows it. What writes into the
stream (tables, output projections, norms) and what reads it (queries, keys, values, feed-forward, heads) need only
agree; such a model is the same to the bit of its weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glassformer.config.transformer import SinusoidalPositions, TokenHead, TransformerConfig
from glassformer.models.build import build_model
from glassformer.store.model_directory import weights_of

BIASES = ("norm_bias", "qkv_bias", "attn_out_bias", "ff_bias")
SCALES_AND_BIASES = ("norm_weight", *BIASES)
"""Fields that a family which always has them holds, whatever their value: see `with_scales_and_biases`."""
Weights = dict[str, Tensor]
Recast = tuple[TransformerConfig, Weights]


def as_it_is(config: TransformerConfig, weights: Weights) -> Recast:
    """A model that needs no other form."""
    return config, weights


def with_norm_scales(config: TransformerConfig, weights: Weights) -> Recast:
    """A norm without a learned scale is one whose scale is all ones."""
    if config.norm_weight:
        return config, weights
    return _filled(replace(config, norm_weight=True, norm_bias=False), weights, lambda name, shape: torch.ones(shape))


def with_relu2_as_gate(config: TransformerConfig, weights: Weights) -> Recast:
    """A squared ReLU is a ReLU that its own input gates: relu(x)² = relu(x) · x."""
    if config.gated_ff or config.activation != "relu2":
        return config, weights
    return _gated(replace(config, gated_ff=True, activation="relu"), weights)


def with_gates_of_one(config: TransformerConfig, weights: Weights) -> Recast:
    """A feed-forward without a gate is a gated one whose other factor is 0 · x + 1: act(Wx) · 1."""
    if config.gated_ff:
        return config, weights
    config, weights = _gated(replace(config, gated_ff=True, ff_bias=True), weights)
    for name in [name for name in weights if name.endswith("ff.up_proj.weight")]:
        weights[name] = torch.zeros_like(weights[name])
        weights[name.replace("weight", "bias")] = torch.ones(weights[name].shape[0])
    return config, weights


def with_zero_biases(config: TransformerConfig, weights: Weights, *fields: str, logits: bool = False) -> Recast:
    """A layer without a bias is one whose bias is zero: the biases of these `fields`, and of the `logits`."""
    switched_on: dict[str, Any] = dict.fromkeys(fields, True)
    wanted = replace(config, **switched_on)
    if logits and isinstance(wanted.head, TokenHead):
        wanted = replace(wanted, head=replace(wanted.head, bias="learned"))
    return _filled(wanted, weights, lambda name, shape: torch.zeros(shape)) if wanted != config else (config, weights)


def with_scales_and_biases(config: TransformerConfig, weights: Weights) -> Recast:
    """Norms, attention and feed-forward with every scale and bias: ones and zeros where the model has none."""
    return with_zero_biases(*with_norm_scales(config, weights), *BIASES)


def _gated(config: TransformerConfig, weights: Weights) -> Recast:
    """The projection upwards twice, as the gate too; biases that were not there are zeros."""

    def filling(name: str, shape: torch.Size) -> Tensor:
        source = name.replace("gate_proj", "up_proj")
        return weights[source].clone() if source in weights else torch.zeros(shape)

    return _filled(config, weights, filling)


def _filled(config: TransformerConfig, weights: Weights, value: Callable[[str, torch.Size], Tensor]) -> Recast:
    """Weights for a configuration that has more tensors: what is missing is filled in."""
    wanted = shapes_of(config)
    return config, {name: weights[name] if name in weights else value(name, shape) for name, shape in wanted.items()}


def shapes_of(config: TransformerConfig) -> dict[str, torch.Size]:
    """The shape of every tensor of ours."""
    return {name: x.shape for name, x in weights_of(build_model(config, "meta")).items()}


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
    "score_bias.table.weight",
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
