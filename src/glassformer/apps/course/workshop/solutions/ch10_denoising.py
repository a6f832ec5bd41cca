"""Chapter 10: the damage of BART (Lewis et al. 2020) and of T5 (Raffel et al. 2020), and the positions of T5."""

import math

import torch
from torch import Tensor

Spans = list[tuple[int, int]]
"""Spans from left to right, without overlap. Each is a pair: its first place, and the place after its last one."""


def span_corruption(ids: list[int], spans: Spans, first_sentinel: int) -> tuple[list[int], list[int]]:
    """Remove spans as T5 does; return the input of the encoder, and the target of the decoder.

    `spans` are pairs (first place, place after the last one), from left to right, without overlap. In the input, span
    number i, from 0, becomes the sentinel `first_sentinel` + i. The target is each sentinel followed by the ids of its
    span. It has no end token and no last sentinel.
    """
    inputs, targets, place = [], [], 0
    for sentinel, (begin, end) in enumerate(spans, first_sentinel):
        inputs += [*ids[place:begin], sentinel]
        targets += [sentinel, *ids[begin:end]]
        place = end
    return inputs + ids[place:], targets


def infill(ids: list[int], spans: Spans, mask_id: int) -> tuple[list[int], list[int]]:
    """Remove spans as BART does; return the input of the encoder, and the target of the decoder.

    `spans` are pairs (first place, place after the last one), from left to right, without overlap. In the input, each
    span becomes one `mask_id`, independent of its length; a span of length 0 inserts one. The target is the whole text.
    """
    inputs, place = [], 0
    for begin, end in spans:
        inputs += [*ids[place:begin], mask_id]
        place = end
    return inputs + ids[place:], list(ids)


def relative_bucket(distance: Tensor, n_buckets: int, max_distance: int) -> Tensor:
    """Return the bucket of each distance of T5's encoder, which is the place of the key minus the place of the query.

    Half of the buckets, H = n_buckets / 2, are for distances of 0 and below, and begin with 0. The other half are for
    distances above 0, and begin with H. In each half, let d be the distance without its sign. The first E = H / 2
    buckets are for one d each: d below E has bucket d. Larger d have the bucket E + (H - E) · log(d / E) /
    log(max_distance / E), rounded down, but at most the last one of the half, H - 1. Buckets are int64.
    """
    half = n_buckets // 2
    n_exact = half // 2
    d = distance.abs()
    growth = (d.clamp(min=1) / n_exact).log() / math.log(max_distance / n_exact)
    far = (n_exact + (growth * (half - n_exact)).long()).clamp(max=half - 1)
    return torch.where(d < n_exact, d, far) + half * (distance > 0)
