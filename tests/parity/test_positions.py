"""Frequencies, slopes, buckets and sinusoids equal those of transformers, value by value."""

import math
import os
from typing import Any

import pytest
import torch

import late
from configs import LLAMA, random_ids
from glassformer.config.transformer import LinearScaling, Llama3Scaling, RotaryPositions, Scaling, YarnScaling
from glassformer.models.build import _rotary
from glassformer.nn.positions import AlibiBias, SinusoidalPositions, relative_bucket, sinusoid
from tolerances import F64, assert_close, near

transformers = late.optional("transformers")

os.environ["HF_HUB_OFFLINE"] = "1"

SCALINGS: dict[str, tuple[Scaling, dict[str, Any]]] = {
    "linear": (LinearScaling(3.0), {"factor": 3.0}),
    "llama3": (
        Llama3Scaling(8.0, 1.0, 4.0, 8192),
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "yarn": (
        YarnScaling(16.0, 4096, 24.0, 2.0),
        {"factor": 16.0, "original_max_position_embeddings": 4096, "beta_fast": 24.0, "beta_slow": 2.0},
    ),
}


@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("d_head", [64, 128])
@pytest.mark.parametrize("kind", SCALINGS)
def test_scaled_frequencies(kind: str, d_head: int, base: float) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling, parameters = SCALINGS[kind]
    config = transformers.LlamaConfig(
        hidden_size=2 * d_head,
        num_attention_heads=2,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": kind, "rope_theta": base} | parameters,
    )
    expected, attention_factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    rotary = _rotary(RotaryPositions(base, scaling=scaling), d_head)
    assert rotary is not None
    assert_close(rotary.inverse_frequencies, expected)
    assert rotary.attention_factor == near(attention_factor, dtype=F64)


@pytest.mark.parametrize("n_heads", [1, 2, 3, 6, 8, 12, 20])
def test_alibi(n_heads: int) -> None:
    """transformers adds slope · key position: it differs by a constant per row, which softmax ignores."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    theirs = build_alibi_tensor(mask, n_heads, torch.float32).reshape(2, n_heads, 1, 6)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    ours = AlibiBias(n_heads)(positions, positions)
    seen = (torch.ones(6, 6).tril() * mask[:, None]).bool()[:, None]  # causal, real keys
    shift = AlibiBias(n_heads).slopes[:, None, None] * positions[:, None, :, None]
    assert_close(*(x.masked_fill(~seen, 0.0) for x in (ours, theirs - shift)))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (8, 12), (64, 1000)])
def test_relative_buckets(n_buckets: int, max_distance: int, bidirectional: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-1500, 1501)
    expected = T5Attention._relative_position_bucket(distance, bidirectional, n_buckets, max_distance)
    assert torch.equal(relative_bucket(distance, n_buckets, max_distance, bidirectional), expected)


def test_sinusoids_in_halves_equal_marian() -> None:
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

    table = MarianSinusoidalPositionalEmbedding(40, 16)
    filled = table.create_weight() if hasattr(table, "create_weight") else None
    expected = table.weight if filled is None else filled
    assert_close(sinusoid(torch.arange(40), 16, "halves"), expected.detach())


def test_sinusoids_that_end_at_the_base_equal_m2m100() -> None:
    from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

    expected = M2M100SinusoidalPositionalEmbedding.get_embedding(1000, 16)
    assert torch.equal(SinusoidalPositions(16, "halves", 3, True)(torch.arange(997)), expected[3:])


def test_sinusoids_follow_the_formula_of_the_paper() -> None:
    table = sinusoid(torch.arange(50), 12)
    for position in (0, 1, 7, 49):
        for i in range(6):
            angle = position / 10000 ** (2 * i / 12)
            assert table[position, 2 * i].item() == near(math.sin(angle))
            assert table[position, 2 * i + 1].item() == near(math.cos(angle))


def test_rotary_equals_llama() -> None:
    """Compare the angles of rows with different positions, and the rotated vectors."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    from glassformer.nn.positions import apply_rotary

    rotary = _rotary(LLAMA.positions, 6)
    assert rotary is not None
    positions = random_ids(200, 3, 5)
    query, key = torch.randn(3, 4, 5, 6), torch.randn(3, 2, 5, 6)
    angle = positions[..., None].float() * 100.0 ** -(torch.arange(0, 6, 2) / 6)
    angle = torch.cat((angle, angle), -1)
    expected = apply_rotary_pos_emb(query, key, angle.cos(), angle.sin())
    cos_sin = rotary(positions)
    assert_close((apply_rotary(query, *cos_sin), apply_rotary(key, *cos_sin)), expected)
