"""Several models as one: the mean of their probabilities, with the cache and in beam search."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from configs import SEQ2SEQ, random_ids, random_model
from glassformer.common.errors import UserError
from glassformer.config.run import BeamConfig
from glassformer.inference.beam import beam_search
from glassformer.inference.beam_reference import beam_search_reference
from glassformer.inference.decodable import Ensemble
from glassformer.inference.score import forced_scores
from glassformer.inference.search import Search
from tolerances import F64, assert_close, near

SOURCE_IDS = random_ids(19, 3, 6, seed=2)
JOINT = [name for name, config in SEQ2SEQ.items() if not config.source_vocab_size]


def mean_of(models: list[Any]) -> Any:
    """Return the mean of the probabilities from full forward passes."""

    def forward(token_ids: Tensor, source_ids: Tensor) -> Tensor:
        probabilities = [model(token_ids, source_ids=source_ids).softmax(dim=-1) for model in models]
        return (sum(probabilities) / len(models)).log()

    return forward


def test_members_of_every_kind_average_their_probabilities() -> None:
    models = [random_model(SEQ2SEQ[name], seed) for seed, name in enumerate(JOINT)]
    search = Search(BeamConfig(3, 0.6, max_new_tokens=8), 1, 2, 24, n_best=2)
    found = beam_search(Ensemble(models), (SOURCE_IDS, None), search)
    for source, row in zip(SOURCE_IDS, found, strict=True):
        expected = beam_search_reference(mean_of(models), source, search)
        assert [h.ids for h in row] == [h.ids for h in expected]
        assert [h.log_prob for h in row] == near([h.log_prob for h in expected], dtype=F64)


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_two_equal_models_equal_one_model(name: str) -> None:
    model = random_model(SEQ2SEQ[name])
    search = Search(BeamConfig(4, 1.0, max_new_tokens=8), 1, 2, 24, n_best=4)
    sources = SOURCE_IDS % 13, None
    one = beam_search(model, sources, search)
    two = beam_search(Ensemble([model, model]), sources, search)
    assert [[h.ids for h in row] for row in one] == [[h.ids for h in row] for row in two]
    for a, b in zip(one, two, strict=True):
        assert [h.log_prob for h in a] == near([h.log_prob for h in b], dtype=F64)


def test_the_score_of_a_target_is_that_of_the_search() -> None:
    models = [random_model(SEQ2SEQ[name], seed) for seed, name in enumerate(("paper", "t5"))]
    found = beam_search(Ensemble(models), (SOURCE_IDS[:1], None), Search(BeamConfig(1, max_new_tokens=6), 1, 99, 24))
    score = forced_scores(Ensemble(models), SOURCE_IDS[:1].tolist(), [found[0][0].ids], start_id=1)[0]
    assert sum(score) == near(found[0][0].log_prob, dtype=F64)


def test_a_state_selects_in_all_members() -> None:
    models = [random_model(SEQ2SEQ[name]) for name in ("paper", "bart")]
    ensemble = Ensemble(models)
    ids = random_ids(19, 3, 5)
    with torch.inference_mode():
        whole = mean_of(models)(ids, SOURCE_IDS)
        _, state = ensemble.step(ids[:, :3], ensemble.start(3, 9, SOURCE_IDS))
        assert state.lengths.tolist() == [3, 3, 3]
        state = state.select(torch.tensor([2, 0]))
        logits, state = ensemble.step(ids[[2, 0], 3:], state)
    assert_close(logits, whole[[2, 0], 3:])
    assert state.lengths.tolist() == [5, 5]


def test_a_vote_is_the_mean_of_full_forward_passes() -> None:
    models = [random_model(SEQ2SEQ[name], seed) for seed, name in enumerate(JOINT)]
    ids = random_ids(19, 3, 5)
    with torch.inference_mode():
        assert_close(Ensemble(models)(token_ids=ids, source_ids=SOURCE_IDS), mean_of(models)(ids, SOURCE_IDS))


def test_other_vocabularies_are_refused() -> None:
    paper = random_model(SEQ2SEQ["paper"])
    with pytest.raises(UserError, match=r"target vocabularies of 19 and 7 tokens.*same tokenizers"):
        Ensemble([paper, random_model(replace(SEQ2SEQ["paper"], vocab_size=7))])
    with pytest.raises(UserError, match="source vocabularies of 19 and 13 tokens"):
        Ensemble([paper, random_model(SEQ2SEQ["two_vocabularies"])])
