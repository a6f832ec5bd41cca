"""Scaled dot-product attention, masks and heads (Vaswani et al. 2017, section 3.2).

Shapes: B texts, H heads, T queries, S keys, D width of the model, K width of a head.
"""

import math

import torch
from torch import Tensor, nn

KeysAndValues = tuple[Tensor, Tensor]
Cache = list[list[Tensor]]
"""For each block, nothing or the keys and the values (B, H, S, K) of the tokens so far.
"""


def causal_mask(n_tokens: int) -> Tensor:
    """Return which token may attend to which: (T, T) of bool, True if query i may
    attend to key j: j ≤ i.
    """
    return torch.ones(n_tokens, n_tokens, dtype=torch.bool).tril()


def causal_and_padding_mask(is_token: Tensor) -> Tensor:
    """Join the causal mask with the mask of padding: (B, 1, T, T) of bool, True = may
    attend.

    `is_token` (B, T) is True for tokens, False for padding. A query may attend to
    itself and to the tokens before it, never to padding. The axis of size 1 is for the
    heads.
    """
    n_tokens = is_token.shape[1]
    return causal_mask(n_tokens) & is_token[:, None, None, :]


def masked_softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """Return the softmax over the last axis of `scores` (…, T, S), among the keys that
    are `allowed` (…, T, S).

    Keys that are not allowed get the weight 0 exactly, for every score. A query without
    any allowed key gets zeros. All gradients are finite.
    """
    hidden = scores.masked_fill(~allowed, float("-inf"))
    is_empty = ~allowed.any(dim=-1, keepdim=True)
    weights = hidden.masked_fill(is_empty, 0.0).softmax(dim=-1)
    return weights.masked_fill(is_empty, 0.0)


def attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    """Return softmax(Q Kᵀ / √d) V among the allowed keys (equation 1): (…, T, W); d is
    the width of a key.

    `query` (…, T, d), `key` (…, S, d), `value` (…, S, W), `allowed` (…, T, S). A query
    without any allowed key gets zeros.
    """
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return masked_softmax(scores, allowed) @ value


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Give each head its part of the width: (B, T, D) → (B, H, T, D / H), where head 0
    has the first numbers.

    Raise `ValueError` with both numbers if D is not a multiple of H.
    """
    n_rows, n_tokens, width = x.shape
    if width % n_heads:
        raise ValueError(f"a width of {width} cannot be divided among {n_heads} heads")
    return x.view(n_rows, n_tokens, n_heads, width // n_heads).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Put the parts of the heads side by side again: (B, H, T, K) → (B, T, H · K), the
    inverse of `split_heads`.
    """
    n_rows, n_heads, n_tokens, width = x.shape
    return x.transpose(1, 2).reshape(n_rows, n_tokens, n_heads * width)


def multi_head_attention(
    x: Tensor, memory: Tensor, w: dict[str, Tensor], n_heads: int, allowed: Tensor
) -> Tensor:
    """Let each token of `x` (B, T, D) attend to `memory` (B, S, D) with several heads;
    return (B, T, D).

    `w` has the matrices "q", "k", "v" and "o", each (D, D), which are applied as x @
    w["q"]. Queries come from `x`, keys and values from `memory`; self-attention is the
    case that both are the same. `allowed` is (B, 1, T, S); if a token may attend to no
    token, its heads are zeros, as `attention` gives them.
    """
    query = split_heads(x @ w["q"], n_heads)
    key = split_heads(memory @ w["k"], n_heads)
    value = split_heads(memory @ w["v"], n_heads)
    return join_heads(attention(query, key, value, allowed)) @ w["o"]


def attend_with_cache(
    query: Tensor, key: Tensor, value: Tensor, cache: KeysAndValues | None
) -> tuple[Tensor, KeysAndValues]:
    """Return causal attention of new tokens, and the cache with their keys and values.

    `query`, `key` and `value` (B, H, T, K) are of the T new tokens only. `cache` has
    the keys and values of the S tokens before them, or is None if they are the first
    ones. A new token may attend to all tokens of the cache, to the new tokens before it
    and to itself. The attention (B, H, T, K) is softmax(Q Kᵀ / √d) V, where d is the
    width of a key.
    """
    if cache is not None:
        key, value = (
            torch.cat([cache[0], key], dim=2),
            torch.cat([cache[1], value], dim=2),
        )
    n_new, n_all = query.shape[2], key.shape[2]
    allowed = torch.ones(n_new, n_all, dtype=torch.bool).tril(n_all - n_new)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1) @ value, (
        key,
        value,
    )


def attention_by_tiles(query: Tensor, key: Tensor, value: Tensor, size: int) -> Tensor:
    """Return causal attention without a matrix of all scores (Dao et al. 2022).

    `query`, `key` and `value` (B, H, T, K). For each tile of `size` queries, read the
    keys by tiles of `size`, and keep the largest score so far, the sum of the
    exponentials and the weighted sum of the values, which are all corrected if a larger
    score appears. Tiles after the last query are not read. No tensor has T² numbers.
    """
    n_tokens, width = query.shape[-2:]
    outputs = []
    for top in range(0, n_tokens, size):
        q = query[..., top : top + size, :] / math.sqrt(width)
        largest = torch.full_like(q[..., :1], float("-inf"))
        total, mixed = torch.zeros_like(largest), torch.zeros_like(q)
        for left in range(0, top + q.shape[-2], size):
            k, v = (x[..., left : left + size, :] for x in (key, value))
            scores = q @ k.transpose(-2, -1)
            allowed = torch.ones_like(scores, dtype=torch.bool).tril(top - left)
            scores = scores.masked_fill(~allowed, float("-inf"))
            new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))
            shrink, weights = (largest - new).exp(), (scores - new).exp()
            total = shrink * total + weights.sum(dim=-1, keepdim=True)
            mixed = shrink * mixed + weights @ v
            largest = new
        outputs.append(mixed / total)
    return torch.cat(outputs, dim=-2)


class MultiHeadAttention(nn.Module):
    """Attention with several heads, and its four matrices.

    Parameters: `q`, `k`, `v` and `o`, each a linear layer D → D, with a bias if
    `has_bias`. A width that the heads do not divide raises `ValueError`.
    """

    def __init__(self, d_model: int, n_heads: int, has_bias: bool = True) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v, self.o = (
            nn.Linear(d_model, d_model, bias=has_bias) for _ in range(4)
        )

    def forward(
        self,
        x: Tensor,
        allowed: Tensor,
        memory: Tensor | None = None,
        cache: list[Tensor] | None = None,
    ) -> Tensor:
        """Let x (B, T, D) attend to `memory` (B, S, D), or to itself: (B, T, D).

        `allowed` (B or 1, 1, T, S) is True where a query may attend to a key. A `cache`
        is a list, without `memory` only: it is empty at first, and after a call it has
        two tensors, the keys and the values (B, H, S, K) of all tokens so far. x
        attends to all of them.
        """
        memory = x if memory is None else memory
        query = split_heads(self.q(x), self.n_heads)
        key, value = (split_heads(f(memory), self.n_heads) for f in (self.k, self.v))
        if cache is not None:
            if cache:
                key, value = (
                    torch.cat((cache[0], key), 2),
                    torch.cat((cache[1], value), 2),
                )
            cache[:] = [key, value]
        return self.o(join_heads(attention(query, key, value, allowed)))


def n_cached(cache: Cache | None) -> int:
    """Return the number of tokens whose keys a cache has, 0 without a cache."""
    return cache[0][0].shape[2] if cache and cache[0] else 0
