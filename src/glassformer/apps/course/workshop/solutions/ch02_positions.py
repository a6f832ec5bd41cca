"""Chapter 2: softmax, positions and the first gradient (Vaswani et al. 2017, section 3.5; Su et al. 2021)."""

import torch
from torch import Tensor


def softmax(scores: Tensor) -> Tensor:
    """Return exp(score) / Σ exp(scores) over the last axis; same shape as `scores` (…, V).

    The result is finite for all finite scores, also where the exponential is too large for its type: the softmax does
    not change if the maximum of its row is subtracted from all scores of the row.
    """
    exponentials = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def sinusoids(n_tokens: int, width: int) -> Tensor:
    """Return the vectors of the positions 0 … T - 1: (T, D), sines and cosines alternately.

    Number 2i of position p is sin(p · ω), number 2i + 1 is cos(p · ω), with the frequency ω = 10000^(-2i / D).
    Raise `ValueError` with the width if it is odd.
    """
    if width % 2:
        raise ValueError(f"sines and cosines come in pairs, so the width must be even; it is {width}")
    frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.arange(n_tokens)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate queries or keys by their positions (rotary embedding): (B, H, T, K) → (B, H, T, K).

    Numbers i and i + K / 2 of a head are the two coordinates of a point, for i = 0 … K / 2 - 1. The point (a, b) of a
    token at position p is rotated by the angle φ = p · 10000^(-2i / K) and becomes (a cos φ - b sin φ,
    a sin φ + b cos φ). `positions` (T,) are the positions of the tokens; the first one need not be 0.
    """
    width = x.shape[-1]
    frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = positions[:, None] * frequencies
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1)


def gradient_of_softmax_cross_entropy(logits: Tensor, label: int) -> Tensor:
    """Return the gradient of -ln softmax(logits)[label] with respect to the logits (V,): a tensor (V,).

    Derive it on paper, and use no automatic differentiation. It is finite for all finite logits.
    """
    gradient = softmax(logits)
    gradient[label] -= 1.0
    return gradient
