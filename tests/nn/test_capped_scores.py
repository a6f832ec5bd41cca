"""Attention with bounded scores: the formula, and the fast paths that it does not take."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from configs import CONFIGS, Recorder, random_ids, random_model
from glassformer.inspection.attention_maps import head_weights
from glassformer.nn.attention import MultiHeadAttention
from glassformer.nn.masks import Mask
from tolerances import assert_close

IDS = random_ids(19, 2, 7)


@pytest.fixture
def no_fast_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the fused kernel fail, and offer FlexAttention for every input."""

    def fails(*_: Any) -> None:
        raise AssertionError("the fused kernel does not bound scores")

    module = sys.modules["glassformer.nn.attention"]
    monkeypatch.setattr(module, "attention_fused", fails)
    monkeypatch.setattr(module, "prefers_flex", lambda *_: True)
    yield


@pytest.mark.usefixtures("no_fast_path")
def test_scores_are_bounded_before_the_mask() -> None:
    torch.manual_seed(0)
    module, x, mask = MultiHeadAttention(8, 2, cap=0.5).double(), 9 * torch.randn(3, 5, 8).double(), Mask(causal=True)
    query, key, value = module.project(x)
    scores = 0.5 * torch.tanh(query @ key.mT / 2 / 0.5)  # √K = 2
    assert bool((scores.abs() > 0.4).any())  # the bound matters
    weights = scores.masked_fill(~mask.dense(5, 5), -torch.inf).softmax(dim=-1)
    assert module.out_proj is not None
    assert_close(module(x, mask=mask), module.out_proj((weights @ value).transpose(1, 2).flatten(2)))


@pytest.mark.usefixtures("no_fast_path")
def test_no_fast_path_is_taken() -> None:
    """Neither by a forward pass, nor for packed documents, nor in generation."""
    model, documents = random_model("capped"), torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 2)
    tap = Recorder()
    logits = model(IDS, tap=tap)
    assert_close(model(IDS), logits)
    assert tap.seen["decoder.blocks.0.self_attn.scores"].abs().max() <= CONFIGS["capped"].score_cap
    assert logits.abs().max() < CONFIGS["capped"].logit_cap
    packed = model(IDS, document_ids=documents, positions=torch.tensor([[0, 1, 2, 0, 1, 2, 3]] * 2))
    assert_close(packed[:, :3], logits[:, :3])
    assert_close(packed[:, 3:], model(IDS[:, 3:]))
    state, steps = model.start(2, 16), []
    for i in range(IDS.shape[1]):
        step, state = model.step(IDS[:, i : i + 1], state)
        steps.append(step)
    assert_close(torch.cat(steps, dim=1), logits)


def test_weights_of_heads_have_the_bound() -> None:
    model, tap = random_model("capped").float(), Recorder()
    model(IDS, tap=tap)
    with head_weights(model) as weights:
        model(IDS)
    expected = tap.seen["decoder.blocks.0.self_attn.weights"][0]
    assert_close(torch.stack(list(weights["decoder.blocks.0.self_attn"])), expected)
