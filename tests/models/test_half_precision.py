"""Weights converted to half precision: every kind of model stays finite and close to fp32."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from configs import CONFIGS, GENERATORS, RECURRENT, random_inputs, random_model
from glassformer.config.transformer import TransformerConfig
from glassformer.errors import UserError
from glassformer.kernels import processor
from glassformer.kernels.linear import int8_dtype
from glassformer.models.transforms import convert, weights_dtype
from glassformer.nn.linear_layers import Int8Linear
from glassformer.nn.positions import Rotary
from tolerances import assert_close

BOUNDS = {torch.bfloat16: 2**-4, torch.float16: 2**-7, torch.int8: 2**-4}
"""Largest relative error: 16 and 8 times the rounding unit of the dtype, 2^-8, 2^-11 and 1 / 254, with a margin."""


def error(found: Tensor, exact: Tensor, *, are_logits: bool) -> float:
    """Return the largest difference divided by the largest value; logits are compared as log-probabilities."""
    assert found.isfinite().all()
    found, exact = (x.float().log_softmax(-1) if are_logits else x.float() for x in (found, exact))
    return float((found - exact).abs().max() / exact.abs().max())


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", CONFIGS | RECURRENT)
def test_every_kind_of_model_is_close_to_fp32(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """All experts are active, because rounding changes which of two experts with near weights is chosen.

    With int8, the processor has no bfloat16 instructions, so that the dtypes of a network are the most mixed.
    """
    if dtype == torch.int8:
        monkeypatch.setattr(processor, "this", replace(processor.this, bfloat16=()))
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


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("name", ["gpt", "llama", "bert", "t5"])
def test_packed_float16_reads_the_last_projection_in_fp32(
    name: str, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weight is in float16 if the CPU packs it; the logits are those of its values, in fp32."""
    choices = replace(processor.this.choices, packs_float16=packs)
    monkeypatch.setattr(processor, "this", replace(processor.this, choices=choices, packs_float16=packs))
    half = random_model(name, dtype=torch.float32)
    convert(half, torch.float16)
    proj = half.output.proj
    assert proj.weight.dtype == (torch.float16 if packs else torch.float32)
    x = torch.randn(5, proj.in_features).half()
    with torch.inference_mode():
        assert_close(proj(x), x.float() @ proj.weight.float().T)


@pytest.mark.parametrize("name", ["int4", "float32", "", "bf32"])
def test_other_dtype_names_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"dtype is '{name}' and must be fp32, bf16, fp16 or int8"):
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


# int8


@pytest.mark.parametrize("shape", [(1, 1, 24), (5, 7, 24), (1, 1, 64), (1, 16, 64), (5, 7, 64)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bfloat16", [(), ("avx512_bf16",)])
def test_int8_products_are_those_of_the_rounded_weights(
    bfloat16: tuple[str, ...], shape: tuple[int, ...], bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows read the integers, many rows the converted weights: both are within bfloat16 of the exact product."""
    monkeypatch.setattr(processor, "this", replace(processor.this, bfloat16=bfloat16))
    torch.manual_seed(0)
    linear = torch.nn.Linear(shape[-1], 41, bias=bias)
    linear.weight.data[3] = 0.0
    layer = Int8Linear(linear)
    x = torch.randn(shape).to(int8_dtype(torch.device("cpu")))
    weight = layer.weight.double() * layer.scales.double()[:, None]
    steps = linear.weight.abs().amax(dim=1).double() / 127
    assert ((weight - linear.weight).abs() <= 0.51 * steps[:, None] + 1e-9).all(), "at most half a step per weight"
    expected = x.double() @ weight.T + (linear.bias.double() if bias else 0.0)
    assert (layer(x).double() - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("bfloat16", [(), ("avx512_bf16",)])
@pytest.mark.parametrize("name", ["gpt", "llama", "bert", "t5"])
def test_every_linear_layer_of_a_network_becomes_int8(
    name: str, bfloat16: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without bfloat16 instructions, only the tables of tokens are in bfloat16, for their size."""
    monkeypatch.setattr(processor, "this", replace(processor.this, bfloat16=bfloat16))
    exact = random_model(name, dtype=torch.float32)
    rounded = copy.deepcopy(exact)
    convert(rounded, torch.int8)
    kinds = {type(module) for module in rounded.modules() if "Linear" in type(module).__name__}
    assert kinds == {Int8Linear}
    tables = {p.dtype for name, p in rounded.named_parameters() if name.endswith("tokens.weight")}
    others = {p.dtype for name, p in rounded.named_parameters() if not name.endswith("tokens.weight")}
    assert tables == {torch.bfloat16} and others == {torch.int8, torch.bfloat16 if bfloat16 else torch.float32}
