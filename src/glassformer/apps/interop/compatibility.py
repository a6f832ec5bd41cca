"""Compatibility of a configuration with another program: the list of settings that do not fit."""

import dataclasses
from collections.abc import Collection
from typing import Any

from glassformer.config.transformer import Stack, TransformerConfig

CHANGES_NO_FORWARD = """
init token_dropout embedding_dropout residual_dropout attention_dropout ff_dropout
vocab_size max_len pad_id bos_id eos_id unk_id mask_id decoder_start_id
"""
"""Fields that every program supports, or that only affect training."""


def stack_misfits(config: TransformerConfig, expected: Collection[str]) -> list[str]:
    """Return a sentence for each stack that is missing in a configuration, and for each that it has in addition.

    >>> stack_misfits(TransformerConfig(decoder=Stack()), ["encoder"])
    ['the model has no encoder', 'the model has a decoder']
    """
    articles = {"encoder": "an encoder", "decoder": "a decoder"}
    missing = [f"the model has no {name}" for name in articles if name in expected and name not in config.stacks]
    return missing + [f"the model has {articles[name]}" for name in config.stacks if name not in expected]


def differences(ours: TransformerConfig, theirs: dict[str, Any]) -> list[str]:
    """Return a sentence for each setting of a configuration that changes outputs and is different in `theirs`.

    `theirs` has fields of a configuration with the same stacks; missing ones have their default.

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
    """Return every setting by its dotted name; a table is its kind, and its settings have their own names."""
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
    names = (field.name for field in dataclasses.fields(Stack))
    stack = {name: flat[f"{side}.{name}"] for name in names}
    n_heads, windows = stack["n_heads"], stack["window_pattern"] or (0,)
    stack["n_kv_heads"] = stack["n_kv_heads"] or n_heads
    stack["d_head"] = stack["d_head"] or flat["d_model"] / n_heads
    stack["window_pattern"] = [windows[i % len(windows)] for i in range(stack["n_layers"])]
    return stack


def _formatted(value: Any) -> str:
    """Format the value of a setting as in a recipe; a table is its kind."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return str(list(value))
    return str(getattr(value, "kind", value))
