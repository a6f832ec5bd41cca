"""Heads on the hidden states, computed by hand, and pooling over real tokens."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from configs import BERT, CONFIGS, random_ids, random_model
from glassformer.config.transformer import SequenceHead
from glassformer.models.heads import pool
from tolerances import assert_close, is_close

HIDDEN = torch.tensor([[1.0, -5.0, 3.0, 90.0], [80.0, 2.0, 7.0, -1.0]])[..., None]
MASK = torch.tensor([[True, True, True, False], [False, True, True, True]])


@pytest.mark.parametrize(
    ("how", "masked", "whole"),
    [
        ("first", [1.0, 2.0], [1.0, 80.0]),
        ("last", [3.0, -1.0], [90.0, -1.0]),
        ("mean", [-1 / 3, 8 / 3], [89 / 4, 88 / 4]),
        ("max", [3.0, 7.0], [90.0, 80.0]),
    ],
)
def test_pooling_reads_real_tokens_only(how: str, masked: list[float], whole: list[float]) -> None:
    assert_close(pool(HIDDEN, MASK, how).flatten(), torch.tensor(masked))
    assert_close(pool(HIDDEN, None, how).flatten(), torch.tensor(whole))


def test_a_pooler_is_before_the_classifier() -> None:
    model = random_model("classifier_first")
    token_ids = random_ids(19, 2, 5)
    first = model.hidden(token_ids)[:, 0]
    head = model.output
    assert_close(model(token_ids), head.proj(torch.tanh(head.pooler(first))))


def test_a_norm_is_after_the_pooler() -> None:
    model = random_model("classifier_norm")
    token_ids = random_ids(19, 2, 5)
    head, mean = model.output, model.hidden(token_ids).mean(dim=1)
    assert head.pooler.bias is None
    pooled = F.layer_norm(F.gelu(mean @ head.pooler.weight.T), (16,), head.pooler_norm.weight, head.pooler_norm.bias)
    assert_close(model(token_ids), head.proj(pooled))


def test_a_vector_is_the_output_of_the_pooler() -> None:
    model = random_model("vectors_first")
    token_ids = random_ids(19, 2, 5)
    expected = torch.tanh(model.output.pooler(model.hidden(token_ids)[:, 0]))
    assert_close(model(token_ids), expected)
    assert [name for name in model.state_dict() if name.startswith("output.")] == [
        "output.pooler.weight",
        "output.pooler.bias",
    ]


def test_token_head_by_hand() -> None:
    """BERT's head: dense layer, activation, norm, token table, bias."""
    model = random_model(BERT)
    token_ids = random_ids(19, 2, 5)
    hidden, transform = model.hidden(token_ids), model.output.transform
    x = F.gelu(hidden @ transform.dense.weight.T + transform.dense.bias)
    x = F.layer_norm(x, (16,), transform.norm.weight, transform.norm.bias, BERT.norm_eps)
    expected = x @ model.encoder.embeddings.tokens.weight.T + model.output.bias
    assert_close(model(token_ids), expected)


def test_a_constant_bias_is_stored_and_not_trained() -> None:
    model = random_model("bart")
    assert "output.bias" in model.state_dict()
    assert "output.bias" not in dict(model.named_parameters())
    hidden = torch.randn(1, 2, 16).double()
    before = model.head(hidden)
    model.output.bias += 2.0
    assert_close(model.head(hidden), before + 2)


def test_factorised_tables_and_scaled_logits() -> None:
    model = random_model("d_embedding")
    hidden = torch.randn(1, 2, 16).double()
    expected = hidden @ model.output.narrow.weight.T * 16**-0.5 @ model.decoder.embeddings.tokens.weight.T
    assert_close(model.head(hidden), expected)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("tagger", (2, 5, 5)), ("classifier_max", (2, 1)), ("gpt", (2, 5, 19)), ("vectors_mean", (2, 16))],
)
def test_shapes_of_every_head(name: str, shape: tuple[int, ...]) -> None:
    assert random_model(CONFIGS[name])(random_ids(19, 2, 5)).shape == shape


def test_a_text_that_is_read_twice_is_one_position_later_in_the_decoder() -> None:
    model = random_model(replace(CONFIGS["bart"], head=SequenceHead(3, "last"), decoder_start_id=2))
    ids = torch.tensor([[7, 3, 11, 4], [5, 9, 2, 8]])
    shifted = torch.cat([torch.full((2, 1), 2), ids[:, :-1]], dim=1)
    assert is_close(model(ids), model(shifted, source_ids=ids))
