"""Batches by token budget: every pair once per epoch, a function of (seed, step), little padding."""

import numpy as np
import pytest

from glassformer.common.errors import UserError
from glassformer.data.batching import TokenBudget, evaluation_batches
from glassformer.data.pair_rows import PairFile, pair_rows
from glassformer.data.tokens import TokenFile


def stream(lengths: np.ndarray) -> TokenFile:
    """Return a token file whose document i is filled with the number i."""
    ids = np.repeat(np.arange(len(lengths)), lengths).astype(np.uint16)
    return TokenFile("x", ids, np.cumsum(lengths) - lengths, 0, 0)


def pairs(n: int = 500, largest: int = 40) -> PairFile:
    rng = np.random.default_rng(0)
    source = np.clip(rng.normal(14, 6, n), 1, largest).astype(np.int64)
    target = np.clip(source + rng.integers(-3, 4, n), 1, largest)
    return PairFile("training pairs", stream(source), stream(target), np.arange(n))


def identity(example: object) -> int:
    ids = example.token_ids  # type: ignore[attr-defined]
    assert ids[0] == example.source_ids[0]  # type: ignore[attr-defined]
    return int(ids[0])


@pytest.mark.parametrize("budget", [50, 256, 4096, 10**6])
def test_epochs_have_every_pair_once_and_batches_keep_the_budget(budget: int) -> None:
    sampler = TokenBudget(pair_rows(pairs()), budget, seed=3)
    n = sampler.n_batches_per_epoch
    for epoch in range(3):
        batches = [sampler.batch(epoch * n + step) for step in range(n)]
        assert sorted(identity(e) for batch in batches for e in batch) == list(range(500))
        for batch in batches:
            longest = max(max(len(e.token_ids), len(e.source_ids)) + 1 for e in batch)  # type: ignore[arg-type]
            assert len(batch) * longest <= budget


def test_pitfall_23_a_batch_is_a_function_of_seed_and_step() -> None:
    data = pairs()
    one, other = TokenBudget(pair_rows(data), 256, seed=3), TokenBudget(pair_rows(data), 256, seed=3)
    steps = [0, 1, 70, one.n_batches_per_epoch * 2 + 5]
    drawn = {step: [identity(e) for e in one.batch(step)] for step in steps}
    for step in reversed(steps):
        assert [identity(e) for e in other.batch(step)] == drawn[step]
    n = one.n_batches_per_epoch
    assert [identity(e) for e in TokenBudget(pair_rows(data), 256, seed=4).batch(0)] != drawn[0]
    assert [[identity(e) for e in one.batch(n + step)] for step in range(5)] != [
        [identity(e) for e in one.batch(step)] for step in range(5)
    ]


def test_neighbours_change_from_epoch_to_epoch() -> None:
    sampler = TokenBudget(pair_rows(pairs(2000)), 512, seed=0)
    n = sampler.n_batches_per_epoch
    first, second = (
        {frozenset(identity(e) for e in sampler.batch(epoch * n + step)) for step in range(n)} for epoch in (0, 1)
    )
    assert len(first & second) < n / 10


def test_little_of_a_batch_is_padding() -> None:
    data = pairs(5000)
    sampler = TokenBudget(pair_rows(data), 1024, seed=0)
    real = cells = 0
    for step in range(sampler.n_batches_per_epoch):
        batch = sampler.batch(step)
        sides = [[len(e.token_ids) + 1 for e in batch], [len(e.source_ids) + 1 for e in batch]]  # type: ignore[arg-type]
        real += sum(map(sum, sides))
        cells += sum(len(batch) * max(side) for side in sides)
    assert real / cells > 0.85


def test_evaluation_has_every_pair_once_and_long_pairs_alone() -> None:
    data = pairs(100)
    batches = list(evaluation_batches(pair_rows(data), 30))
    assert sorted(identity(e) for batch in batches for e in batch) == list(range(100))
    longest = int(pair_rows(data).lengths.max())
    for batch in batches:
        width = max(max(len(e.token_ids), len(e.source_ids)) + 1 for e in batch)  # type: ignore[arg-type]
        assert len(batch) * width <= max(30, longest)


def test_a_subset_gives_only_its_pairs() -> None:
    data = pairs(50)
    part, n_left_out = data.within(12, 40)
    sampler = TokenBudget(pair_rows(part), 100, seed=0)
    seen = sorted(identity(e) for step in range(sampler.n_batches_per_epoch) for e in sampler.batch(step))
    assert seen == part.rows.tolist() and len(seen) == 50 - n_left_out and 0 < n_left_out < 50


def test_too_long_pairs_and_empty_data_are_refused() -> None:
    data = pairs(50)
    longest = int(pair_rows(data).lengths.max())
    with pytest.raises(UserError, match=f"data.batch_tokens: expected at least {longest}, .* got {longest - 1}"):
        TokenBudget(pair_rows(data), longest - 1, seed=0)
    with pytest.raises(UserError, match=r"no row of the training pairs fits model\.max_len"):
        TokenBudget(pair_rows(data.within(1, 1)[0]), 100, seed=0)
