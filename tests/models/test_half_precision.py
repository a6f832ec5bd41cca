"""Weights converted to half precision: every kind of model stays finite and close to fp32."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from configs import CONFIGS, GENERATORS, RECURRENT, random_inputs, random_model
from glassformer.common.errors import UserError
from glassformer.config.transformer import TransformerConfig
from glassformer.models.transforms import convert, weights_dtype
from glassformer.nn.positions import Rotary

BOUNDS = {torch.bfloat16: 2**-4, torch.float16: 2**-7}
"""Largest relative error: 16 times the rounding unit of the dtype, 2^-8 and 2^-11."""


def error(found: Tensor, exact: Tensor, *, are_logits: bool) -> float:
    """Return the largest difference divided by the largest value; logits are compared as log-probabilities."""
    assert found.isfinite().all()
    found, exact = (x.float().log_softmax(-1) if are_logits else x.float() for x in (found, exact))
    return float((found - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", CONFIGS | RECURRENT)
def test_every_kind_of_model_is_close_to_fp32(name: str, dtype: torch.dtype) -> None:
    """All experts are active, because rounding changes which of two experts with near weights is chosen."""
    config = (CONFIGS | RECURRENT)[name]
    if isinstance(config, TransformerConfig) and config.experts is not None:
        config = replace(config, experts=replace(config.experts, n_active=config.experts.n_experts))
    exact = random_model(config, dtype=torch.float32)
    half = copy.deepcopy(exact)
    convert(half, dtype)
    assert any(p.dtype == dtype for p in half.parameters())
    inputs, bound = random_inputs(exact), BOUNDS[dtype]
    padded = torch.ones_like(inputs.token_ids, dtype=torch.bool)
    padded[1, 6:] = False
    with torch.inference_mode():
        for mask in (None, padded):
            one, other = (model(inputs.token_ids, mask, **inputs.others) for model in (half, exact))
            if mask is not None and other.shape[:2] == mask.shape:
                one, other = one[mask], other[mask]
            assert error(one, other, are_logits=other.shape[-1] == 19) < bound
        if name not in GENERATORS and name not in RECURRENT:
            return
        source = [inputs.others["source_ids"]] if "source_ids" in inputs.others else []
        states = [model.start(2, 20, *source) for model in (half, exact)]
        for begin, end in ((0, 5), (5, 6)):  # a prompt, then one token
            steps = [
                model.step(inputs.token_ids[:, begin:end], state)
                for model, state in zip((half, exact), states, strict=True)
            ]
            (one, other), states = [logits for logits, _ in steps], [state for _, state in steps]
            assert one.dtype == torch.float32, "logits are rounded to half precision"
            assert error(one, other, are_logits=True) < bound


@pytest.mark.parametrize("name", ["gpt", "llama", "bert", "t5"])
def test_the_last_projection_and_the_rotary_frequencies_are_not_rounded(name: str) -> None:
    exact = random_model(name, dtype=torch.float32)
    half = copy.deepcopy(exact)
    convert(half, torch.bfloat16)
    assert torch.equal(half.output.proj.weight, exact.output.proj.weight)
    tables = [m.inverse_frequencies for m in half.modules() if isinstance(m, Rotary)]
    assert all(table.dtype == torch.float32 for table in tables) and bool(tables) == (name == "llama")
    exact_ids = {id(p) for p in half.output.proj.parameters()}
    assert {p.dtype for p in half.parameters() if id(p) not in exact_ids} == {torch.bfloat16}


@pytest.mark.parametrize("name", ["int8", "float32", "", "bf32"])
def test_other_dtype_names_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"dtype is '{name}' and must be fp32, bf16 or fp16"):
        weights_dtype(name, torch.device("cpu"))


def test_a_dtype_without_support_on_the_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Tensor, other: Tensor) -> Tensor:
        raise RuntimeError("\"addmm_impl\" not implemented for 'Half'\nat some place")

    monkeypatch.setattr(Tensor, "__matmul__", fails)
    with pytest.raises(
        UserError, match=r"dtype fp16 does not work on the device cpu: .*addmm_impl.*; use fp32"
    ) as error:
        weights_dtype("fp16", torch.device("cpu"))
    assert "\n" not in str(error.value)
