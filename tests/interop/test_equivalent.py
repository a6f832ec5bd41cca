"""Recast models are bit-equal: tested on glassformer's networks, without transformers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import BERT, GPT, LLAMA, PAPER, random_inputs, random_model
from glassformer.apps.interop.equivalent import (
    BIASES,
    Recast,
    with_gates_of_one,
    with_norm_scales,
    with_relu2_as_gate,
    with_scales_and_biases,
    with_zero_biases,
)
from glassformer.apps.interop.export import export
from glassformer.apps.interop.hf import choose_family
from glassformer.config.transformer import TokenHead, TransformerConfig
from glassformer.models.build import build_model
from glassformer.store.model_directory import weights_of
from interop.checkpoints import model_directory
from interop.family_configs import FAMILY_CONFIGS
from tolerances import assert_close

SCALES_AND_BIASES = ("norm_weight", *BIASES)
NO_BIAS = {"qkv_bias": False, "attn_out_bias": False, "ff_bias": False}
MODERN = replace(GPT, norm="rmsnorm", norm_weight=False, qk_norm=True, activation="relu2", **NO_BIAS)
CASES: dict[str, tuple[Callable[..., Recast], TransformerConfig]] = {
    "rms": (with_norm_scales, MODERN),
    "layernorm": (with_norm_scales, replace(GPT, norm_weight=False)),
    "sandwich": (with_norm_scales, replace(PAPER, norm_weight=False, norm_order="sandwich")),
    "relu2": (with_relu2_as_gate, MODERN),
    "relu2 with biases": (with_relu2_as_gate, replace(GPT, activation="relu2")),
    "gelu": (with_gates_of_one, replace(GPT, **NO_BIAS)),
    "gelu with biases": (with_gates_of_one, BERT),
    "zero biases": (partial(with_zero_biases, logits=True), replace(GPT, **NO_BIAS)),
    "a zero bias": (lambda config, weights: with_zero_biases(config, weights, "ff_bias"), replace(GPT, **NO_BIAS)),
    "all scales and biases": (with_scales_and_biases, replace(GPT, norm_weight=False, **NO_BIAS)),
    "both stacks": (with_gates_of_one, PAPER),
}


def filled(config: TransformerConfig, weights: dict[str, torch.Tensor]) -> Any:
    network = build_model(config).double().eval()
    own = weights_of(network)
    assert own.keys() == weights.keys()
    with torch.no_grad():
        for name, x in weights.items():
            own[name].copy_(x)
    return network


@pytest.mark.parametrize("case", CASES)
def test_a_recast_model_computes_the_same_function(case: str) -> None:
    recast, config = CASES[case]
    network = random_model(config)
    other, weights = recast(config, weights_of(network))
    assert other != config
    inputs = random_inputs(network)
    with torch.inference_mode():
        expected, found = (one(inputs.token_ids, **inputs.others) for one in (network, filled(other, weights)))
    assert_close(found, expected)


@pytest.mark.parametrize("recast", [with_norm_scales, with_relu2_as_gate, with_gates_of_one, with_zero_biases])
def test_a_model_in_the_right_form_is_unchanged(recast: Callable[..., Recast]) -> None:
    weights = weights_of(random_model(LLAMA))
    assert recast(LLAMA, weights) == (LLAMA, weights)


LAYER_NORM_FAMILIES = ("GPT-2", "BERT", "RoBERTa", "DistilBERT", "BART", "Marian")


@settings(max_examples=60)
@given(st.sampled_from(LAYER_NORM_FAMILIES), st.sets(st.sampled_from(SCALES_AND_BIASES)))
def test_any_combination_of_scales_and_biases_may_be_missing(name: str, missing: set[str]) -> None:
    """Each family with layernorm has an equal recast model for every subset of missing scales and biases."""
    config = replace(FAMILY_CONFIGS[name], pad_id=0, **dict.fromkeys(missing, False))  # type: ignore[arg-type]
    family = choose_family(config)
    assert family.name == name
    network = random_model(config)
    other, weights = family.recast(config, weights_of(network))
    assert all(getattr(other, field) for field in SCALES_AND_BIASES)
    family.rules(other)
    inputs = random_inputs(network)
    with torch.inference_mode():
        expected, found = (one(inputs.token_ids, **inputs.others) for one in (network, filled(other, weights)))
    assert_close(found, expected)


@pytest.mark.parametrize("name", LAYER_NORM_FAMILIES)
def test_a_model_without_scales_and_biases_is_exported(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = replace(FAMILY_CONFIGS[name], **dict.fromkeys(SCALES_AND_BIASES, False))  # type: ignore[arg-type]
    messages = export(model_directory(config, tmp_path / "ours"), tmp_path / "hf").said
    assert messages[0].startswith(f"{name} (") and messages[1].startswith("rewritten as an equivalent model: ")
    assert "loaded with transformers: logits differ by" in messages[-1]


def test_a_token_head_without_bias_is_exported(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    for name in ("BERT", "RoBERTa", "DistilBERT"):
        config = replace(FAMILY_CONFIGS[name], head=TokenHead(transform=True))
        assert export(model_directory(config, tmp_path / name), tmp_path / f"{name}-hf").said[0].startswith(name)
