"""Recast models compute the same, to the bit: held on our own networks, without transformers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from configs import BERT, GPT, LLAMA, PAPER, random_inputs, random_model
from glassformer.config import TransformerConfig
from glassformer.interop.recast import Recast, with_gates_of_one, with_norm_scales, with_relu2_as_gate, with_zero_biases
from glassformer.models.build import build_model
from glassformer.store.model_directory import weights_of

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
    "zero biases": (with_zero_biases, replace(GPT, **NO_BIAS)),
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
def test_the_same_function(case: str) -> None:
    recast, config = CASES[case]
    network = random_model(config)
    other, weights = recast(config, weights_of(network))
    assert other != config
    inputs = random_inputs(network)
    with torch.inference_mode():
        expected, found = (one(inputs.token_ids, **inputs.others) for one in (network, filled(other, weights)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("recast", [with_norm_scales, with_relu2_as_gate, with_gates_of_one])
def test_what_has_the_form_already_stays(recast: Callable[..., Recast]) -> None:
    weights = weights_of(random_model(LLAMA))
    assert recast(LLAMA, weights) == (LLAMA, weights)
