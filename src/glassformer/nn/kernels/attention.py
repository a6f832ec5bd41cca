"""Choice of the kernel of an attention: PyTorch's fused kernel and its precision, or blocks in bfloat16 on a CPU.

Letters: B batch, H heads, G key-value heads, T query length, S key length, K key width, W value width.

On a CPU that is fast in bfloat16, products are several times faster than in fp32, but the backward pass of PyTorch's
fused attention is slower. So `Blocks` computes the formulas of the reference over blocks that fit in the cache.
"""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from glassformer.nn.kernels import processor
from glassformer.nn.kernels.linear import is_transformed

_HALVES = (torch.bfloat16, torch.float16)
MIN_WEIGHTS = 48 * 48
"""Number of attention weights per head, T · S, from which blocks in bfloat16 are faster than the kernel in fp32."""
BLOCK = 1 << 21
"""Number of attention weights in a block: they take 4 MiB in bfloat16 and fit in the cache of the CPU."""
MIN_QUERIES = 128
"""Smallest number of queries in a block, unless a row has fewer queries."""


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Any, scale: float, dropout: float) -> Tensor:
    """Return softmax(scale · q kᵀ + bias) v over the allowed keys, (B, H, T, W); a query without a key gets zeros.

    `query` (B, H, T, K), `key` (B, G, S, K), `value` (B, G, S, W), `mask` a `Mask` with `is_prepared`. On a CPU in half
    precision, the backward pass of the fused kernel, and its forward pass for a single query, are several times slower
    than in fp32. So attention is computed by blocks in bfloat16 if there are enough weights, otherwise in fp32. Keys
    and values of a cache may be in fp32 while queries are in half precision. The context has the dtype of the queries.
    """
    n_heads, dtype = query.shape[1], query.dtype
    allowed, empty, bias = mask.allowed, mask.empty, mask.bias
    is_causal = mask.causal and allowed is None
    if empty is not None:
        allowed = allowed | empty  # a softmax over only -inf is NaN
    if dtype == torch.bfloat16 and _pays_by_blocks(query, key, bias):
        key, value = (repeat_kv(x.to(dtype), n_heads) for x in (key, value))
        if bias is None and allowed is not None:
            bias = query.new_zeros(allowed.shape)
        context = Blocks.apply(query, key, value, _masked(bias, allowed, dtype), is_causal, scale, dropout)
    else:
        # For these queries in half precision, the fused kernel is faster in fp32
        is_slow = dtype in _HALVES and query.device.type == "cpu"
        is_slow = is_slow and (query.requires_grad or query.shape[2] == 1 or key.dtype != dtype)
        if is_slow:
            query, key, value = query.float(), key.float(), value.float()
        attn_mask = allowed if bias is None else _masked(bias, allowed, query.dtype)
        has_groups = key.shape[1] != n_heads
        if has_groups and not _kernel_takes_groups(query, value, attn_mask is not None):
            key, value, has_groups = repeat_kv(key, n_heads), repeat_kv(value, n_heads), False
        options: dict[str, Any] = {"dropout_p": dropout, "is_causal": is_causal, "scale": scale}
        options |= {"attn_mask": attn_mask, "enable_gqa": has_groups}
        if is_slow and torch.is_autocast_enabled("cpu"):
            with torch.autocast("cpu", enabled=False):  # entering the block costs as much as the kernel
                context = F.scaled_dot_product_attention(query, key, value, **options)
        else:
            context = F.scaled_dot_product_attention(query, key, value, **options)
        context = context.to(dtype) if is_slow else context
    return context if empty is None else context.masked_fill(empty, 0.0)


def scale_or_default(scale: float | None, width: int) -> float:
    """Return `scale`, the factor of the dot products of vectors of this width, or 1/√width if `scale` is None."""
    return 1 / math.sqrt(width) if scale is None else scale


