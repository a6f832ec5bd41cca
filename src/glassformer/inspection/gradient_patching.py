"""Attribution patching: an estimate of activation patching at all places at once, from one backward pass.

Patching a place adds d = x_clean − x_corrupted to it. To first order in d, the metric m changes by its gradient:

    share ≈ Σ d · ∂m/∂x (corrupted run) / (m_clean − m_corrupted)

(Nanda 2023, "Attribution Patching: Activation Patching At Industrial Scale"). It takes two forward passes and one
backward pass, exact patching one forward pass per place. The estimate is good where d is small; it is known to be poor
for the residual stream, where d is large and norms bend the metric. So it is shown beside the exact shares, with the
rank correlation of both (Spearman 1904).
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from glassformer.common.errors import Progress
from glassformer.evaluation.labels import ranks
from glassformer.inspection.attention_maps import Kind
from glassformer.inspection.patching import (
    Patching,
    Places,
    Restored,
    head_places,
    mean_restored,
    metrics_of,
    patch,
    residual_places,
    run_with,
)
from glassformer.models.devices import evaluation_mode
from glassformer.models.transformer import Transformer

Parts = Literal["positions", "heads"]
"""The residual stream at each position, or the context of each head."""
PARTS: tuple[Parts, ...] = ("positions", "heads")


def patch_pairs(
    network: Transformer,
    pairs: Sequence[Patching],
    parts: Parts = "positions",
    stack: Kind | None = None,
    progress: Progress | None = None,
) -> tuple[Restored, Restored]:
    """Return the exact and the estimated shares: means over pairs of runs, with those of each pair.

    One pair is a set of one. Pairs of several lengths need `parts="heads"`. `stack` is that of `Places`.

    ```python
    texts = (("The king is here:", "The queen is here:"), ("A man is here:", "A woman is here:"))
    pairs = [patching_of(model, clean, corrupted) for clean, corrupted in texts]
    exact, estimated = patch_pairs(model.network, pairs, "heads")
    exact.beside_others()[2, 3].is_beyond, rank_correlation(exact, estimated)
    ```
    """
    exact, estimated = list[Restored](), list[Restored]()
    for pair in pairs:
        places = head_places(network, stack) if parts == "heads" else residual_places(network, pair, stack)
        exact.append(patch(network, pair, places))
        estimated.append(estimate(network, pair, places))
        if progress is not None:
            progress(len(exact), len(pairs))
    return mean_restored(exact), mean_restored(estimated)


def estimate(network: Transformer, pair: Patching, places: Places) -> Restored:
    """Return the estimated shares at the places of `patch`, in its form.

    Raises `UserError` for runs with equal logit differences.
    """
    paths = list(places.names.values())
    with evaluation_mode(network):
        with torch.no_grad():
            clean_logits, clean_tensors = run_with(network, pair.clean, paths)
        with torch.enable_grad():
            corrupted_logits, tensors = run_with(network, pair.corrupted, paths, _requiring_gradient)
            gradients = torch.autograd.grad(pair.metric(corrupted_logits)[0], [tensors[path] for path in paths])
    clean, corrupted = metrics_of(pair, clean_logits, corrupted_logits.detach())
    rows = []
    for path, gradient in zip(paths, gradients, strict=True):
        change = (clean_tensors[path] - tensors[path].detach()) * gradient
        rows.append(change[0].flatten(1).sum(dim=1).cpu() / (clean - corrupted))
    return Restored(list(places.names), torch.stack(rows).float(), clean, corrupted, places.columns)


def _requiring_gradient(name: str, x: Tensor) -> Tensor:
    """Return a tensor that records its gradient, also in a network with frozen weights."""
    return x if x.requires_grad else x.detach().requires_grad_()


def rank_correlation(exact: Restored, estimated: Restored) -> float:
    """Return Spearman's rank correlation of two maps; NaN if one is constant, or if fewer than two cells are left.

    Cells in which both are exactly 0 are left out: there, both runs have equal tensors, and nothing is estimated.

    >>> from glassformer.inspection.patching import Restored
    >>> shares = torch.tensor([[0.0, 0.1, 0.2, 0.9]]), torch.tensor([[0.0, 0.3, 0.2, 5.0]])
    >>> one, other = (Restored(["a"], x, 1.0, 0.0) for x in shares)
    >>> round(rank_correlation(one, other), 3)
    0.5
    >>> nothing = Restored(["a"], torch.zeros(1, 4), 1.0, 0.0)
    >>> rank_correlation(nothing, nothing)
    nan
    """
    differs = (exact.shares != 0) | (estimated.shares != 0)
    if int(differs.sum()) < 2:
        return math.nan
    both = [torch.from_numpy(ranks(restored.shares[differs].numpy())) for restored in (exact, estimated)]
    return float(torch.corrcoef(torch.stack(both))[0, 1])
