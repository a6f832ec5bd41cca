"""Equal models: the same function of its inputs, in a configuration that a family of theirs has.

Each is named and exact: a scale of ones multiplies by 1, a bias of zeros adds 0. What such a model has more of is read
back as weights like others. Permuted channels are in `residual.py`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glassformer.config.transformer import TokenHead, TransformerConfig
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
    wanted = {name: x.shape for name, x in weights_of(build_model(config, "meta")).items()}
    return config, {name: weights[name] if name in weights else value(name, shape) for name, shape in wanted.items()}
