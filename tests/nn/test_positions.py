"""Five kinds of positions and the properties of each."""

import pytest
import torch
from torch import Tensor

from glassformer.nn.positions import (
    AlibiBias,
    LearnedPositions,
    RelativeBias,
    Rotary,
    SinusoidalPositions,
    alibi_slopes,
    apply_rotary,
    linear_scaled,
    llama3_scaled,
    relative_bucket,
    rotary_frequencies,
    sinusoid,
    yarn_scaled,
)
from tolerances import assert_close


def rotated_scores(rotary: Rotary, query: Tensor, key: Tensor, positions: Tensor) -> Tensor:
    """Return the products of one query vector and one key vector, each at every position."""
    n = positions.shape[-1]
    query, key = (x.expand(1, 1, n, -1) for x in (query, key))
    return (apply_rotary(query, *rotary(positions)) @ apply_rotary(key, *rotary(positions)).mT)[0, 0]


def test_sinusoids_exist_for_any_position_and_are_not_trained() -> None:
    module = SinusoidalPositions(8)
    assert not list(module.parameters()) and not list(module.buffers())
    far = module(torch.tensor([[0, 5], [123_456, 7]]))
    assert far.shape == (2, 2, 8) and far.isfinite().all()
    assert_close(far[0, 1], sinusoid(torch.tensor([5]), 8)[0])
    interleaved, halves = sinusoid(torch.arange(9), 8), sinusoid(torch.arange(9), 8, "halves")
    assert_close(halves, torch.cat([interleaved[:, ::2], interleaved[:, 1::2]], -1))
    assert sinusoid(torch.arange(3, device="meta"), 8).is_meta  # on the device of its input


def test_learned_rows_start_at_the_offset() -> None:
    module = LearnedPositions(5, 3, offset=2)
    assert module.table.weight.shape == (7, 3)
    assert torch.equal(module(torch.tensor([0, 4])), module.table.weight[[2, 6]])


@pytest.mark.parametrize("d_rotary", [8, 4])
def test_rotary_scores_depend_on_the_distance_alone(d_rotary: int) -> None:
    rotary = Rotary(rotary_frequencies(100.0, d_rotary).double())
    query, key = torch.randn(8).double(), torch.randn(8).double()
    scores = rotated_scores(rotary, query, key, torch.arange(6))
    later = rotated_scores(rotary, query, key, torch.arange(6) + 50)
    assert_close(scores, later, dtype=torch.float32)  # angles are single precision
    for offset in range(-5, 6):
        diagonal = scores.diagonal(offset)
        assert_close(diagonal, diagonal[:1].expand_as(diagonal), dtype=torch.float32)
    assert scores[0].std() > 0.01


def test_rotary_rotates_pairs_of_the_two_halves() -> None:
    rotary = Rotary(torch.tensor([torch.pi / 2, 0.0]))
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 9.0])[None, None, None]
    turned = apply_rotary(x, *rotary(torch.tensor([1])))  # (1, 3) by a quarter turn, (2, 4) not; 9 is not rotated
    assert_close(turned.flatten(), torch.tensor([-3.0, 2.0, 1.0, 4.0, 9.0]))
    assert_close(turned.norm(), x.norm())


def test_scalings_keep_high_frequencies_and_lower_low_ones() -> None:
    plain = rotary_frequencies(10000.0, 64)
    assert_close(linear_scaled(plain, 4.0), plain / 4)
    for scaled in (llama3_scaled(plain, 4.0, 1.0, 4.0, 2048), yarn_scaled(plain, 10000.0, 4.0, 2048, 32, 1)[0]):
        assert scaled[0] == plain[0]
        assert_close(scaled[-1], plain[-1] / 4)
        ratio = plain / scaled
        assert (ratio.diff() >= -1e-6).all() and 1 < ratio[len(ratio) // 2] < 4
    assert yarn_scaled(plain, 10000.0, 1.0, 2048, 32, 1)[1] == 1.0


def test_the_attention_factor_multiplies_queries_and_keys() -> None:
    frequencies = rotary_frequencies(10.0, 4)
    plain, warm = Rotary(frequencies)(torch.arange(3)), Rotary(frequencies, 1.5)(torch.arange(3))
    assert_close(warm, tuple(1.5 * x for x in plain))


def test_alibi_slopes_of_twelve_heads() -> None:
    """The slopes of eight heads halve from 1/2 to 1/256; the other four use every second slope of sixteen heads."""
    assert alibi_slopes(12)[:8] == [2.0**-h for h in range(1, 9)]
    assert alibi_slopes(12)[8:] == [2.0**-h for h in (0.5, 1.5, 2.5, 3.5)]


def test_alibi_is_a_penalty_on_distance() -> None:
    bias = AlibiBias(2)(torch.tensor([[3, 0]]), torch.tensor([0, 1, 5]))
    assert bias.shape == (1, 2, 2, 3)
    slope = 2.0**-4
    assert bias[0, 0].tolist() == [[-3 * slope, -2 * slope, -2 * slope], [0, -slope, -5 * slope]]


def test_relative_bias_is_bidirectional_or_causal() -> None:
    for bidirectional in (True, False):
        module = RelativeBias(3, 8, 16, bidirectional)
        bias = module(torch.arange(5), torch.arange(5))
        assert bias.shape == (1, 3, 5, 5)
        for t in range(5):
            for s in range(5):
                bucket = relative_bucket(torch.tensor(s - t), 8, 16, bidirectional)
                assert torch.equal(bias[0, :, t, s], module.table.weight[bucket])
        future_is_one = bool((bias[0, :, 0, 1:] == bias[0, :, 0, 1:2]).all())
        assert future_is_one is not bidirectional


def test_casting_keeps_frequencies_and_slopes_exact() -> None:
    """In bfloat16 a frequency of 0.3 would be 0.3008: an error of eight radians after ten thousand tokens."""
    for module in (Rotary(rotary_frequencies(10000.0, 16)), AlibiBias(12)):
        (before,) = [x.clone() for x in module.buffers()]
        for dtype in (torch.bfloat16, torch.float16):
            module.to(dtype)
            (after,) = module.buffers()
            assert after.dtype == torch.float32 and torch.equal(after, before)
        assert all(x.is_meta for x in module.to("meta").buffers())


# Buckets of T5's public code, for 32 buckets and 128 tokens: (distance, bidirectional, causal).
BUCKETS = [
    (0, 0, 0), (-1, 1, 1), (-7, 7, 7), (-8, 8, 8), (-9, 8, 9), (-11, 8, 11), (-12, 9, 12), (-15, 9, 15), (-16, 10, 16),
    (-18, 10, 16), (-19, 10, 17), (-20, 10, 17), (-21, 10, 18), (-31, 11, 21), (-32, 12, 21), (-63, 13, 26),
    (-64, 14, 26), (-90, 14, 29), (-91, 15, 29), (-127, 15, 31), (-128, 15, 31), (-1000, 15, 31),
    (1, 17, 0), (7, 23, 0), (8, 24, 0), (11, 24, 0), (12, 25, 0), (16, 26, 0), (32, 28, 0), (64, 30, 0), (91, 31, 0),
    (1000, 31, 0),
]  # fmt: skip


@pytest.mark.parametrize(("distance", "both_ways", "back_only"), BUCKETS)
def test_the_buckets_of_t5_one_by_one(distance: int, both_ways: int, back_only: int) -> None:
    x = torch.tensor([distance])
    assert relative_bucket(x, 32, 128, bidirectional=True).item() == both_ways
    assert relative_bucket(x, 32, 128, bidirectional=False).item() == back_only
