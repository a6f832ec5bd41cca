"""Scores of masked models equal plain loops over one mask at a time."""

import math

import numpy as np
import pytest
import torch

from glassformer.config.transformer import Stack, TransformerConfig
from glassformer.data.batching import Example
from glassformer.evaluation.loss import masked_scores, pseudo_perplexity
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer
from glassformer.objectives.noise import MaskedObjective
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.tokenization.vocabulary import word_boundaries
from tolerances import NETWORK, near

TEXT = "the cat sat on the mat and the dog ran. "


@pytest.fixture(scope="module")
def parts() -> tuple[Transformer, MaskedObjective, list[Example]]:
    tokenizer = Tokenizer.train([TEXT * 3], vocab_size=280)
    assert tokenizer.mask_id is not None
    config = TransformerConfig(encoder=Stack(2, 2), d_model=16, vocab_size=tokenizer.vocab_size, max_len=64)
    network = build_model(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.3)
    edges = word_boundaries(tokenizer)
    objective = MaskedObjective(tokenizer.mask_id, edges, frame=tokenizer.frames.text)
    ids = np.array(tokenizer.encode(TEXT * 2))
    return network, objective, [Example(ids[:19]), Example(ids[5:12])]


@torch.no_grad()
def test_pseudo_perplexity_masks_each_token_alone(
    parts: tuple[Transformer, MaskedObjective, list[Example]], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, objective, examples = parts
    nats, n = 0.0, 0
    for example in examples:
        row = objective.whole(example.token_ids)
        for place in range(1, len(row) - 1):  # all but [CLS] and [SEP]
            masked = row.copy()
            masked[place] = objective.mask_id
            logits = network(torch.from_numpy(masked)[None])[0, place]
            nats -= float(logits.log_softmax(dim=0)[row[place]])
            n += 1
    monkeypatch.setattr("glassformer.evaluation.loss.ROWS_AT_ONCE", 4)
    found = pseudo_perplexity(network, objective, [examples[:1], examples[1:]], "cpu")
    assert n == 19 + 7 and found == near(math.exp(nats / n), terms=NETWORK)


@torch.no_grad()
def test_masked_accuracy_counts_the_chosen_tokens(
    parts: tuple[Transformer, MaskedObjective, list[Example]],
) -> None:
    network, objective, examples = parts
    batch = objective.collate(examples, np.random.default_rng(0))
    predicted = network(batch.token_ids, batch.attention_mask).argmax(dim=2)
    chosen = batch.labels != -100
    right = (predicted == batch.labels)[chosen].double().mean()
    labels = batch.labels[chosen]
    found = masked_scores(network, objective, [examples], "cpu")
    assert found["masked_accuracy"] == pytest.approx(100 * float(right))
    assert found["most_frequent_share"] == pytest.approx(100 * float(labels.bincount().max()) / len(labels))
