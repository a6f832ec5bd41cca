"""Formulas of attention, the reference for every fast path, and the multi-head attention module of a block.

Letters: B batch, H heads, G key-value heads, T query length, S key length, K key width, W value width, D d_model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.common.arguments import function, number, renamed, takes_other_names
from glassformer.nn.boundary import with_heads, wrong_activations
from glassformer.nn.kernels.attention import attend, repeat_kv, scale_or_default
from glassformer.nn.kernels.flex_attention import attention_flex, prefers_flex
from glassformer.nn.kernels.linear import linear_layers
from glassformer.nn.kv_cache import Cache, LayerCache
from glassformer.nn.layers import LayerNorm, Linear, NormFactory, RMSNorm
from glassformer.nn.masks import Mask, as_mask, causal_as_well
from glassformer.nn.positions import apply_rotary

# Formulas: scores → weights → context


def at_least_fp32(x: Tensor) -> Tensor:
    """Return a bf16 or fp16 tensor in fp32, and any other tensor unchanged."""
    return x.float() if x.dtype.itemsize < 4 else x


def scaled_dot_product_scores(query: Tensor, key: Tensor, scale: float | None = None) -> Tensor:
    """Compute score(q, k) = q·k / √K, the scores in equation 1 of Vaswani (2017).

    `query` (B, H, T, K), `key` (B, H, S, K) → (B, H, T, S). `scale` replaces 1/√K. The factor 1/√K keeps the variance
    of a dot product of K independent unit-variance terms at 1; without it, the softmax saturates as K grows.
    """
    return query @ key.transpose(-2, -1) * scale_or_default(scale, query.shape[-1])


def capped(x: Tensor, cap: float) -> Tensor:
    """Bound scores or logits smoothly: cap · tanh(x / cap) (Gemma 2, section 2); `cap` 0 = no bound.

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
    # -inf instead of a large negative number, because -inf excludes a key in every precision. A row without a key is
    # unmasked for the softmax and zeroed afterwards, because the gradient of a softmax over only -inf is NaN.
    weights = scores.masked_fill(~(allowed | ~row_has_key), -math.inf).softmax(dim=-1)
    return weights.masked_fill(~row_has_key, 0.0)


@takes_other_names
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | Mask | None = None,
    *,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return softmax(q kᵀ / √K) v and the weights (Vaswani 2017, equation 1): `attention_reference` for any tensors.

    `query` (…, T, K), `key` (…, S, K), `value` (…, S, W), with no, one (B) or two (B, H) axes before; the results are
    (…, T, W) and (…, T, S). A tensor as `mask` has True or 1 where a query may attend (`allowed_pairs`); with `causal`,
    a query sees keys up to its own index. `scale` replaces 1/√K.

    >>> q, k, v = torch.zeros(2, 4), torch.zeros(3, 4), torch.eye(3)
    >>> values, weights = attention(q, k, v, mask=torch.tensor([[1, 0, 0], [1, 1, 0]]))
    >>> values
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000]])
    """
    q, k, v = with_heads(query=query, key=key, value=value)
    shape = (*q.shape[:3], k.shape[2])
    rules = causal_as_well(mask, shape) if causal else as_mask("mask", mask, shape)
    context, weights, _ = attention_reference(q, k, v, rules, scale, dropout)
    added = (0,) * (4 - query.dim()) if query.dim() < 3 else (slice(None), 0)[: 2 * (4 - query.dim())]
    return context[added], weights[added]


def attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    tap: Callable[[str, Tensor], Tensor] | None = None,
    cap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute softmax(capped(scale · q kᵀ) + bias) v step by step; return (context, weights, scores).

    `query` (B, H, T, K), `key` (B, G, S, K), `value` (B, G, S, W); bias = `mask.bias`. `tap` is called with "scores"
    (before the mask), "weights" (before dropout) and "context", and its result replaces the tensor. Inputs in half
    precision are converted to fp32 (`at_least_fp32`), because the fused kernels do not round scores and weights to half
    precision. Only the returned context has the dtype of `query`.
    """
    tap = (lambda name, x: x) if tap is None else tap
    mask = as_mask("mask", mask, (*query.shape[:3], key.shape[2]))
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

    Both functions give equal results, up to rounding and the random numbers of dropout, so that a reader may stop at
    `attention_reference`. `kernels/attention.py` chooses the kernel. If the mask has a `block_mask`, and there is
    neither bias nor dropout, FlexAttention computes the context.
    """
    if scale is None:
        scale = scale_or_default(None, query.shape[-1])
    if mask.block_mask is not None and mask.bias is None and not dropout:
        return attention_flex(query, key, value, mask.block_mask, scale)
    if not mask.is_prepared:
        mask = mask.materialized(query.shape[2], key.shape[2], query.device)
    return attend(query, key, value, mask, scale, dropout)


# Modules

Memory = Tensor | tuple[Tensor, ...]
"""Input of a cross-attention: the encoder's output (B, S, D), or what `project_memory` returns for this output."""


