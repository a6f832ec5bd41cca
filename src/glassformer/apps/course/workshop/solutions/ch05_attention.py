"""Chapter 5: scaled dot-product attention, masks and heads (Vaswani et al. 2017, section 3.2).

Shapes: B texts, H heads, T queries, S keys, D width of the model, K width of a head.
"""

import math

import torch
from torch import Tensor


def causal_mask(n_tokens: int) -> Tensor:
    """Return which token may attend to which: (T, T) of bool, True if query i may attend to key j: j ≤ i."""
    return torch.ones(n_tokens, n_tokens, dtype=torch.bool).tril()


def causal_and_padding_mask(is_token: Tensor) -> Tensor:
    """Join the causal mask with the mask of padding: (B, 1, T, T) of bool, True = may attend.

    `is_token` (B, T) is True for tokens, False for padding. A query may attend to itself and to the tokens before it,
    never to padding. The axis of size 1 is for the heads.
    """
    n_tokens = is_token.shape[1]
    return causal_mask(n_tokens) & is_token[:, None, None, :]


def masked_softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """Return the softmax over the last axis of `scores` (…, T, S), among the keys that are `allowed` (…, T, S).

    Keys that are not allowed get the weight 0 exactly, for every score. A query without any allowed key gets
    zeros. All gradients are finite.
    """
    hidden = scores.masked_fill(~allowed, float("-inf"))
    is_empty = ~allowed.any(dim=-1, keepdim=True)
    weights = hidden.masked_fill(is_empty, 0.0).softmax(dim=-1)
    return weights.masked_fill(is_empty, 0.0)


def attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    """Return softmax(Q Kᵀ / √d) V among the allowed keys (equation 1): (…, T, W); d is the width of a key.

    `query` (…, T, d), `key` (…, S, d), `value` (…, S, W), `allowed` (…, T, S). A query without any allowed key
    gets zeros.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return masked_softmax(scores, allowed) @ value


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Give each head its part of the width: (B, T, D) → (B, H, T, D / H), where head 0 has the first numbers.

    Raise `ValueError` with both numbers if D is not a multiple of H.
    """
    n_rows, n_tokens, width = x.shape
    if width % n_heads:
        raise ValueError(f"a width of {width} cannot be divided among {n_heads} heads")
    return x.view(n_rows, n_tokens, n_heads, width // n_heads).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Put the parts of the heads side by side again: (B, H, T, K) → (B, T, H · K), the inverse of `split_heads`."""
    n_rows, n_heads, n_tokens, width = x.shape
    return x.transpose(1, 2).reshape(n_rows, n_tokens, n_heads * width)


def multi_head_attention(x: Tensor, memory: Tensor, w: dict[str, Tensor], n_heads: int, allowed: Tensor) -> Tensor:
    """Let each token of `x` (B, T, D) attend to `memory` (B, S, D) with several heads; return (B, T, D).

    `w` has the matrices "q", "k", "v" and "o", each (D, D), which are applied as x @ w["q"]. Queries come from `x`,
    keys and values from `memory`; self-attention is the case that both are the same. `allowed` is (B, 1, T, S); if
    a token may attend to no token, its heads are zeros, as `attention` gives them.
    """
    query = split_heads(x @ w["q"], n_heads)
    key = split_heads(memory @ w["k"], n_heads)
    value = split_heads(memory @ w["v"], n_heads)
    return join_heads(attention(query, key, value, allowed)) @ w["o"]
