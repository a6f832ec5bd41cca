"""Equivalent models: the same outputs, in a configuration that a model family of transformers supports.

`differences` lists the settings in which two configurations compute different outputs.

Each rewrite is exact: a scale of ones multiplies by 1, a bias of zeros adds 0. An import reads both as weights.

The order of the residual channels does not affect the outputs of a Transformer. It must only be the same in modules
that write into the residual stream (tables, output projections, norms) and in modules that read it (queries, keys,
values, feed-forward, heads). A permutation moves the weights and does not change their bits.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glassformer.config.transformer import SinusoidalPositions, Stack, TokenHead, TransformerConfig
from glassformer.models.build import build_model
from glassformer.store.model_directory import weights_of

BIASES = ("norm_bias", "qkv_bias", "attn_out_bias", "ff_bias")
Weights = dict[str, Tensor]
Recast = tuple[TransformerConfig, Weights]


def as_it_is(config: TransformerConfig, weights: Weights) -> Recast:
    """Return the model unchanged."""
    return config, weights


def with_norm_scales(config: TransformerConfig, weights: Weights) -> Recast:
    """Give norms without a learned scale a scale of ones."""
    if config.norm_weight:
        return config, weights
    return _filled(replace(config, norm_weight=True, norm_bias=False), weights, lambda name, shape: torch.ones(shape))


def with_relu2_as_gate(config: TransformerConfig, weights: Weights) -> Recast:
    """Rewrite a squared ReLU as a ReLU that is gated by its own input: relu(x)² = relu(x) · x.

    A model whose head has a transform stays unchanged, because its transform uses the same activation without a gate.
    """
    if config.gated_ff or config.activation != "relu2" or getattr(config.head, "transform", False):
        return config, weights
    return _gated(replace(config, gated_ff=True, activation="relu"), weights)


def with_gates_of_one(config: TransformerConfig, weights: Weights) -> Recast:
    """Rewrite a feed-forward layer without a gate as a gated one, act(Wx) · (0 · x + 1)."""
    if config.gated_ff:
        return config, weights
    config, weights = _gated(replace(config, gated_ff=True, ff_bias=True), weights)
    for name in [name for name in weights if name.endswith("ff.up_proj.weight")]:
        weights[name] = torch.zeros_like(weights[name])
        weights[name.replace("weight", "bias")] = torch.ones(weights[name].shape[0])
    return config, weights


def with_zero_biases(config: TransformerConfig, weights: Weights, *fields: str, logits: bool = False) -> Recast:
    """Add biases of zeros to the layers of these `fields`, and to the logits if `logits` is true."""
    switched_on: dict[str, Any] = dict.fromkeys(fields, True)
    wanted = replace(config, **switched_on)
    if logits and isinstance(wanted.head, TokenHead):
        wanted = replace(wanted, head=replace(wanted.head, bias="learned"))
    return _filled(wanted, weights, lambda name, shape: torch.zeros(shape))


def with_equal_biases(config: TransformerConfig, weights: Weights, *fields: str) -> Recast:
    """Add zero biases to the layers of all `fields` if one of these has biases: some families have one key for all."""
    if not any(getattr(config, name) for name in fields):
        return config, weights
    return with_zero_biases(config, weights, *fields)


def with_scales_and_biases(config: TransformerConfig, weights: Weights, *fields: str, logits: bool = False) -> Recast:
    """Add the missing scales of norms (ones), and biases of zeros to the layers of `fields`; see `with_zero_biases`.

    By default, `fields` are those of norms, attention and feed-forward.
    """
    return with_zero_biases(*with_norm_scales(config, weights), *(fields or BIASES), logits=logits)


def _gated(config: TransformerConfig, weights: Weights) -> Recast:
    """Use a copy of the up projection as the gate; missing biases are zeros."""

    def filling(name: str, shape: torch.Size) -> Tensor:
        source = name.replace("gate_proj", "up_proj")
        return weights[source].clone() if source in weights else torch.zeros(shape)

    return _filled(config, weights, filling)


def _filled(config: TransformerConfig, weights: Weights, value: Callable[[str, torch.Size], Tensor]) -> Recast:
    """Add the tensors of the configuration that are missing in the weights; `value` returns their contents."""
    missing = {name: value(name, shape) for name, shape in shapes_of(config).items() if name not in weights}
    return config, weights | missing


def shapes_of(config: TransformerConfig) -> dict[str, torch.Size]:
    """Return the shape of every tensor of a model with this configuration."""
    return {name: x.shape for name, x in without_values(config).items()}


@functools.lru_cache(maxsize=16)  # an export asks every family about the same configuration
def without_values(config: TransformerConfig) -> Weights:
    """Return the tensors of a model with this configuration, on the meta device."""
    return weights_of(build_model(config, "meta"))


ATTENTION = ("q_proj", "k_proj", "v_proj", "qkv_proj")
NORMS = ("attn_norm", "ff_norm", "out_norm", "final_norm", "embeddings.norm", "transform.norm", "pooler_norm")


def _parameters(*modules: str) -> tuple[str, ...]:
    return tuple(f"{module}.{part}" for module in modules for part in ("weight", "bias"))


TABLES = ("embeddings.tokens.weight", "positions.table.weight", "token_types.weight", "output.proj.weight")
READERS = tuple(f"{module}.weight" for module in (*ATTENTION, "gate_proj", "up_proj"))
WRITERS = (*_parameters("out_proj", "down_proj", *NORMS), "transform.dense.bias", "pooler.bias")
INSIDE_HEADS = ("transform.dense.weight", "pooler.weight")
"""Matrices whose inputs and outputs are both permuted: they read the stream, and a permuted projection reads them."""
OTHERS = (
    *(f"{module}.bias" for module in (*ATTENTION, "gate_proj", "up_proj", "output", "output.proj")),
    *_parameters("q_norm", "k_norm"),
    "score_bias.table.weight",
)
"""Tensors over heads, inner widths, tokens or labels, without a dimension of residual channels."""


def permute_residual(weights: Mapping[str, Tensor], config: TransformerConfig, order: Tensor) -> dict[str, Tensor]:
    """Permute the residual channels: channel c of the result is channel `order[c]` of `weights`; `order` is (D,).

    Norms average over all channels, so the logits stay the same up to the order of summation. Raises `ValueError` if
    `order` is not a permutation of the d_model channels, or if a part of the model cannot be permuted: a
    token table of another width, attention without an output projection, or experts.

    >>> from glassformer.config.transformer import Stack
    >>> config = TransformerConfig(decoder=Stack(n_heads=1), d_model=2)
    >>> permute_residual({"decoder.embeddings.tokens.weight": torch.tensor([[1, 2]])}, config, torch.tensor([1, 0]))
    {'decoder.embeddings.tokens.weight': tensor([[2, 1]])}
    """
    if not torch.equal(order.sort().values, torch.arange(config.d_model)):
        raise ValueError(f"order: expected a permutation of {config.d_model} channels")
    if not _may_permute(config):
        raise ValueError("cannot permute channels: the model needs d_embedding = d_model and no experts")
    return {name: _permuted(name, x, order.to(x.device)) for name, x in weights.items()}


def _may_permute(config: TransformerConfig) -> bool:
    return config.table_width == config.d_model and config.experts is None


def _permuted(name: str, x: Tensor, order: Tensor) -> Tensor:
    if name.endswith(INSIDE_HEADS):
        return x[order][:, order]
    if name.endswith((*TABLES, *READERS)):
        return x[:, order]
    if name.endswith(WRITERS):
        return x[order]
    if name.endswith(OTHERS):
        return x
    raise ValueError(f"{name}: no rule for its residual channels")


def halves_order(d_model: int) -> Tensor:
    """Return, for each channel of sinusoids in halves, its channel in interleaved sinusoids.

    >>> halves_order(6)
    tensor([0, 2, 4, 1, 3, 5])
    """
    return torch.arange(d_model).view(-1, 2).T.flatten()


def with_halves(config: TransformerConfig, weights: Weights) -> Recast:
    """Permute a model with interleaved sinusoids, so that all sines come before all cosines."""
    positions = config.positions
    if not isinstance(positions, SinusoidalPositions) or positions.layout == "halves" or not _may_permute(config):
        return config, weights
    halves = replace(config, positions=replace(positions, layout="halves"))
    return halves, permute_residual(weights, config, halves_order(config.d_model))


CHANGES_NO_FORWARD = """
init token_dropout embedding_dropout residual_dropout attention_dropout ff_dropout
vocab_size max_len pad_id bos_id eos_id unk_id mask_id decoder_start_id
"""
"""Fields that every program supports, or that only affect training."""


def stack_misfits(config: TransformerConfig, expected: Collection[str]) -> list[str]:
    """Return a sentence for each `expected` stack that a configuration lacks, and for each other stack that it has.

    >>> stack_misfits(TransformerConfig(decoder=Stack()), ["encoder"])
    ['the model has no encoder', 'the model has a decoder']
    """
    articles = {"encoder": "an encoder", "decoder": "a decoder"}
    missing = [f"the model has no {name}" for name in articles if name in expected and name not in config.stacks]
    return missing + [f"the model has {articles[name]}" for name in config.stacks if name not in expected]


def differences(ours: TransformerConfig, theirs: dict[str, Any]) -> list[str]:
    """Return a sentence for each setting of a configuration that changes outputs and is different in `theirs`.

    `theirs` has fields of a configuration with the same stacks. A missing field has its default.

    >>> differences(TransformerConfig(decoder=Stack(), qk_norm=True), {"decoder": Stack()})
    ['model.qk_norm: expected false, got true']
    """
    defaults = {field.name: field.default for field in dataclasses.fields(ours)}
    stated, expected = _flat(vars(ours)), _flat(defaults | theirs)
    effective, wanted = _effective(stated), _effective(expected)
    different = [name for name, value in effective.items() if name in wanted and wanted[name] != value]
    sentences = [f"model.{n}: expected {_formatted(expected[n])}, got {_formatted(stated[n])}" for n in different]
    empty = [name for name, stack in ours.stacks.items() if not stack.d_ff]
    return sentences + [f"model.{name}.d_ff: expected at least 1, got 0" for name in empty]


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """Return every setting by its dotted name. A nested table gives its kind, and then its own settings."""
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat[name] = value
        if dataclasses.is_dataclass(value):
            flat[name] = getattr(value, "kind", "a table")
            flat |= {f"{name}.{inner}": x for inner, x in _flat(vars(value)).items()}
    return flat


def _effective(flat: dict[str, Any]) -> dict[str, Any]:
    """Give equal settings equal values, such as 0 for a default size, and leave out settings without effect."""
    flat = dict(flat)
    for side in ("encoder", "decoder"):
        if flat[side] is not None:
            flat |= {f"{side}.{name}": value for name, value in _effective_stack(flat, side).items()}
    if flat["positions"] == "rotary":
        n_layers = max(flat[f"{side}.n_layers"] for side in ("encoder", "decoder") if flat[side] is not None)
        bases = flat["positions.base_pattern"] or (flat["positions.base"],)
        flat["positions.base_pattern"] = [bases[i % len(bases)] for i in range(n_layers)]
    sizes = {"d_embedding": "d_model", "source_vocab_size": "vocab_size", "source_max_len": "max_len"}
    flat |= {name: 0 for name, default in sizes.items() if flat[name] == flat[default]}
    without_effect = {*CHANGES_NO_FORWARD.split(), "fused_qkv", "head.n_labels"}
    if flat["norm"] == "rmsnorm" or not flat["norm_weight"]:
        without_effect.add("norm_bias")
    if flat["head"] != "tokens":
        without_effect |= {"tie_output", "logit_scale", "logit_cap"}
    if not flat.get("head.transform") and flat.get("head.pooler", "none") == "none":
        without_effect.add("head_bias")
    if flat["positions"] != "learned":
        without_effect.add("source_max_len")
    return {name: x for name, x in flat.items() if name not in without_effect and not name.startswith("init.")}


def _effective_stack(flat: dict[str, Any], side: str) -> dict[str, Any]:
    stack = {field.name: flat[f"{side}.{field.name}"] for field in dataclasses.fields(Stack)}
    n_heads, windows = stack["n_heads"], stack["window_pattern"] or (0,)
    stack["n_kv_heads"] = stack["n_kv_heads"] or n_heads
    stack["d_head"] = stack["d_head"] or flat["d_model"] / n_heads
    stack["window_pattern"] = [windows[i % len(windows)] for i in range(stack["n_layers"])]
    return stack


def _formatted(value: Any) -> str:
    """Format the value of a setting as in a recipe; a nested table becomes its kind."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return str(getattr(value, "kind", value))
