"""Chapter 6: norms, the feed-forward layer and the block (Ba et al. 2016; Hendrycks and Gimpel 2016).

Shapes: B texts, T tokens, D width of the model, F width of the feed-forward layer, H heads, K = D / H.
"""

import math

import torch
from torch import Tensor

from glassformer.apps.course.workshop.solutions.ch05_attention import multi_head_attention


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return (x - mean) / √(variance + eps) · weight + bias over the last axis of `x` (B, T, D): (B, T, D).

    The variance is the mean of the squared differences from the mean, so its sum is divided by D. `weight` and `bias`
    are (D,).
    """
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred / (variance + eps).sqrt() * weight + bias


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / √(mean of x² + eps) · weight over the last axis of `x` (B, T, D): (B, T, D); `weight` is (D,)."""
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight


def gelu(x: Tensor) -> Tensor:
    """Return x · Φ(x) for each number, where Φ(x) = (1 + erf(x / √2)) / 2 is the normal distribution function.

    This is the exact function; torch has `torch.erf`.
    """
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def feed_forward(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Return gelu(x W₁ + b₁) W₂ + b₂ for each token of `x` (B, T, D): (B, T, D).

    `w` has the matrices "up" (D, F), which is W₁, and "down" (F, D), which is W₂, and the biases "up_bias" (F,) and
    "down_bias" (D,).
    """
    return gelu(x @ w["up"] + w["up_bias"]) @ w["down"] + w["down_bias"]


def block(x: Tensor, w: dict[str, Tensor], allowed: Tensor, n_heads: int) -> Tensor:
    """Return the stream after one pre-norm block: (B, T, D) → (B, T, D).

    h = x + attention(layer_norm(x)), and then h + feed_forward(layer_norm(h)). The attention is self-attention with
    `n_heads` heads, the `multi_head_attention` of chapter 5; `allowed` (B, 1, T, T) is True where a query may attend to
    a key, and each query has a key. `w` has the weights of `feed_forward`, the matrices "q", "k", "v" and "o" of the
    attention, each (D, D) and applied as x @ w["q"], and for the two norms, both with eps 1e-5, "norm_1",
    "norm_1_bias", "norm_2" and "norm_2_bias", each (D,).
    """
    normed = layer_norm(x, w["norm_1"], w["norm_1_bias"], 1e-5)
    h = x + multi_head_attention(normed, normed, w, n_heads, allowed)
    return h + feed_forward(layer_norm(h, w["norm_2"], w["norm_2_bias"], 1e-5), w)


def dropout(x: Tensor, keep: Tensor, rate: float) -> Tensor:
    """Set to zero the numbers of `x` where `keep` is False, and divide the others by 1 - `rate`.

    `keep` is a tensor of bool with the shape of `x`, drawn with the probability 1 - `rate` of True, so the mean of each
    number stays the same. `rate` is at least 0 and less than 1.
    """
    return x * keep / (1 - rate)
