"""Estimated FLOPs equal those that PyTorch counts."""

from dataclasses import replace
from typing import Any

import pytest
from torch.utils.flop_counter import FlopCounterMode

from configs import CONFIGS, RECURRENT, Recorder, random_ids, random_inputs
from glassformer.config.recurrent import ModelConfig
from glassformer.config.transformer import Stack, TransformerConfig
from glassformer.cost.flops import Shape, forward_flops, training_flops
from glassformer.models.build import build_model

SHAPE = Shape(n_rows=3, n_tokens=21, n_source=17)


def counted(config: ModelConfig, shape: Shape) -> tuple[int, int]:
    """Return PyTorch's count for a forward pass, and for forward and backward, with the reference attention.

    It uses double precision and a tap: the counter counts neither the CPU's fused attention nor its LSTM.
    """
    network = build_model(config).double().train()
    inputs = random_inputs(network, shape.n_rows, shape.n_tokens, shape.n_source)
    others: dict[str, Any] = dict(inputs.others)
    if isinstance(config, TransformerConfig):
        others["tap"] = Recorder()
    with FlopCounterMode(display=False) as counter:
        logits = network(inputs.token_ids, **others)
        forward = counter.get_total_flops()
        logits.sum().backward()
    return forward, counter.get_total_flops()


@pytest.mark.parametrize("name", CONFIGS)
def test_flops_of_a_transformer_equal_pytorchs_count(name: str) -> None:
    forward, both = counted(CONFIGS[name], SHAPE)
    assert forward_flops(CONFIGS[name], SHAPE).total == forward
    assert training_flops(CONFIGS[name], SHAPE) == both


@pytest.mark.parametrize("name", RECURRENT)
def test_flops_of_a_recurrent_model_equal_pytorchs_count(name: str) -> None:
    """The counter omits vᵀtanh(…), a product with a vector.

    The backward pass is less than twice the forward pass: the first state of zeros needs no gradient.
    """
    config = RECURRENT[name]
    forward, both = counted(config, SHAPE)
    vectors = 0
    if getattr(config.attention, "score", None) == "additive":
        d_attention = getattr(config.attention, "d_attention", 0) or config.d_decoder
        vectors = 2 * SHAPE.n_rows * SHAPE.n_tokens * SHAPE.n_source * d_attention
    expected = forward_flops(config, SHAPE).total - vectors
    assert expected == forward
    assert 0.98 * 3 * expected < both <= 3 * expected


def test_recomputed_blocks_cost_at_most_one_more_forward() -> None:
    """PyTorch stops to recompute after the last saved tensor: it omits the last product of a pre-norm block."""
    config = CONFIGS["post_norm"]
    network = build_model(config).double().train()
    network.decoder.activation_checkpointing = 1  # type: ignore[union-attr]
    with FlopCounterMode(display=False) as counter:
        network(random_ids(19, 3, 21), tap=Recorder()).sum().backward()
    assert training_flops(config, SHAPE, recomputed=1) == counter.get_total_flops()


def test_half_of_the_recomputed_blocks_cost_half_of_a_forward() -> None:
    config = CONFIGS["post_norm"]
    for n_layers, n_recomputed in ((2, 1), (3, 2), (4, 2)):
        deep = replace(config, decoder=replace(config.decoder, n_layers=n_layers))  # type: ignore[type-var]
        network = build_model(deep).double().train()
        network.decoder.activation_checkpointing = 2  # type: ignore[union-attr]
        with FlopCounterMode(display=False) as counter:
            network(random_ids(19, 3, 21), tap=Recorder()).sum().backward()
        planned = training_flops(deep, SHAPE, recomputed=2)
        assert planned == counter.get_total_flops()
        forward = forward_flops(deep, SHAPE)
        assert planned - 3 * forward.total == (forward.layers + forward.attention) * n_recomputed // n_layers


def test_a_model_without_blocks_recomputes_nothing() -> None:
    config = TransformerConfig(decoder=Stack(n_layers=0, n_heads=2), d_model=8, vocab_size=19)
    for recomputed in (1, 2):
        assert training_flops(config, SHAPE, recomputed) == 3 * forward_flops(config, SHAPE).total


def test_the_head_reads_only_scored_tokens() -> None:
    some, every = (forward_flops(CONFIGS["bert"], Shape(2, 20, n_scored=n)) for n in (3, 0))
    assert some.head * 20 == every.head * 3
    assert (some.layers, some.attention) == (every.layers, every.attention)