class Tap(Protocol):
    """Hook that receives each named tensor and returns its replacement; without a tap, the fused kernel runs."""

    def __call__(self, name: str, x: Tensor) -> Tensor: ...

    def scope(self, name: str) -> "Tap | None":
        """Return the tap to pass to the submodule `name`; `None` if the tap needs no tensor of that submodule."""


@dataclass(frozen=True)
class Probe:
    """Tap that collects the tensors with one name; attention without a tensor of that name uses the fused kernel."""

    name: str
    found: list[Tensor]

    def __call__(self, name: str, x: Tensor) -> Tensor:
        if name == self.name:
            self.found.append(x)
        return x

    def scope(self, name: str) -> "Probe | None":
        rest = self.name.removeprefix(f"{name}.")
        return None if rest == self.name else Probe(rest, self.found)


def scoped(tap: Tap | None, name: str) -> Tap | None:
    """Return the tap to pass to the submodule `name` (`Tap.scope`); `None` without a tap."""
    return None if tap is None else tap.scope(name)


def tapped(tap: Tap | None, name: str, x: Tensor) -> Tensor:
    """Return `x`, or the tensor that a tap returns for it."""
    return x if tap is None else tap(name, x)


def tapped_as_one(tap: Tap | None, name: str, x: Tensor) -> Tensor:
    """Return `x` (B, …), or the tensor that a tap returns for it; the tap gets `x` as one step or head, (B, 1, …)."""
    return x if tap is None else tap(name, x[:, None])[:, 0]


@dataclass(frozen=True)
class AttentionCost:
    """Cost of one attention layer over one row; a multiply-add is one multiplication and one addition."""

    products: int
    """Multiply-adds of the projections."""
    scores: int
    """Multiply-adds of scores and weighted values, over all pairs of a query and a key."""
    cached: int
    """Number of elements that the cache stores for keys and values."""


