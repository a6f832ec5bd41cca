"""`TrainStep` equals the plain step, its reference."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from configs import GPT, random_model
from glassformer.config.train import AdamWConfig
from glassformer.data.batching import Batch, Example
from glassformer.objectives.causal import CausalObjective
from glassformer.training.optimizers.build import build_optimizer
from glassformer.training.plain_step import plain_step
from runs import step_of

N_STEPS = 10
OBJECTIVE = CausalObjective(label_smoothing=0.1)


def batch_of(number: int) -> Batch:
    """Return one to four rows of unequal length; micro-batches of one step have unequal numbers of targets."""
    rng = np.random.default_rng(number)
    rows = [Example(rng.integers(19, size=length)) for length in rng.integers(2, 10, size=1 + number % 4)]
    return OBJECTIVE.collate(rows, rng)


@pytest.mark.parametrize("clip_norm", [0.0, 0.5])
@pytest.mark.parametrize("n_batches", [1, 3])
def test_ten_steps_equal_the_plain_ones(n_batches: int, clip_norm: float) -> None:
    """Losses, norms and weights have equal bits: both compute the same operations with the same shapes."""
    config = replace(GPT, embedding_dropout=0.1, ff_dropout=0.1)
    stepped, plain = (random_model(config, seed=3, dtype=torch.float32) for _ in range(2))
    step = step_of(stepped, build_optimizer(stepped, AdamWConfig(learning_rate=0.01)), OBJECTIVE, clip_norm=clip_norm)
    optimizer = build_optimizer(plain, AdamWConfig(learning_rate=0.01))
    norms = []
    for number in range(N_STEPS):
        numbers = range(number * n_batches, (number + 1) * n_batches)
        batches, seeds = [batch_of(n) for n in numbers], list(numbers)
        result = step(batches, seeds)
        loss, norm = plain_step(plain, optimizer, OBJECTIVE, batches, seeds, clip_norm)
        assert (result.nats / result.n_targets, result.gradient_norm) == (loss, norm), f"step {number}"
        norms.append(norm)
    assert min(norms) > 0.5, "the test needs gradients that are clipped"
    for name, weight in plain.state_dict().items():
        assert torch.equal(stepped.state_dict()[name], weight), name
