"""Attention as formulas (scores → weights → context): free functions, the readable reference of every fused path.

Letters: B batch, H heads, T query length, S key length, K key width, W value width.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.nn.kernels.attention import ScoreRules, attend, repeat_kv, scale_or_default
from glassformer.nn.kernels.flex_attention import attention_flex
from glassformer.nn.masks import Mask


def at_least_fp32(x: Tensor) -> Tensor:
    """Return a tensor of bf16 or fp16 in fp32, and any other one unchanged."""
    return x.float() if x.dtype.itemsize < 4 else x


def scaled_dot_product_scores(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """Compute score(q, k) = q·k / √K, the scores in equation 1 of Vaswani (2017).

    `query` (B, H, T, K), `key` (B, H, S, K) → (B, H, T, S). `scale` replaces 1/√K. The factor 1/√K keeps the variance
    of a dot product of K independent unit-variance terms at 1; without it, the softmax saturates as K grows.
    """
    return query @ key.transpose(-2, -1) * scale_or_default(scale, query.shape[-1])


def capped(x: Tensor, cap: float) -> Tensor:
    """Bound scores or logits smoothly: cap · tanh(x / cap) (Gemma 2, section 2); 0 = no bound.

    >>> capped(torch.tensor([1.0, 1000.0]), 50.0)
    tensor([ 0.9999, 50.0000])
    """
    return x if not cap else cap * torch.tanh(x / cap)


def masked_softmax(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """Apply softmax over the allowed keys; a query without an allowed key gets zeros, with finite gradients.

    `scores` (..., T, S), `allowed` bool and broadcastable, True = may attend.

    >>> masked_softmax(torch.zeros(2, 2), torch.tensor([[True, True], [False, False]]))
    tensor([[0.5000, 0.5000],
            [0.0000, 0.0000]])
    """
    if allowed is None:
        return scores.softmax(dim=-1)
    row_has_key = allowed.any(dim=-1, keepdim=True)
    # -inf instead of a large negative number, because it excludes a key in every precision. A row without a key is
    # unmasked for the softmax and zeroed afterwards: the gradient of a softmax over only -inf is NaN.
    weights = scores.masked_fill(~(allowed | ~row_has_key), -math.inf).softmax(dim=-1)
    return weights.masked_fill(~row_has_key, 0.0)


def attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    scale: float | None = None,
    dropout: float = 0.0,
    tap: Callable[[str, Tensor], Tensor] | None = None,
    cap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute softmax(capped(scale · q kᵀ) + bias) v step by step; return (context, weights, scores).

    `query` (B, H, T, K), `key` (B, G, S, K), `value` (B, G, S, W); the bias is that of the `mask`. `tap` is called with
    each named tensor, and its result replaces that tensor: the scores before the mask, the weights before dropout.
    Inputs in half precision are computed in fp32 (`at_least_fp32`), because the fused kernels do not round scores and
    weights to half precision; only the returned context is like `query`.
    """
    tap = (lambda name, x: x) if tap is None else tap
    n_heads, dtype = query.shape[1], query.dtype
    query, key, value = at_least_fp32(query), at_least_fp32(key), at_least_fp32(value)
    scores = capped(scaled_dot_product_scores(query, repeat_kv(key, n_heads), scale), cap)  # (B, H, T, S)
    if mask.bias is not None:
        scores = scores + mask.bias
    scores = tap("scores", scores)
    allowed = None if mask.is_trivial else mask.dense(query.shape[2], key.shape[2], query.device)
    weights = tap("weights", masked_softmax(scores, allowed))
    context = tap("context", F.dropout(weights, dropout) @ repeat_kv(value, n_heads))  # (B, H, T, W)
    return context.to(dtype), weights, scores


def attention_fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float | None = None, dropout: float = 0.0
) -> Tensor:
    """Return the context of `attention_reference`, softmax(scale · q kᵀ + bias) v, without storing the weights.

    The two are equal up to rounding and the random numbers of dropout, so that a reader may stop at
    `attention_reference`. `kernels/attention.py` chooses the kernel. A mask with a `block_mask` is for FlexAttention,
    which has neither bias nor dropout.
    """
    if scale is None:
        scale = scale_or_default(None, query.shape[-1])
    if mask.block_mask is not None and mask.bias is None and not dropout:
        return attention_flex(query, key, value, mask.block_mask, scale)
    n_queries, n_keys = query.shape[2], key.shape[2]
    is_causal = mask.bias is None and mask.is_only_causal and n_queries == n_keys
    allowed = None
    if not is_causal and not mask.is_trivial:
        allowed = mask.dense(n_queries, n_keys, query.device)
    rules = ScoreRules(scale, dropout, is_causal, allowed, mask.may_leave_a_row_empty, mask.bias)
    return attend(query, key, value, rules)


def additive_scores(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
    """Compute score(q, k) = vᵀ tanh(q + k) of projected q = W₁h and k = W₂s (Bahdanau 2015, appendix A.1.2).

    `query` (B, T, A), `key` (B, S, A), `vector` (A,) → (B, T, S).

    >>> additive_scores(torch.zeros(1, 1, 2), torch.zeros(1, 3, 2), torch.ones(2)).shape
    torch.Size([1, 1, 3])
    """
    return torch.tanh(query[:, :, None] + key[:, None, :]) @ vector


def multiplicative_scores(query: Tensor, key: Tensor) -> Tensor:
    """Compute score(q, k) = qᵀk: Luong (2015), equation 8 "dot"; "general" if `key` is already W·s.

    `query` (B, T, A), `key` (B, S, A) → (B, T, S).
    """
    return query @ key.transpose(-2, -1)