def repeat_kv(x: Tensor, n_heads: int) -> Tensor:
    """Repeat key-value heads, (B, G, S, K) → (B, H, S, K), each for H / G adjacent query heads (Ainslie 2023)."""
    n_groups = x.shape[1]
    if n_groups == n_heads:
        return x
    return x[:, :, None].expand(-1, -1, n_heads // n_groups, -1, -1).flatten(1, 2)


def _pays_by_blocks(query: Tensor, key: Tensor, bias: Tensor | None) -> bool:
    """Return True if `Blocks` is faster than the fused kernel (`docs/log/2026-speed.md`); the queries are in bfloat16.

    `Blocks` has no gradient of a bias, `torch.compile` would unroll its loop, and `torch.func` has no rule for it.
    """
    if is_transformed() or not query.numel() or (bias is not None and bias.requires_grad):
        return False
    if query.device.type != "cpu" or not processor.this.is_fast_in_bfloat16:
        return False
    return query.shape[2] * key.shape[2] >= MIN_WEIGHTS and query.shape[2] > 1


def _kernel_takes_groups(query: Tensor, value: Tensor, is_masked: bool) -> bool:
    """Return True if a fused kernel supports key-value heads that several query heads share.

    The CPU kernel supports them since PyTorch 2.9. On CUDA, only flash attention does: in half precision, without a
    mask, and with values as wide as keys. Otherwise PyTorch would store (B, H, T, S) scores, which costs more than
    repeating keys and values.
    """
    is_flash = query.dtype in _HALVES and not is_masked and query.shape[3] == value.shape[3]
    return is_flash if query.device.type != "cpu" else torch.__version__ >= "2.9"


def _masked(bias: Tensor | None, allowed: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return the mask of a kernel, (B or 1, H or 1, T, S): bool, or a bias that is -inf where a key is hidden."""
    if bias is None:
        return allowed
    bias = bias.to(dtype)
    return bias if allowed is None else bias.masked_fill(~allowed, -math.inf)


class Blocks(torch.autograd.Function):
    """softmax(scale · q kᵀ + bias) v, (B, H, T, W), by the formulas over blocks of queries; the bias has no gradient.

    On a CPU, PyTorch's fused kernel computes in fp32, or in bfloat16 with a backward pass that is several times slower.
    A CPU that is fast in bfloat16 computes the plain products of a block three to five times faster. The forward pass
    stores no weights. The backward pass computes them again, as flash attention does (Dao 2022, section 3.1).

    `q` (B, H, T, K), `k` (B, H, S, K), `v` (B, H, S, W). A `bias` broadcasts to (B, H, T, S), and needs `is_causal`
    False.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool, scale: float, dropout: float
    ) -> Tensor:
        n_heads = q.shape[1]
        q, k, v = (x.contiguous().flatten(0, 1) for x in (q, k, v))
        context, factors, ctx.rules = q.new_empty(*q.shape[:2], v.shape[2]), [], (n_heads, is_causal, scale)
        for queries, keys, weights, _ in _blocks(q, k, bias, *ctx.rules):
            if dropout:
                factors.append(torch.empty_like(weights).bernoulli_(1 - dropout).div_(1 - dropout))
                weights *= factors[-1]
            context[queries] = weights @ v[keys]
        ctx.save_for_backward(q, k, v, bias, *factors)
        return context.unflatten(0, (-1, n_heads))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        q, k, v, bias, *factors = ctx.saved_tensors
        n_heads, _, scale = ctx.rules
        of_q, of_k, of_v, grad = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v), grad.flatten(0, 1)
        for number, (queries, keys, weights, of_scores) in enumerate(_blocks(q, k, bias, *ctx.rules)):
            torch.bmm(grad[queries], v[keys].mT, out=of_scores)
            dropped = weights * factors[number] if factors else weights
            of_v[keys] += dropped.mT @ grad[queries]
            if factors:
                of_scores *= factors[number]
            # Gradient of a softmax: w · (g - Σ w g), the sum over the keys.
            torch._softmax_backward_data(of_scores, weights, -1, weights.dtype, grad_input=of_scores)
            of_q[queries] = (of_scores @ k[keys]).mul_(scale)
            of_k[keys] += (of_scores.mT @ q[queries]).mul_(scale)
        return *(x.unflatten(0, (-1, n_heads)) for x in (of_q, of_k, of_v)), None, None, None, None


def _blocks(
    q: Tensor, k: Tensor, bias: Tensor | None, n_heads: int, is_causal: bool, scale: float
) -> Iterator[tuple[Any, Any, Tensor, Tensor]]:
    """Yield for each block its slices of `q` (B·H, T, K) and `k` (B·H, S, K), its weights, and memory of their size.

    A block has about `BLOCK` weights: all heads of some rows, with some queries and the keys that these queries see.
    The next block overwrites both tensors, because fresh memory costs more time than the products.
    """
    (n_rows, n_queries, _), n_keys = q.shape, k.shape[1]
    size = min(n_queries, max(MIN_QUERIES, BLOCK // (n_heads * n_keys)))
    height = min(n_rows, n_heads * max(1, BLOCK // (n_heads * n_keys * n_queries)))
    memory = q.new_empty(2, height * size * n_keys)
    if bias is not None:
        bias = bias.expand(n_rows // n_heads, n_heads, n_queries, n_keys)
    for row, begin in product(range(0, n_rows, height), range(0, n_queries, size)):
        rows, end = slice(row, row + height), min(begin + size, n_queries)
        queries, keys = (rows, slice(begin, end)), (rows, slice(end if is_causal else n_keys))
        shape = (*q[queries].shape[:2], keys[1].stop)
        weights, other = (x[: math.prod(shape)].view(shape) for x in memory)
        if is_causal:
            weights.copy_(q.new_full(shape[1:], -math.inf).triu(begin + 1))
        elif bias is not None:
            of_rows = bias[row // n_heads : (row + height) // n_heads, :, begin:end]
            weights.unflatten(0, (-1, n_heads)).copy_(of_rows)
        beta = int(is_causal or bias is not None)
        torch.baddbmm(weights, q[queries], k[keys].mT, beta=beta, alpha=scale, out=weights)
        yield queries, keys, torch.softmax(weights, dim=-1, out=weights), other
