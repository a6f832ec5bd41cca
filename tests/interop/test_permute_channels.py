"""A permutation of the residual stream's channels gives the same model, for every configuration."""

from dataclasses import replace

import pytest
import torch

from configs import random_ids, randomise
from glassformer.apps.interop.equivalent import halves_order, permute_residual, with_halves
from glassformer.config.transformer import (
    LearnedPositions,
    PositionHead,
    RelativePositions,
    RotaryPositions,
    SequenceHead,
    SinusoidalPositions,
    Stack,
    TokenHead,
    TransformerConfig,
)
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer
from glassformer.store.model_directory import weights_of
from tolerances import assert_close

STACK = Stack(2, 2, d_ff=14)
PLAIN = TransformerConfig(decoder=STACK, d_model=12, vocab_size=17, max_len=16)
CONFIGS = {
    "decoder": replace(PLAIN, fused_qkv=True, tie_output=False),
    "rotary": replace(PLAIN, positions=RotaryPositions(), norm="rmsnorm", gated_ff=True, qk_norm=True),
    "encoder": replace(
        PLAIN, decoder=None, encoder=STACK, n_token_types=2, embedding_norm=True, head=TokenHead(True, "learned")
    ),
    "classes": replace(PLAIN, decoder=None, encoder=STACK, head=SequenceHead(3, pooler="tanh")),
    "tags": replace(PLAIN, decoder=None, encoder=STACK, norm_order="sandwich", head=PositionHead(3)),
    "both": replace(PLAIN, encoder=STACK, norm_order="post", final_norm=False, head=TokenHead(bias="constant")),
    "shared": replace(PLAIN, encoder=STACK, share_embeddings=True, positions=RelativePositions(8, 16)),
}


def network(config: TransformerConfig) -> Transformer:
    model = build_model(config).eval()
    randomise(model)
    return model


def logits(model: Transformer) -> torch.Tensor:
    both = model.encoder is not None and model.decoder is not None
    source = {"source_ids": random_ids(17, 3, 7, seed=2)} if both else {}
    with torch.inference_mode():
        return model(random_ids(17, 3, 9), **source)


def with_weights(config: TransformerConfig, weights: dict[str, torch.Tensor]) -> Transformer:
    model = build_model(config).eval()
    with torch.no_grad():
        for name, x in weights_of(model).items():
            x.copy_(weights[name])
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_a_permutation_keeps_logits_and_is_reversible(name: str) -> None:
    config, order = CONFIGS[name], torch.randperm(12)
    model = network(config)
    weights = weights_of(model)
    permuted = permute_residual(weights, config, order)
    assert any(not torch.equal(permuted[key], x) for key, x in weights.items())
    assert_close(logits(with_weights(config, permuted)), logits(model))
    back = permute_residual(permuted, config, order.argsort())
    assert all(torch.equal(back[key], x) for key, x in weights.items())


def test_interleaved_sinusoids_become_halves() -> None:
    config = replace(CONFIGS["shared"], positions=SinusoidalPositions("interleaved"), embedding_scale=0.0)
    model = network(config)
    halves, weights = with_halves(config, weights_of(model))
    assert halves == replace(config, positions=SinusoidalPositions("halves"))
    assert_close(logits(with_weights(halves, weights)), logits(model))
    assert with_halves(halves, weights) == (halves, weights)
    wrong = with_weights(halves, weights_of(model))  # without the permutation the model differs
    assert (logits(wrong) - logits(model)).abs().max() > 1e-2


def test_unsupported_permutations_are_refused() -> None:
    weights = {"decoder.final_norm.weight": torch.ones(12)}
    with pytest.raises(ValueError, match="a permutation of 12 channels"):
        permute_residual(weights, PLAIN, torch.zeros(12, dtype=torch.long))
    with pytest.raises(ValueError, match="d_embedding = d_model"):
        permute_residual(weights, replace(PLAIN, d_embedding=6), halves_order(12))
    with pytest.raises(ValueError, match=r"decoder\.new\.weight: no rule"):
        permute_residual({"decoder.new.weight": torch.ones(12, 12)}, PLAIN, halves_order(12))
    assert LearnedPositions() == PLAIN.positions and with_halves(PLAIN, weights) == (PLAIN, weights)
