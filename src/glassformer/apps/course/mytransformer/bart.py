"""Damage of BART and T5, and its repair (Lewis et al. 2020; Raffel et al. 2020)."""

import math

import torch

from .transformer import Batch, batch_of

Spans = list[tuple[int, int]]
"""Spans without overlap, from left to right: first place, and place after the last."""


def span_corruption(
    ids: list[int], spans: Spans, first_sentinel: int
) -> tuple[list[int], list[int]]:
    """Remove spans as T5 does; return the input of the encoder, and the target of the
    decoder.

    `spans` are pairs (first place, place after the last one), from left to right,
    without overlap. In the input, span number i, from 0, becomes the sentinel
    `first_sentinel` + i. The target is each sentinel followed by the ids of its span.
    It has no end token and no last sentinel.
    """
    inputs, targets, place = [], [], 0
    for sentinel, (begin, end) in enumerate(spans, first_sentinel):
        inputs += [*ids[place:begin], sentinel]
        targets += [sentinel, *ids[begin:end]]
        place = end
    return inputs + ids[place:], targets


def infill(ids: list[int], spans: Spans, mask_id: int) -> tuple[list[int], list[int]]:
    """Remove spans as BART does; return the input of the encoder, and the target of the
    decoder.

    `spans` are pairs (first place, place after the last one), from left to right,
    without overlap. In the input, each span becomes one `mask_id`, independent of its
    length; a span of length 0 inserts one. The target is the whole text.
    """
    inputs, place = [], 0
    for begin, end in spans:
        inputs += [*ids[place:begin], mask_id]
        place = end
    return inputs + ids[place:], list(ids)


def draw_spans(n_tokens: int, rate: float, generator: torch.Generator) -> Spans:
    """Draw spans with together at least `rate` of the tokens, rounded up.

    Repeat until there are enough: draw a length from the Poisson distribution with mean
    3, cut it to what is still missing, and a first place where it fits into the text. A
    span that overlaps or touches another one, or is empty, is drawn again.
    """
    missing = math.ceil(rate * n_tokens)
    spans: Spans = []
    while missing:
        length = int(torch.poisson(torch.tensor(3.0), generator=generator))
        length = min(length, missing)
        begin = int(torch.randint(n_tokens - length + 1, (1,), generator=generator))
        near = any(begin <= b and a <= begin + length for a, b in spans)
        if length and not near:
            spans.append((begin, begin + length))
            missing -= length
    return sorted(spans)


def denoising_batch(
    rows: list[list[int]],
    rate: float,
    mask_id: int,
    start: int,
    end: int,
    pad: int,
    generator: torch.Generator,
) -> Batch:
    """Damage each row with `infill` at drawn spans, and let the model restore it.

    The batch is that of `batch_of` for the pairs of damaged and whole rows. Spans are
    drawn row after row.
    """
    pairs = [
        infill(row, draw_spans(len(row), rate, generator), mask_id) for row in rows
    ]
    return batch_of(pairs, start, end, pad)
