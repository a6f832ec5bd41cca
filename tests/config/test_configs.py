"""Numbers that no Transformer can have are refused with a sentence that names them."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.common.errors import UserError
from glassformer.config.transformer import RotaryPositions, Stack, TransformerConfig
from glassformer.models.build import build_model


def turned(d_head: int, fraction: float) -> TransformerConfig:
    stack = Stack(1, 2, d_head=d_head, d_ff=4)
    return TransformerConfig(decoder=stack, d_model=4, vocab_size=5, positions=RotaryPositions(fraction=fraction))


@pytest.mark.parametrize(
    ("d_head", "fraction", "words"),
    [
        (64, 0.01, r"model\.positions\.fraction 0\.01 rotates 0 of the 64 dimensions of a head of model\.decoder"),
        (32, 0.03, r"fraction 0\.03 rotates 0 of the 32"),
        (64, 0.02, r"fraction 0\.02 rotates 1 of the 64"),
        (6, 0.5, r"fraction 0\.5 rotates 3 of the 6"),
        (5, 1.0, r"fraction 1 rotates 5 of the 5"),
        (1, 1.0, r"fraction 1 rotates 1 of the 1"),
        (8, 0.0, r"fraction is 0\.0 and must be above 0"),
        (8, math.nan, r"fraction must be a number, not nan"),
        (8, math.inf, r"fraction is inf and must be above 0"),
    ],
)
def test_a_rotary_fraction_without_whole_pairs_is_refused(d_head: int, fraction: float, words: str) -> None:
    with pytest.raises(UserError, match=words):
        turned(d_head, fraction)


@settings(max_examples=60)
@given(d_head=st.integers(1, 40), fraction=st.floats(0, 1))
def test_accepted_rotary_positions_turn_whole_pairs(d_head: int, fraction: float) -> None:
    try:
        config = turned(d_head, fraction)
    except UserError:
        assert int(d_head * fraction) < 2 or int(d_head * fraction) % 2
        return
    rotary = build_model(config).decoder.rotaries[0]
    assert 2 * len(rotary.inverse_frequencies) == int(d_head * fraction) >= 2


@pytest.mark.parametrize("key", ["score_cap", "logit_cap"])
@pytest.mark.parametrize("cap", [-1.0, math.inf])
def test_a_bound_that_is_negative_or_infinite_is_refused(key: str, cap: float) -> None:
    with pytest.raises(UserError, match=rf"model\.{key} is {cap} and must not be negative"):
        TransformerConfig(decoder=Stack(), **{key: cap})
