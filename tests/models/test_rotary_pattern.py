"""Layers with another base of the rotary positions, and layers without rotation."""

from dataclasses import replace

import pytest
import torch

from configs import LLAMA, Recorder, random_ids, random_model
from glassformer.common.errors import UserError
from glassformer.config.transformer import LinearScaling, RotaryPositions
from glassformer.nn.positions import Rotary, apply_rotary, rotary_frequencies
from tolerances import assert_close

POSITIONS = RotaryPositions(base=100.0, scaling=LinearScaling(2.0), base_pattern=(100.0, 7.0, 0.0))
CONFIG = replace(LLAMA, decoder=replace(LLAMA.decoder, n_layers=4), positions=POSITIONS)


def test_each_layer_rotates_by_its_base() -> None:
    model, tap, n_tokens = random_model(CONFIG), Recorder(), 6
    model(random_ids(19, 2, n_tokens), tap=tap)
    positions, d_head = torch.arange(n_tokens), CONFIG.attention_widths(CONFIG.decoder).d_head
    frequencies = [rotary_frequencies(100.0, d_head) / 2, rotary_frequencies(7.0, d_head), None]
    frequencies.append(frequencies[0])  # the pattern repeats
    x = tap.seen["decoder.embeddings"]
    for i, (block, expected) in enumerate(zip(model.decoder.blocks, frequencies, strict=True)):
        query, key, _ = block.self_attn.project(block.self_attn_norm(x))
        if expected is not None:
            cos_sin = Rotary(expected)(positions)
            query, key = apply_rotary(query, *cos_sin), apply_rotary(key, *cos_sin)
        assert_close(tap.seen[f"decoder.blocks.{i}.self_attn.query"], query)
        assert_close(tap.seen[f"decoder.blocks.{i}.self_attn.key"], key)
        x = tap.seen[f"decoder.blocks.{i}.residual"]
    assert len(model.decoder.rotaries) == 2


@pytest.mark.parametrize("base", [1.0, -5.0])
def test_a_base_is_above_one_or_zero(base: float) -> None:
    with pytest.raises(UserError, match=r"base_pattern has .*: give bases above 1, or 0 for no rotation"):
        replace(CONFIG, positions=replace(POSITIONS, base_pattern=(100.0, base)))
