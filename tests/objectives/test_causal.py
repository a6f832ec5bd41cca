"""Next-token prediction: labels are shifted once; padding and other documents are never scored."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from configs import random_model
from glassformer.data.batching import Example
from glassformer.objectives.causal import CausalObjective
from tolerances import near

RNG = np.random.default_rng(0)


def example(*ids: int, documents: list[int] | None = None) -> Example:
    return Example(np.array(ids), None if documents is None else np.array(documents))


def test_pitfall_18_labels_are_the_inputs_shifted_once() -> None:
    ids = np.arange(40).reshape(4, 10)
    batch = CausalObjective().collate([Example(row) for row in ids], RNG)
    assert batch.token_ids.tolist() == ids[:, :-1].tolist()
    assert batch.labels.tolist() == ids[:, 1:].tolist()
    assert torch.equal(batch.token_ids[:, 1:], batch.labels[:, :-1])
    assert batch.n_targets == 36 and batch.attention_mask is None and batch.positions is None


@pytest.mark.parametrize(("ahead", "is_right"), [(0, False), (1, True), (2, False)])
def test_pitfall_18_only_the_next_token_is_scored_as_right(ahead: int, is_right: bool) -> None:
    """Compare models that predict the current token, the next token, and the token after the next."""
    ids = np.array([3, 1, 4, 0, 5, 2, 6])  # no token twice, so that a copy is never right by chance

    def model(token_ids: Tensor, **_: Tensor) -> Tensor:
        predicted = torch.from_numpy(ids).roll(-ahead)[: token_ids.shape[1]]
        return 50 * torch.nn.functional.one_hot(predicted, 7)[None].double()

    objective = CausalObjective()
    sums = objective.loss(model, objective.collate([Example(ids)], RNG))
    if is_right:
        assert float(sums.nats) < 1e-6
    elif ahead == 0:
        assert float(sums.nats) == pytest.approx(50 * 6)
    else:
        assert float(sums.nats) >= 50 * 5


def test_pitfall_19_padding_is_neither_scored_nor_attended_to() -> None:
    network = random_model("gpt")
    objective = CausalObjective()
    rng = np.random.default_rng(0)
    rows = [example(*rng.integers(19, size=n).tolist()) for n in (9, 4, 2)]
    together = objective.loss(network, objective.collate(rows, RNG))
    alone = [objective.loss(network, objective.collate([row], RNG)) for row in rows]
    assert together.n_targets == sum(one.n_targets for one in alone) == 8 + 3 + 1
    assert float(together.nats) == near(sum(float(one.nats) for one in alone))


def test_a_packed_row_separates_its_documents() -> None:
    network = random_model("gpt")
    objective = CausalObjective()
    rng = np.random.default_rng(0)
    first, second = rng.integers(19, size=5).tolist(), rng.integers(19, size=7).tolist()
    packed = objective.collate([example(*first, *second, documents=[0] * 5 + [1] * 7)], RNG)
    assert packed.positions is not None and packed.document_ids is not None
    assert packed.labels.tolist() == [[*first[1:], -100, *second[1:]]]
    assert packed.positions.tolist() == [[*range(5), *range(6)]]
    sums = objective.loss(network, packed)
    apart = [objective.loss(network, objective.collate([example(*ids)], RNG)) for ids in (first, second)]
    assert sums.n_targets == 4 + 6
    assert float(sums.nats) == near(sum(float(one.nats) for one in apart))


def test_label_smoothing_is_minimised_and_not_reported() -> None:
    network = random_model("gpt")
    ids = np.random.default_rng(0).integers(19, size=(2, 6))
    plain, smooth = CausalObjective(), CausalObjective(0.1)
    batch = plain.collate([Example(row) for row in ids], RNG)
    sums, smoothed = plain.loss(network, batch), smooth.loss(network, batch)
    assert float(smoothed.nats) == float(sums.nats) == float(sums.total.detach())
    log_p = network(**batch.model_inputs()).float().log_softmax(-1)
    expected = 0.9 * float(sums.nats) - 0.1 * float(log_p.detach().mean(-1).sum())
    assert float(smoothed.total.detach()) == near(expected)
    assert smoothed.total.requires_grad and not smoothed.nats.requires_grad


def test_the_sum_of_uniform_logits_is_n_ln_v() -> None:
    objective = CausalObjective()
    batch = objective.collate([example(1, 2, 3), example(4, 5)], RNG)
    sums = objective.loss(lambda token_ids, **_: torch.zeros(*token_ids.shape, 11, dtype=torch.bfloat16), batch)
    assert float(sums.nats) == near(3 * math.log(11))