class Attention(Protocol):
    """Interface of the attention of a block; a block accepts any module with these methods, as `MultiHeadAttention`.

    >>> attention: Attention = MultiHeadAttention(16, n_heads=4)
    >>> attention.cost(n_queries=5, n_keys=5).cached
    160
    """

    def __call__(
        self,
        x: Tensor,
        memory: Memory | None = None,
        *,
        mask: Mask | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: Any = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """Attend from `x` (B, T, D) to itself or to `memory`; return (B, T, D).

        In generation, the keys of earlier tokens are in the `cache`, which `new_cache` made.
        """

    def prepare_mask(self, mask: Mask, x: Tensor, n_keys: int) -> Mask:
        """Return the mask in the form that the module reads; a stack calls this once for all blocks with one window."""

    def project_memory(self, memory: Tensor) -> tuple[Tensor, ...]:
        """Project the encoder's output (B, S, D) once for all steps, to tensors (B, …, S, ·)."""

    def new_cache(self, n_rows: int, max_len: int, like: Tensor) -> Cache:
        """Return an empty cache of `n_rows` rows of at most `max_len` tokens, on the device of `like`."""

    def cost(self, n_queries: int, n_keys: int) -> AttentionCost:
        """Return the size of the attention of `n_queries` tokens to `n_keys` tokens."""


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of the heads besides H, the number of query heads."""

    n_kv_heads: int | None = None
    """G, the number of key-value heads; `None` = H."""
    d_head: int | None = None
    """K, the width of a query, a key and a value; `None` = D / H."""


@dataclass(frozen=True)
class Projections:
    """The matrices of an attention, by default W_Q, W_K, W_V and W_O with biases."""

    qkv_bias: bool = True
    fused_qkv: bool = False
    """True if one matrix holds W_Q, W_K and W_V."""
    out_bias: bool = True
    d_memory: int | None = None
    """Width of the input of keys and values; `None` = D."""
    qk_norm: NormFactory | None = None
    """Function that makes the norm of each query and key; `None` = no norm."""
    norms_all_heads: bool = False
    """True if `qk_norm` normalises the queries of all heads together, and the keys of all heads together."""


class MultiHeadAttention(nn.Module):
    """Multi-head attention: MultiHead(Q, K, V) = Concat(head₁ … head_H) W_O (Vaswani 2017, section 3.2.2).

    Letters: B batch, T query length, S key length, D d_model, H n_heads, G n_kv_heads, K d_head.
    With G < H, each key-value head serves H / G adjacent query heads (Ainslie 2023).

    >>> x, layer = torch.zeros(2, 5, 16), MultiHeadAttention(16, n_heads=4)
    >>> y, weights = layer(x, mask=torch.ones(5, 5).tril(), need_weights=True)
    >>> y.shape, weights.shape
    (torch.Size([2, 5, 16]), torch.Size([2, 4, 5, 5]))
    """

    @takes_other_names
    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        sizes: HeadSizes = HeadSizes(),
        projections: Projections = Projections(),
        scale: float | None = None,
        dropout: float = 0.0,
        cap: float = 0.0,
    ) -> None:
        super().__init__()
        # Sizes of the heads
        if sizes.d_head is None and d_model % n_heads:
            raise ValueError(f"d_model {d_model} is not divisible by n_heads {n_heads}")
        self.d_model, self.n_heads = d_model, n_heads
        self.n_kv_heads = sizes.n_kv_heads or n_heads
        if n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads {n_heads} is not divisible by n_kv_heads {self.n_kv_heads}")
        self.d_head = sizes.d_head or d_model // n_heads
        # W_Q, W_K and W_V; their output widths are in the order of the fused matrix
        self.split_sizes = (n_heads * self.d_head, self.n_kv_heads * self.d_head, self.n_kv_heads * self.d_head)
        self.own_sizes = (sum(self.split_sizes[:2]), self.split_sizes[2])  # of queries with keys, and of values
        self.fused_qkv, bias = projections.fused_qkv, projections.qkv_bias
        if self.fused_qkv:
            self.qkv_proj = Linear(d_model, sum(self.split_sizes), bias=bias)
            self.qkv_proj.parts = self.split_sizes
        else:
            d_memory = projections.d_memory or d_model
            self.q_proj = Linear(d_model, self.split_sizes[0], bias=bias)
            self.k_proj = Linear(d_memory, self.split_sizes[1], bias=bias)
            self.v_proj = Linear(d_memory, self.split_sizes[2], bias=bias)
        # Norms of queries and keys
        self.q_norm = self.k_norm = None
        self.norms_all_heads = projections.norms_all_heads
        if projections.qk_norm is not None:
            of_query = of_key = self.d_head
            if self.norms_all_heads:
                of_query, of_key, _ = self.split_sizes
            function("qk_norm", projections.qk_norm)
            self.q_norm = projections.qk_norm(of_query)
            self.k_norm = projections.qk_norm(of_key)
        # W_O
        self.out_proj = Linear(n_heads * self.d_head, d_model, bias=projections.out_bias)
        self.dropout = number("dropout", dropout, 0, 1)
        self.scale = number("scale", scale_or_default(scale, self.d_head))
        self.cap = number("cap", cap, 0)
        """Bound of the scores (`capped`); 0 = no bound. No fused kernel supports a bound."""

    def forward(
        self,
        x: Any = None,
        memory: Memory | None = None,
        values: Memory | None = None,
        mask: Mask | Tensor | None = None,
        *,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: LayerCache | None = None,
        tap: Tap | None = None,
        need_weights: bool = False,
        **others: Any,
    ) -> Any:
        """Attend from `x` (B, T, D) to itself, or to `memory` (B, S, D) or the projected memory; return (B, T, D).

        Without a `mask`, every query sees every key; a tensor has True or 1 where a query may attend (`allowed_pairs`).
        With `need_weights`, also return the weights (B, H, T, S). With a `cache`, keys and values of `x` are written to
        its slots, and queries attend to all filled slots. `layer(x, x, x)` is `layer(x)`, and other values are refused.
        """
        if others:
            here = renamed("MultiHeadAttention", others, ("x", "memory", "values", "mask", "need_weights", "causal"))
            given = {"x": x, "memory": memory, "values": values, "mask": mask, "rotary": rotary, "cache": cache}
            if twice := [name for name in here if given.get(name) is not None]:
                raise TypeError(f"MultiHeadAttention: {twice[0]} is given twice")
            given |= {"tap": tap, "need_weights": need_weights} | here
            if given.pop("causal", False):
                n_keys = len(given["x"][0]) if given["memory"] is None else given["memory"].shape[1]
                given["mask"] = causal_as_well(given["mask"], (*given["x"].shape[:1], 1, given["x"].shape[1], n_keys))
            return MultiHeadAttention.forward(self, **given)
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[2] != self.d_model:
            raise wrong_activations("x", x, self.d_model, "d_model")
        if values is not None and values is not memory:
            raise ValueError("values: expected the memory again, because one memory gives keys and values: (x, memory)")
        memory = None if memory is x else memory
        # 1. Projections, split into heads. In generation, earlier keys and values come before the new ones.
        query, key, value = self.project(x, memory, rotary)  # (B, H, T, K), (B, G, S, K), (B, G, S, K)
        if cache is not None:
            key, value = cache.append(key, value)
        # 2. Scores, mask, softmax, weighted values: one fused kernel, or the formulas one by one.
        if not isinstance(mask, Mask):
            mask = as_mask("mask", mask, (*query.shape[:3], key.shape[2]))
        dropout, weights = self.dropout if self.training else 0.0, None
        if tap is None and not self.cap and not need_weights:
            context = attention_fused(query, key, value, mask, self.scale, dropout)  # (B, H, T, K)
        else:
            query, key, value = tapped(tap, "query", query), tapped(tap, "key", key), tapped(tap, "value", value)
            context, weights, _ = attention_reference(query, key, value, mask, self.scale, dropout, tap, self.cap)
        # 3. Concatenated heads, output projection.
        y = self.out_proj(context.transpose(1, 2).flatten(2))  # (B, T, H·K) → (B, T, D)
        return (y, weights) if need_weights else y

    def project(
        self, x: Tensor, memory: Memory | None = None, rotary: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return query (B, H, T, K), key (B, G, S, K) and value (B, G, S, K) of `forward`, with rotary positions."""
        if memory is not None:
            key, value = self.project_memory(memory) if isinstance(memory, Tensor) else memory
            query = self.heads(self.q_proj(x), self.q_norm).transpose(1, 2)
            if rotary is not None:
                query, key = apply_rotary(query, *rotary), apply_rotary(key, *rotary)
            return query, key, value
        # Queries and keys together, because they have the same positions
        if self.fused_qkv:
            both, value = self.qkv_proj(x).split_with_sizes(self.own_sizes, -1)
        else:
            both, value = linear_layers(self, (("q_proj", "k_proj"), ("v_proj",)), x)
        q_norm, k_norm = self.q_norm, self.k_norm
        if q_norm is None or (not self.norms_all_heads and _is_one_function(q_norm, k_norm)):
            both = self.heads(both, q_norm)  # (B, T, H + G, K)
        else:
            query, key = both.split_with_sizes(self.split_sizes[:2], -1)
            both = torch.cat((self.heads(query, q_norm), self.heads(key, k_norm)), 2)
        both = both.transpose(1, 2)  # (B, H + G, T, K)
        if rotary is not None:
            both = apply_rotary(both, *rotary)
        query, key = both.split_with_sizes((self.n_heads, self.n_kv_heads), 1)
        return query, key, value.view(*value.shape[:2], -1, self.d_head).transpose(1, 2)

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project `memory` (B, S, D) to key (B, G, S, K) and value (B, G, S, K)."""
        if isinstance(self.k_proj, nn.Linear) and memory.shape[-1] != self.k_proj.in_features:
            raise wrong_activations("memory", memory, self.k_proj.in_features, "d_memory")
        key = self.heads(self.k_proj(memory), self.k_norm)  # (B, S, G, K)
        return key.transpose(1, 2), self.heads(self.v_proj(memory)).transpose(1, 2)

    def heads(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        """Split (B, T, H·K) into heads (B, T, H, K); apply `norm` to each head, or before the split to all heads."""
        if norm is not None and self.norms_all_heads:
            x, norm = norm(x), None
        x = x.view(x.shape[0], x.shape[1], -1, self.d_head)
        return x if norm is None else norm(x)

    def prepare_mask(self, mask: Mask, x: Tensor, n_keys: int) -> Mask:
        """Return the mask with what the kernel reads: blocks for FlexAttention, a dense matrix, or only the rules."""
        if mask.is_prepared:
            return mask
        dropout = self.dropout if self.training else 0.0
        if not self.cap and mask.can_be_blocks and prefers_flex(x, (self.d_head, self.d_head), dropout):
            return mask.as_blocks()
        return mask.materialized(x.shape[1], n_keys, x.device)

    def new_cache(self, n_rows: int, max_len: int, like: Tensor) -> LayerCache:
        """Return empty buffers of keys and values, which grow up to `max_len` tokens plus one slot for padding."""
        return LayerCache.empty((n_rows, self.n_kv_heads), (self.d_head, self.d_head), max_len, like)

    def cost(self, n_queries: int, n_keys: int) -> AttentionCost:
        """Return the size of the attention of `n_queries` tokens to `n_keys` tokens."""
        of_query, *of_memory = self.split_sizes
        of_query += self.n_heads * self.d_head  # W_O
        return AttentionCost(
            products=self.d_model * (n_queries * of_query + n_keys * sum(of_memory)),
            scores=n_queries * n_keys * self.n_heads * 2 * self.d_head,
            cached=n_keys * sum(of_memory),
        )


def _is_one_function(first: Any, second: Any) -> bool:
    """Return True for two norms with equal settings, without weights and hooks."""
    if type(first) is not type(second) or type(first) not in (LayerNorm, RMSNorm):
        return False
    for norm in (first, second):
        if norm._parameters or norm._forward_hooks or norm._forward_pre_hooks:
            return False
    return bool((first.width, first.eps) == (second.width, second.eps))
