"""Estimated shares are the slope of exact patching, and equal it where the two runs differ little."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
from configs import random_inputs, random_model
from glassformer.common.errors import UserError
from glassformer.inspection.capture import model_hooks
from glassformer.inspection.patching import (
    Patching,
    Places,
    Restored,
    estimate,
    head_places,
    mean_restored,
    patch,
    patch_pairs,
    patching_of,
    rank_correlation,
    residual_places,
)
from glassformer.tasks.reporting import Outcome
from tolerances import NETWORK, assert_close, near

NAMES = ["gpt", "llama", "t5", "bert"]
CHANGED, OTHER = 4, 13
"""Position at which the two runs have different tokens, and the token of the corrupted run there."""


def pair_of(network: Any) -> Patching:
    inputs = random_inputs(network, 1, n_source=9)
    clean = {"token_ids": inputs.token_ids.clamp(max=12), **inputs.others}
    side = "source_ids" if "source_ids" in clean else "token_ids"
    clean[side] = clean[side].clamp(max=12)
    corrupted = {name: x.clone() for name, x in clean.items()}
    corrupted[side][0, CHANGED] = OTHER
    return Patching(clean, corrupted, 3, 5)


def both_places(network: Any, pair: Patching) -> list[Places]:
    stack = "encoder" if network.encoder is not None else "decoder"
    return [residual_places(network, pair, stack), head_places(network, stack)]


def brought_near(network: Any, distance: float) -> None:
    """Set the vector of the corrupted token to that of the clean one plus a small change."""
    stack = network.encoder or network.decoder
    pair = pair_of(network)
    clean = pair.clean["source_ids" if "source_ids" in pair.clean else "token_ids"][0, CHANGED]
    table = stack.embeddings.tokens.weight
    change = torch.randn(table.shape[1], generator=torch.Generator().manual_seed(5), dtype=table.dtype)
    with torch.no_grad():
        table[OTHER] = table[clean] + distance * change


@pytest.mark.parametrize("name", NAMES)
def test_estimates_and_exact_shares_agree_to_first_order(name: str) -> None:
    """The difference falls tenfold with the distance of the runs; the shares themselves do not fall."""
    errors: list[list[float]] = []
    for distance in (1e-3, 1e-4):
        network = random_model(name)
        brought_near(network, distance)
        pair = pair_of(network)
        both = [(patch(network, pair, x), estimate(network, pair, x)) for x in both_places(network, pair)]
        for exact, estimated in both:
            assert (exact.layers, exact.columns) == (estimated.layers, estimated.columns)
            assert (exact.clean, exact.corrupted) == pytest.approx((estimated.clean, estimated.corrupted))
            assert float(exact.shares.abs().max()) > 0.01
            large = exact.shares.abs() > 0.01
            assert torch.equal(exact.shares[large].sign(), estimated.shares[large].sign())
            assert rank_correlation(exact, estimated) > 0.99
        errors.append([float((exact.shares - estimated.shares).abs().max()) for exact, estimated in both])
    for coarse, fine in zip(*errors, strict=True):
        assert coarse < 0.1 and fine < max(0.2 * coarse, 1e-5)


@pytest.mark.parametrize("name", ["gpt", "t5"])
def test_an_estimate_is_the_slope_at_the_corrupted_run(name: str) -> None:
    """Central differences with a hook: the metric with x ± h · (clean − corrupted) at one place."""
    network, h = random_model(name), 1e-5
    pair = pair_of(network)

    def slope(path: str, index: int) -> float:
        kept: list[Tensor] = []
        with torch.no_grad(), model_hooks(network, {path: lambda name, x: kept.append(x)}):
            network(**pair.clean)
            network(**pair.corrupted)
        step = torch.zeros_like(kept[0])
        step[:, index] = (kept[0] - kept[1])[:, index]
        metrics = []
        for sign in (1, -1):
            with torch.no_grad(), model_hooks(network, {path: lambda name, x, sign=sign: x + sign * h * step}):
                metrics.append(float(pair.metric(network(**pair.corrupted))[0]))
        return (metrics[0] - metrics[1]) / (2 * h)

    for places in both_places(network, pair):
        found = estimate(network, pair, places)
        for row, path in zip(found.shares, places.names.values(), strict=True):
            expected = [slope(path, i) / (found.clean - found.corrupted) for i in range(len(row))]
            assert row.tolist() == near(expected, terms=NETWORK), path


def test_frozen_weights_give_the_same_estimate() -> None:
    network = random_model("gpt")
    pair = pair_of(network)
    for places in both_places(network, pair):
        expected = estimate(network.requires_grad_(True), pair, places)
        found = estimate(network.requires_grad_(False), pair, places)
        assert torch.equal(found.shares, expected.shares)
    with torch.no_grad():
        found = estimate(network, pair, both_places(network, pair)[1])
    assert found.shares.any() and not found.shares.requires_grad


def test_means_over_pairs_and_their_baseline(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    ids = [{"token_ids": torch.tensor([[3, 7, 9 + i, 12, 15]])} for i in range(7)]
    pairs = [Patching(one, ids[6], 20, 30) for one in ids[:6]]
    exact, estimated = patch_pairs(model.network, pairs, "heads")
    each = [patch(model.network, pair, head_places(model.network)) for pair in pairs]
    assert exact.n_texts == 6 and [one.clean for one in exact.of_texts] == [one.clean for one in each]
    shares = torch.stack([one.shares for one in each])
    assert_close(exact.shares, shares.mean(0))
    assert estimated.shares.shape == exact.shares.shape and not math.isnan(rank_correlation(exact, estimated))
    for (i, j), one in exact.beside_others().items():
        others = (shares.sum((1, 2)) - shares[:, i, j]) / (shares[0].numel() - 1)
        assert one.own.mean == near(float(shares[:, i, j].mean()))
        assert one.own.deviation == near(float(shares[:, i, j].std()))
        assert one.baseline == near(float(others.mean()))
        difference = shares[:, i, j] - others
        assert one.is_beyond is (float(difference.mean()) > 3 * float(difference.std()) / 6**0.5)
    calls = list[tuple[int, int]]()
    patch_pairs(model.network, pairs[:2], "heads", progress=lambda done, total: calls.append((done, total)))
    n = shares[0].numel()
    assert calls[0][0] > 0 and calls[-2] == (2 * n, 2 * n) and calls == sorted(calls[:-1]) + calls[-1:]
    alone, _ = patch_pairs(model.network, pairs[:1])
    single = patch(model.network, pairs[0], residual_places(model.network, pairs[0]))
    assert torch.equal(alone.shares, single.shares) and alone.n_texts == 1
    assert not any(one.is_beyond for one in alone.beside_others().values()), "one text has no spread"


def test_pairs_of_several_lengths_are_compared_by_heads_only(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    texts = [("a b", "c b"), ("a b d", "c b d")]
    pairs = [patching_of(model, clean, corrupted, "a", "b") for clean, corrupted in texts]
    assert patch_pairs(model.network, pairs, "heads")[0].n_texts == 2
    with pytest.raises(UserError, match="the pairs have different numbers of tokens: choose heads"):
        patch_pairs(model.network, pairs)
    with pytest.raises(UserError, match="there is no pair of texts"):
        mean_restored([])


def test_the_rank_correlation_of_ties() -> None:
    """Equal values share their mean rank, and cells without a difference are left out."""
    one = Restored(["a"], torch.tensor([[0.0, 1.0, 1.0, 2.0, 5.0]]), 1.0, 0.0)
    other = Restored(["a"], torch.tensor([[0.0, 2.0, 3.0, 3.0, 1.0]]), 1.0, 0.0)
    ranks = torch.tensor([[1.5, 1.5, 3.0, 4.0], [2.0, 3.5, 3.5, 1.0]])
    assert rank_correlation(one, other) == pytest.approx(float(torch.corrcoef(ranks)[0, 1]))
