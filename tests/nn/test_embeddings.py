"""(tokens · scale + types + positions) → norm → dropout → projection, and the feed-forward layer, by hand."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from glassformer.config.transformer import Stack, TransformerConfig
from glassformer.nn.layers import ACTIVATIONS, Embeddings, EmbeddingTables, FeedForward, LayerNorm, relu2
from glassformer.nn.positions import LearnedPositions
from tolerances import assert_close, sampled_mean

IDS, POSITIONS, TYPES = torch.tensor([[3, 1, 3]]), torch.tensor([0, 2, 4]), torch.tensor([[1, 0, 1]])


def test_tokens_alone() -> None:
    embeddings = Embeddings(EmbeddingTables(nn.Embedding(5, 4)), d_model=4)
    assert torch.equal(embeddings(IDS, POSITIONS), embeddings.tokens.weight[IDS])


def test_all_parts_in_order() -> None:
    embeddings = Embeddings(
        EmbeddingTables(nn.Embedding(5, 4), LearnedPositions(6, 4), nn.Embedding(2, 4)),
        d_model=9,
        norm=LayerNorm(4),
        scale=3.0,
    )
    assert embeddings.projection is not None
    x = embeddings.tokens.weight[IDS] * math.sqrt(9)
    x = x + embeddings.token_types.weight[TYPES] + embeddings.positions.table.weight[POSITIONS]
    expected = F.layer_norm(x, (4,)) @ embeddings.projection.weight.T
    assert_close(embeddings(IDS, POSITIONS, TYPES), expected)
    zeros = torch.zeros_like(IDS)
    assert torch.equal(embeddings(IDS, POSITIONS), embeddings(IDS, POSITIONS, zeros))


def test_token_dropout_drops_whole_embeddings_and_keeps_positions() -> None:
    torch.manual_seed(0)
    embeddings = Embeddings(
        EmbeddingTables(nn.Embedding(5, 4), LearnedPositions(400, 4)), d_model=4, token_dropout=0.25
    )
    ids, places = torch.randint(5, (8, 400)), torch.arange(400)
    words = embeddings(ids, places) - embeddings.positions.table.weight
    expected = embeddings.tokens.weight[ids] / 0.75
    is_left = words.abs().amax(dim=2) > 1e-6
    assert_close(words, expected * is_left[:, :, None])
    assert is_left.double().mean().item() == sampled_mean(0.75, 8 * 400, 0.75**0.5 * 0.25**0.5)
    assert torch.equal(
        embeddings.eval()(ids, places), embeddings.tokens.weight[ids] + embeddings.positions.table.weight
    )


def test_types_without_a_table_of_types_are_refused() -> None:
    with pytest.raises(ValueError, match="n_token_types"):
        Embeddings(EmbeddingTables(nn.Embedding(5, 4)), d_model=4)(IDS, POSITIONS, TYPES)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward(activation: str, gated: bool) -> None:
    act = ACTIVATIONS[activation]
    layer = FeedForward(4, 7, act, gated=gated).double()
    x = torch.randn(2, 3, 4).double()
    up = x @ layer.up_proj.weight.T + layer.up_proj.bias
    h = act(up)
    if gated:
        assert layer.gate_proj is not None
        h = act(x @ layer.gate_proj.weight.T + layer.gate_proj.bias) * up
    assert_close(layer(x), h @ layer.down_proj.weight.T + layer.down_proj.bias)
    without = FeedForward(4, 7, act, gated=gated, bias=False)
    assert {name.split(".")[1] for name, _ in without.named_parameters()} == {"weight"}


def test_activations_by_formula() -> None:
    x = torch.linspace(-3, 3, 13).double()
    normal_cdf = (1 + torch.erf(x / math.sqrt(2))) / 2
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    expected = {
        "relu": x.clamp(min=0),
        "gelu": x * normal_cdf,
        "gelu_tanh": x * (1 + inner.tanh()) / 2,
        "silu": x / (1 + (-x).exp()),
        "relu2": x.clamp(min=0) ** 2,
    }
    for name, activation in ACTIVATIONS.items():
        assert_close(activation(x), expected[name])
    assert relu2(torch.tensor(-1.0)) == 0


def test_the_default_activation_equals_the_configurations_default() -> None:
    layer = FeedForward(4, 7).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    expected = ACTIVATIONS[TransformerConfig(decoder=Stack()).activation](layer.up_proj(x)) @ layer.down_proj.weight.T
    assert_close(layer(x), expected + layer.down_proj.bias)
