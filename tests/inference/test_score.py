"""Forced scores are the log probabilities of one uncached forward, however they are batched."""

import pytest
import torch

from configs import SEQ2SEQ, random_ids, random_model
from glassformer.inference.score import forced_scores

SOURCES = [[3, 1, 4, 9], [5], [9, 2, 6, 5, 3, 5, 8], [8, 9], [5]]
TARGETS = [[4, 4, 2], [7, 8, 9, 1, 0, 3, 5, 2], [2], [6, 2], []]


@pytest.mark.parametrize("max_tokens", [1, 12, 1000])
@pytest.mark.parametrize("name", SEQ2SEQ)
def test_every_token_by_an_uncached_forward(name: str, max_tokens: int) -> None:
    model = random_model(SEQ2SEQ[name])
    scores = forced_scores(model, SOURCES, TARGETS, start_id=1, max_tokens=max_tokens)
    for source, target, score in zip(SOURCES, TARGETS, scores, strict=True):
        with torch.no_grad():
            log_probs = model(torch.tensor([[1, *target]]), source_ids=torch.tensor([source])).log_softmax(-1)[0]
        expected = [float(log_probs[t, token]) for t, token in enumerate(target)]
        assert score.token_log_probs == pytest.approx(expected, abs=1e-9)
        assert score.log_prob == pytest.approx(sum(expected), abs=1e-9)


def test_probabilities_of_all_that_can_follow_sum_to_one() -> None:
    model = random_model(SEQ2SEQ["paper"])
    source = random_ids(19, 6).tolist()
    scores = forced_scores(model, [source] * 19, [[4, token] for token in range(19)], start_id=1)
    assert sum(torch.tensor(s.token_log_probs[1]).exp().item() for s in scores) == pytest.approx(1, abs=1e-6)


def test_a_source_without_its_target_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        forced_scores(random_model(SEQ2SEQ["paper"]), [[1], [2]], [[3]], start_id=1)
