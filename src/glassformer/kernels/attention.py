"""The choice among the kernels of attention: PyTorch's fused kernel, in which precision, or blocks in bfloat16.

Letters: B batch, H heads, G key-value heads, T query length, S key length, K key width, W value width.
"""

import math
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.kernels import processor
from glassformer.kernels.blocked_attention import attention_blocked
from glassformer.kernels.linear import is_transformed
from glassformer.kernels.score_rules import ScoreRules

_HALVES = (torch.bfloat16, torch.float16)
MIN_WEIGHTS = 48 * 48
"""Number of weights per head from which blocks in bfloat16 are faster than the kernel in fp32."""


def attend(query: Tensor, key: Tensor, value: Tensor, rules: ScoreRules) -> Tensor:
    """Return softmax(scale · q kᵀ + bias) v over the allowed keys, (B, H, T, W); a query without a key gets zeros.

    `query` (B, H, T, K), `key` (B, G, S, K), `value` (B, G, S, W). On a CPU in half precision, the backward of the
    fused kernel, and its forward for a single query, are several times slower than in fp32. So attention is computed by
    blocks in bfloat16 if there are enough keys, otherwise in fp32. Keys and values of a cache may be in fp32 beside
    queries in half precision; the context is like the queries.
    """
    rules, empty = rules.without_empty_rows()
    if _pays_by_blocks(query, key, rules.bias):
        context = _by_blocks(query, key.to(query.dtype), value.to(query.dtype), rules)
    elif _pays_in_fp32(query, key):
        # Entering the block costs as much as the kernel.
        with torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext():
            context = _by_fused_kernel(query.float(), key.float(), value.float(), rules)
        context = context.to(query.dtype)
    else:
        context = _by_fused_kernel(query, key, value, rules)
    if empty is not None:
        context = context.masked_fill(empty, 0.0)
    return context


def repeat_kv(x: Tensor, n_heads: int) -> Tensor:
    """Repeat key-value heads, (B, G, S, K) → (B, H, S, K): each serves H / G adjacent query heads (Ainslie 2023)."""
    n_groups = x.shape[1]
    if n_groups == n_heads:
        return x
    return x[:, :, None].expand(-1, -1, n_heads // n_groups, -1, -1).flatten(1, 2)


def _pays_by_blocks(query: Tensor, key: Tensor, bias: Tensor | None) -> bool:
    """Return True if `attention_blocked` is faster than the kernel: see `docs/log.md` for the times of some shapes.

    It has no gradient of a bias, `torch.compile` would unroll its blocks, and `torch.func` has no rule for it.
    """
    if is_transformed() or not query.numel() or (bias is not None and bias.requires_grad):
        return False
    if query.dtype != torch.bfloat16 or query.device.type != "cpu" or not processor.this.choices.blocked_attention:
        return False
    return query.shape[2] * key.shape[2] >= MIN_WEIGHTS and query.shape[2] > 1


def _pays_in_fp32(query: Tensor, key: Tensor) -> bool:
    is_half_on_cpu = query.dtype in _HALVES and query.device.type == "cpu"
    return is_half_on_cpu and (query.requires_grad or query.shape[2] == 1 or key.dtype != query.dtype)


def _by_fused_kernel(query: Tensor, key: Tensor, value: Tensor, rules: ScoreRules) -> Tensor:
    attn_mask, n_heads = rules.mask_of_kernel(query.dtype), query.shape[1]
    if not _kernel_takes_groups(query, value, attn_mask is not None):
        key, value = repeat_kv(key, n_heads), repeat_kv(value, n_heads)
    is_grouped = key.shape[1] != n_heads
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attn_mask,
        dropout_p=rules.dropout,
        is_causal=rules.is_causal,
        scale=rules.scale,
        enable_gqa=is_grouped,
    )


def _by_blocks(query: Tensor, key: Tensor, value: Tensor, rules: ScoreRules) -> Tensor:
    bias, n_heads = rules.mask_of_kernel(query.dtype), query.shape[1]
    if bias is not None and bias.dtype == torch.bool:
        bias = query.new_zeros(bias.shape).masked_fill_(~bias, -math.inf)
    key, value = repeat_kv(key, n_heads), repeat_kv(value, n_heads)
    return attention_blocked(query, key, value, replace(rules, allowed=None, bias=bias))


def _kernel_takes_groups(query: Tensor, value: Tensor, is_masked: bool) -> bool:
    """Return True if a fused kernel supports key-value heads that several query heads share.

    The CPU kernel does. On CUDA, only flash attention does: in half precision, without a mask, and with values as
    wide as keys. Otherwise, repeating keys and values costs less than the (B, H, T, S) scores that PyTorch stores.
    """
    if query.device.type == "cpu":
        return True
    return query.dtype in _HALVES and not is_masked and query.shape[3] == value.shape[3]
