"""Attention as formulas (scores → weights → context): free functions, the readable reference of every fused path.

Letters: B batch, H heads, T query length, S key length, K key width, W value width.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.nn import processor
from glassformer.nn.blocked_attention import attention_blocked
from glassformer.nn.flex_attention import attention_flex
from glassformer.nn.linear_layers import is_transformed
from glassformer.nn.masks import Mask

_HALVES = (torch.bfloat16, torch.float16)
MIN_WEIGHTS = 48 * 48
"""Number of weights per head from which blocks in bfloat16 are faster than the kernel in fp32."""


def scaled_dot_product_scores(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """Compute score(q, k) = q·k / √K, the scores in equation 1 of Vaswani (2017).

    `query` (B, H, T, K), `key` (B, H, S, K) → (B, H, T, S). `scale` replaces 1/√K. The factor 1/√K keeps the variance
    of a dot product of K independent unit-variance terms at 1; without it, the softmax saturates as K grows.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return query @ key.transpose(-2, -1) * scale


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


def repeat_kv(x: Tensor, n_heads: int) -> Tensor:
    """Repeat key-value heads, (B, G, S, K) → (B, H, S, K): each serves H / G adjacent query heads (Ainslie 2023)."""
    n_groups = x.shape[1]
    if n_groups == n_heads:
        return x
    return x[:, :, None].expand(-1, -1, n_heads // n_groups, -1, -1).flatten(1, 2)


def attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    tap: Callable[[str, Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute softmax(scale · q kᵀ + bias) v step by step; return (context, weights, scores).

    `query` (B, H, T, K), `key` (B, G, S, K), `value` (B, G, S, W), `bias` (B or 1, H, T, S) is added to the scores.
    `tap` is called with each named tensor, and its result replaces that tensor: the scores before the mask, the
    weights before dropout.
    """
    tap = (lambda name, x: x) if tap is None else tap
    n_heads = query.shape[1]
    scores = scaled_dot_product_scores(query, repeat_kv(key, n_heads), scale)  # (B, H, T, S)
    scores = tap("scores", scores if bias is None else scores + bias)
    allowed = None if mask.is_trivial else mask.dense(query.shape[2], key.shape[2], query.device)
    weights = tap("weights", masked_softmax(scores, allowed))
    context = tap("context", F.dropout(weights, dropout) @ repeat_kv(value, n_heads))  # (B, H, T, W)
    return context, weights, scores


def attention_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask,
    bias: Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return the context of `attention_reference` from PyTorch's fused kernel, which never stores the weights.

    On a CPU in half precision, the kernel's backward, and its forward for a single query, are several times slower than
    in fp32. So attention is computed by blocks in bfloat16 if there are enough keys, otherwise in fp32. Keys and values
    of a cache may be in fp32 beside queries in half precision (`kv_cache.kept_dtype`); the context is like the queries.
    A mask with a `block_mask` is for FlexAttention, which has neither bias nor dropout.
    """
    if mask.block_mask is not None and bias is None and not dropout:
        return attention_flex(query, key, value, mask.block_mask, scale)
    by_blocks = _pays_by_blocks(query, key, bias)
    if by_blocks:
        key, value = key.to(query.dtype), value.to(query.dtype)
    is_kept_in_fp32 = key.dtype != query.dtype
    if _is_half_on_cpu(query) and not by_blocks and (query.requires_grad or query.shape[2] == 1 or is_kept_in_fp32):
        # Entering the block costs as much as the kernel.
        with torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext():
            context = attention_fused(query.float(), key.float(), value.float(), mask, bias, scale, dropout)
        return context.to(query.dtype)
    is_causal = bias is None and mask.is_only_causal and query.shape[2] == key.shape[2]
    attn_mask = empty = None
    if not is_causal and not (bias is None and mask.is_trivial):
        attn_mask, empty = _kernel_mask(query, key, mask, bias)
    n_heads = query.shape[1]
    if by_blocks or not _kernel_takes_groups(query, value, attn_mask is not None):
        key, value = repeat_kv(key, n_heads), repeat_kv(value, n_heads)
    if by_blocks:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = query.new_zeros(attn_mask.shape).masked_fill_(~attn_mask, -math.inf)
        context = attention_blocked(query, key, value, attn_mask, is_causal=is_causal, scale=scale, dropout=dropout)
    else:
        grouped = key.shape[1] != n_heads
        context = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attn_mask,
            dropout_p=dropout,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=grouped,
        )
    return context if empty is None else context.masked_fill(empty, 0.0)


def _is_half_on_cpu(x: Tensor) -> bool:
    return x.dtype in _HALVES and x.device.type == "cpu"


def _pays_by_blocks(query: Tensor, key: Tensor, bias: Tensor | None) -> bool:
    """Return True if `attention_blocked` is faster than the kernel: see `docs/log.md` for the times of some shapes.

    It has no gradient of a bias, `torch.compile` would unroll its blocks, and `torch.func` has no rule for it.
    """
    if is_transformed() or not query.numel() or (bias is not None and bias.requires_grad):
        return False
    is_large = query.shape[2] * key.shape[2] >= MIN_WEIGHTS and query.shape[2] > 1
    return is_large and query.dtype == torch.bfloat16 and query.device.type == "cpu" and bool(processor.this.bfloat16)


def _kernel_mask(query: Tensor, key: Tensor, mask: Mask, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the mask or masked bias for a kernel, (B or 1, H or 1, T, S), and its rows without a key, (B, 1, T, 1).

    Those rows are unmasked, because a softmax over only -inf is NaN; the caller sets their context to zero.
    """
    allowed = empty = None
    if not mask.is_trivial:
        allowed = mask.dense(query.shape[2], key.shape[2], query.device)
        if mask.may_leave_a_row_empty:
            empty = ~allowed.any(dim=-1, keepdim=True)
            allowed = allowed | empty
    if bias is None:
        assert allowed is not None
        return allowed, empty
    bias = bias.to(query.dtype)
    return bias if allowed is None else bias.masked_fill(~allowed, -math.inf), empty


def _kernel_takes_groups(query: Tensor, value: Tensor, is_masked: bool) -> bool:
    """Return True if a fused kernel supports key-value heads that several query heads share.

    The CPU kernel does. On CUDA, only flash attention does: in half precision, without a mask, and with values as
    wide as keys. Otherwise, repeating keys and values costs less than the (B, H, T, S) scores that PyTorch stores.
    """
    if query.device.type == "cpu":
        return True
    return query.dtype in _HALVES and not is_masked and query.shape[3] == value.shape[3]


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
