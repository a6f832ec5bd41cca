"""Predictions of rows in batches equal a plain forward pass of each row; vectors are means."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from glassformer.config.transformer import PositionHead, SequenceHead, Stack, TransformerConfig
from glassformer.data.batching import Example
from glassformer.data.rows import encode_texts
from glassformer.inference.classify import embed, predict
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer
from glassformer.objectives.classification import ClassificationObjective
from glassformer.tokenization.tokenizer import Tokenizer
from tolerances import NETWORK, assert_close

PAIRS = [("abc", "d"), ("a", "bcdab"), ("dd", "c"), ("abcd" * 3, "a")]
CONFIG = TransformerConfig(
    encoder=Stack(2, 2), d_model=16, vocab_size=20, max_len=32, n_token_types=2, head=SequenceHead(3, "mean")
)


@pytest.fixture(scope="module")
def network() -> Transformer:
    network = build_model(CONFIG).eval()
    assert isinstance(network, Transformer)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.5)
    return network


@pytest.fixture(scope="module")
def rows() -> list[Example]:
    tokenizer = Tokenizer.train(["abcd"], vocab_size=0, scheme="char")
    found, _ = encode_texts(tokenizer, PAIRS, 32)
    return [replace(row, label=label) for row, label in zip(found, [0.0, 1.0, 2.0, 1.0], strict=True)]


def tensors(row: Example) -> tuple[torch.Tensor, torch.Tensor]:
    assert row.token_types is not None
    return torch.from_numpy(row.token_ids)[None], torch.from_numpy(row.token_types)[None]


@torch.no_grad()
def test_predictions_equal_a_plain_forward_with_token_types(network: Transformer, rows: list[Example]) -> None:
    for row, found in zip(rows, predict(network, rows), strict=True):
        ids, types = tensors(row)
        assert_close(found, network(ids, token_types=types)[0], terms=NETWORK)
        assert (found - network(ids)[0]).abs().max() > 1e-2, "token types change the prediction"


@torch.no_grad()
def test_words_have_a_prediction_at_each_label() -> None:
    torch.manual_seed(0)
    tagger = build_model(replace(CONFIG, head=PositionHead(3))).eval()
    ids = np.array([3, 4, 5, 6])
    (found,) = predict(tagger, [Example(ids, labels=np.array([-100, 0, -100, 2]))])  # type: ignore[arg-type]
    assert_close(found, tagger(torch.from_numpy(ids)[None])[0][[1, 3]])


def test_a_training_batch_has_the_token_types_of_its_rows(rows: list[Example]) -> None:
    batch = ClassificationObjective().collate(rows, np.random.default_rng(0))
    assert batch.token_types is not None and batch.labels.tolist() == [0, 1, 2, 1]
    for row, types in zip(rows, batch.token_types, strict=True):
        assert row.token_types is not None
        assert types.tolist() == [*row.token_types.tolist(), *[0] * (len(types) - len(row.token_types))]


@torch.no_grad()
def test_a_vector_is_the_mean_over_its_tokens(network: Transformer, rows: list[Example]) -> None:
    alone = [replace(row, token_types=None) for row in rows]
    vectors = embed(network, alone)
    for row, vector in zip(alone, vectors, strict=True):
        hidden = network.hidden(torch.from_numpy(row.token_ids)[None])[0]
        assert_close(vector, hidden.mean(dim=0).numpy(), terms=NETWORK)


def test_an_error_leaves_the_network_in_its_mode(network: Transformer, rows: list[Example]) -> None:
    network.train()
    with pytest.raises(ValueError, match="expected ids from 0 to"):
        predict(network, [Example(rows[0].token_ids + network.config.vocab_size)])
    assert network.training
    network.eval()
