"""Multi-head attention (self, cross, grouped queries, cache): a fused kernel, or the readable reference with a tap."""

import math
from typing import Protocol

from torch import Tensor, nn

from glassformer.nn.attention_functions import attention_fused, attention_reference
from glassformer.nn.kv_cache import FIRST_SLOTS, Grid, LayerCache, Slots, kept_dtype
from glassformer.nn.linear_layers import Linear, stacked
from glassformer.nn.masks import Mask
from glassformer.nn.norms import NormFactory
from glassformer.nn.positions import apply_rotary


class Tap(Protocol):
    """Hook that receives each named tensor and returns its replacement; pass `None` to use the fused kernel."""

    def __call__(self, name: str, x: Tensor) -> Tensor: ...

    def scope(self, name: str) -> "Tap | None":
        """Return the tap of a part; `None` if it receives no tensor of the part, which then uses the fused kernel."""


def scoped(tap: Tap | None, name: str) -> Tap | None:
    """Return the tap of a submodule; `None` for no tap."""
    return None if tap is None else tap.scope(name)


class MultiHeadAttention(nn.Module):
    """Multi-head attention: MultiHead(Q, K, V) = Concat(head₁ … head_H) W_O (Vaswani 2017, section 3.2.2).

    Letters: B batch, T query length, S key length, D d_model, H n_heads, G n_kv_heads, K d_head, W d_value.
    With G < H, each key-value head serves H / G adjacent query heads (Ainslie 2023). Without `out_proj`, `forward`
    returns the concatenated heads, (B, T, H·W).
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        d_value: int | None = None,
        d_memory: int | None = None,
        qkv_bias: bool = True,
        fused_qkv: bool = False,
        out_proj: bool = True,
        out_bias: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
        qk_norm: NormFactory | None = None,
    ) -> None:
        super().__init__()
        if d_head is None and d_model % n_heads:
            raise ValueError(f"d_model {d_model} is not divisible by n_heads {n_heads}")
        self.d_model, self.n_heads = d_model, n_heads
        self.n_kv_heads = n_kv_heads or n_heads
        if n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads {n_heads} is not divisible by n_kv_heads {n_kv_heads}")
        self.d_head = d_head or d_model // n_heads
        self.d_value = d_value or self.d_head
        self.scale = 1 / math.sqrt(self.d_head) if scale is None else scale
        self.dropout = dropout
        # Output widths of queries, keys and values, in the order of the fused matrix if there is one.
        self.split_sizes = (n_heads * self.d_head, self.n_kv_heads * self.d_head, self.n_kv_heads * self.d_value)
        if fused_qkv:
            self.qkv_proj = Linear(d_model, sum(self.split_sizes), bias=qkv_bias)
        else:
            d_memory = d_memory or d_model
            self.q_proj = Linear(d_model, self.split_sizes[0], bias=qkv_bias)
            self.k_proj = Linear(d_memory, self.split_sizes[1], bias=qkv_bias)
            self.v_proj = Linear(d_memory, self.split_sizes[2], bias=qkv_bias)
        self.q_norm = None if qk_norm is None else qk_norm(self.d_head)
        self.k_norm = None if qk_norm is None else qk_norm(self.d_head)
        self.out_proj = Linear(n_heads * self.d_value, d_model, bias=out_bias) if out_proj else None
        self.fused_qkv = fused_qkv

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | None = None,
        bias: Tensor | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: LayerCache | None = None,
        slots: Slots | None = None,
        memory_kv: tuple[Tensor, Tensor] | None = None,
        grid: Grid | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """Attend from `x` (B, T, D) to itself, to `memory` (B, S, D) or to the projected `memory_kv`; return (B, T, D).

        Without a `mask`, every query sees every key. `bias` (B or 1, H, T, S) is added to the scores. With a `cache`,
        keys and values of `x` are written to `slots`, and queries attend to all filled slots. With a `grid`, a row of
        `x` is one token, a query of its group; mask, bias, rotary, cache and memory are then those of the groups.
        Raises `TypeError` if `mask` is not a `Mask`, and `ValueError` if the width of `x` is not D.
        """
        if mask is not None and not isinstance(mask, Mask):
            raise TypeError(f"mask must be a glassformer.nn.Mask, such as Mask(causal=True), not {type(mask).__name__}")
        if x.shape[-1] != self.d_model:
            raise ValueError(f"x: expected width {self.d_model} (d_model), got {x.shape[-1]}")
        query, key, value = self.project(x, memory, rotary=rotary, memory_kv=memory_kv, grid=grid)
        if cache is not None and slots is not None:
            key, value = cache.append(key, value, slots)
        mask, dropout = Mask() if mask is None else mask, self.dropout if self.training else 0.0
        if tap is None:
            context = attention_fused(query, key, value, mask, bias, self.scale, dropout)
        else:
            dtype = query.dtype
            query, key, value = tap("query", query.to(key.dtype)), tap("key", key), tap("value", value)
            context, _, _ = attention_reference(query, key, value, mask, bias, self.scale, dropout, tap)
            context = context.to(dtype)
        context = context.transpose(1, 2).flatten(2)  # (B, T, H·W)
        context = context if grid is None else grid.unfold(context)
        return context if self.out_proj is None else self.out_proj(context)

    def project(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        rotary: tuple[Tensor, Tensor] | None = None,
        memory_kv: tuple[Tensor, Tensor] | None = None,
        grid: Grid | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return query (B, H, T, K), key (B, G, S, K) and value (B, G, S, W) of `forward`, with rotary positions."""
        if memory_kv is not None:
            query, (key, value) = self.heads(self.q_proj(x), self.q_norm, grid=grid), memory_kv
        elif memory is not None:
            query, (key, value) = self.heads(self.q_proj(x), self.q_norm), self.project_memory(memory)
        else:
            query, key, value = self.project_self(x, grid)
        if rotary is not None:
            query, key = apply_rotary(query, *rotary), apply_rotary(key, *rotary)
        return query, key, value

    def project_self(self, x: Tensor, grid: Grid | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project `x` (B, T, D) to query (B, H, T, K), key (B, G, T, K) and value (B, G, T, W)."""
        if self.fused_qkv:
            q, k, v = self.qkv_proj(x).split_with_sizes(self.split_sizes, dim=-1)
        else:
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k = self.heads(q, self.q_norm, grid=grid), self.heads(k, self.k_norm, grid=grid)
        return q, k, self.heads(v, None, self.d_value, grid)

    def fuse_qkv(self) -> None:
        """Replace the projections of queries, keys and values of a self-attention by one matrix, in place."""
        if self.fused_qkv:
            return
        self.qkv_proj, self.fused_qkv = stacked([self.q_proj, self.k_proj, self.v_proj]), True
        del self.q_proj, self.k_proj, self.v_proj

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project `memory` (B, S, D) to key (B, G, S, K) and value (B, G, S, W)."""
        key = self.heads(self.k_proj(memory), self.k_norm)
        return key, self.heads(self.v_proj(memory), None, self.d_value)

    def keep_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project `memory` as `project_memory`, with the dtype of a cache."""
        key, value = self.project_memory(memory)
        dtype = kept_dtype(key)
        return key.to(dtype), value.to(dtype)

    def heads(self, x: Tensor, norm: nn.Module | None, width: int | None = None, grid: Grid | None = None) -> Tensor:
        """Split (B, T, H·K) into heads (B, H, T, K); apply `norm` per head and fold the rows into `grid`, if given."""
        x = x if grid is None else grid.fold(x)
        x = x.view(x.shape[0], x.shape[1], -1, width or self.d_head)  # (B, T, H, K)
        return (x if norm is None else norm(x)).transpose(1, 2)


def new_layer_cache(attention: MultiHeadAttention, n_rows: int, max_len: int, weight: Tensor) -> LayerCache:
    """Return empty buffers for one layer, on the device of `weight`, with `kept_dtype`.

    They grow up to `max_len` tokens plus one slot for padding.
    """
    shape = (n_rows, attention.n_kv_heads, min(FIRST_SLOTS, max_len + 1))
    return LayerCache(
        *(weight.new_zeros(*shape, width, dtype=kept_dtype(weight)) for width in (attention.d_head, attention.d_value))
    )
