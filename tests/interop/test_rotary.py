"""Rotary positions in both formats: the frequencies of transformers, or a refusal with the reason."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

import late
from configs import LLAMA
from glassformer.apps.interop.families.rotary import read_rotary, write_rotary
from glassformer.apps.interop.hf_config import HFConfig
from glassformer.common.errors import UserError
from glassformer.config.transformer import RotaryPositions, TransformerConfig
from glassformer.models.build import build_model
from tolerances import F64, assert_close, near

transformers = late.optional("transformers")

MAX_LEN = 256
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def read(**table: Any) -> RotaryPositions:
    given = HFConfig(table, "config.json")
    positions = read_rotary(given, MAX_LEN)
    given.done()
    return positions


def old(parameters: dict[str, Any], key: str = "type") -> dict[str, Any]:
    """Return the format of transformers 4."""
    scaling = {key if name == "rope_type" else name: x for name, x in parameters.items() if name != "rope_theta"}
    return {"rope_theta": parameters.get("rope_theta", 10000.0), "rope_scaling": scaling}


def drawn(draw: random.Random) -> dict[str, Any]:
    """Draw parameters that transformers accepts, typical and unusual."""
    base = {"rope_theta": draw.choice([50.0, 1e4, 5e5])}
    kind = draw.choice(["default", "linear", "llama3", "yarn", "yarn"])
    if kind == "default":
        return base | {"rope_type": kind}
    scaled = base | {"rope_type": kind, "factor": draw.choice([1.0, 2, 40.0])}
    original = {"original_max_position_embeddings": draw.choice([2, 16, 255, 4096, 1 << 22])}
    if kind == "llama3":
        low = draw.uniform(0.5, 4.0)
        return scaled | original | {"low_freq_factor": low, "high_freq_factor": low * draw.uniform(1.1, 4.0)}
    if kind == "yarn" and draw.random() < 0.7:
        scaled |= original | {"beta_fast": draw.uniform(8.0, 64.0), "beta_slow": draw.uniform(0.5, 8.0)}
    if kind == "yarn" and draw.random() < 0.5:
        given = {"attention_factor": draw.uniform(0.5, 2.0)}
        scaled |= draw.choice([given, {"mscale": 1.0, "mscale_all_dim": draw.uniform(0.1, 2.0)}])
    return scaled


def test_frequencies_equal_transformers() -> None:
    """For 200 drawn parameters, frequencies (to fp32 rounding) and attention factors are equal in both formats.

    The share of the whole frequency in YaRN's blend errs by about 4 eps, and the divided frequency is 1 / factor as
    large.
    """
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    draw = random.Random(0)
    for _ in range(200):
        parameters = drawn(draw)
        d_head = draw.choice([2, 6, 64])
        config = transformers.LlamaConfig(
            head_dim=d_head, max_position_embeddings=MAX_LEN, rope_parameters=dict(parameters)
        )
        theirs = LlamaRotaryEmbedding(config)
        positions = read(rope_parameters=parameters)
        ours = build_model(replace_positions(positions, d_head)).decoder.rotaries[0]  # type: ignore[union-attr]
        ratio = ours.inverse_frequencies / theirs.inv_freq  # frequencies of any size are compared alike
        assert_close(ratio, torch.ones_like(ratio), terms=4, amplification=max(2, parameters.get("factor", 2)))
        assert ours.attention_factor == near(theirs.attention_scaling, dtype=F64)
        assert read(**old(parameters)) == read(**old(parameters, "rope_type")) == positions
        assert read(**write_rotary(positions)) == positions


def replace_positions(positions: RotaryPositions, d_head: int) -> TransformerConfig:
    assert LLAMA.decoder is not None
    return replace(LLAMA, positions=positions, decoder=replace(LLAMA.decoder, n_layers=1, d_head=d_head))


def test_both_formats_are_written() -> None:
    written = write_rotary(read(rope_parameters=YARN | {"rope_theta": 1e6}))
    assert written["rope_theta"] == written["rope_parameters"]["rope_theta"] == 1e6
    assert written["rope_parameters"] == written["rope_scaling"] | {"rope_theta": 1e6}
    assert write_rotary(RotaryPositions()) == {
        "rope_theta": 10000.0,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    }


def test_a_given_attention_factor_that_equals_the_computed_one_is_left_out() -> None:
    assert read(rope_parameters=YARN | {"attention_factor": 1.1386294361119891}) == read(rope_parameters=YARN)
    assert read(rope_parameters=YARN | {"mscale": 0, "mscale_all_dim": 1.0}) == read(rope_parameters=YARN)
    assert read(rope_parameters=YARN | {"beta_fast": None, "truncate": True}) == read(rope_parameters=YARN)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dynamic": (
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "dynamic is not supported: its frequencies change with the length",
    ),
    "longrope": (
        {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}},
        "makes cached keys stale",
    ),
    "unknown": ({"rope_scaling": {"rope_type": "mrope"}}, "rope_type mrope is not supported (known: default, linear"),
    "key": ({"rope_parameters": LINEAR | {"finetuned": True}}, "rope_parameters: finetuned is not a known key"),
    "layers": ({"rope_parameters": {"full_attention": LINEAR}}, "rope_parameters: full_attention is not a known key"),
    "disagree": ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}}, "disagree about rope_theta"),
    "two": ({"rope_scaling": LINEAR, "rope_parameters": LLAMA3}, "disagree about rope_type"),
    "partial": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported (known: 1.0)"),
    "truncate": ({"rope_scaling": YARN | {"truncate": False}}, "truncate False is not supported"),
    "warmth": (
        {"rope_scaling": YARN | {"attention_factor": -1.0}},
        "attention_factor, or that of mscale and mscale_all_dim, must be above 0, got -1",
    ),
    "llama3": ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "low_freq_factor 4.0 must be below"),
    "factor": ({"rope_scaling": {"type": "linear"}}, "rope_parameters has no factor"),
    "type": ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor: expected float, got 2"),
    "base": ({"rope_theta": 0.0}, "rope_theta: expected above 1, got 0"),
    "shrink": ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "scaling.factor is 0.5 and must be at least 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_settings_are_refused(name: str) -> None:
    table, words = REFUSED[name]
    with pytest.raises(UserError) as error:
        positions = read(**table)
        replace_positions(positions, 6)  # the configuration checks its numbers
    assert words in str(error.value)
