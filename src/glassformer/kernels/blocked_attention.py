"""Attention in bfloat16 on a CPU: the formulas of `attention_reference` over blocks of queries that fit in the cache.

The fused kernel of PyTorch computes in fp32 on a CPU, or several times slower backward in bfloat16. Processors with
bfloat16 products compute the plain products of a block three to five times faster. The forward pass stores no weights:
the backward pass computes them again, as flash attention does (Dao 2022, section 3.1).

Letters: B batch, H heads, T query length, S key length, K key width, W value width.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from glassformer.kernels.score_rules import ScoreRules

BLOCK = 1 << 21
"""Number of weights of a block: 4 MiB in bfloat16."""
MIN_QUERIES = 128
"""Smallest number of queries that a block of one row is divided into."""


def attention_blocked(query: Tensor, key: Tensor, value: Tensor, rules: ScoreRules) -> Tensor:
    """Return softmax(scale · q kᵀ + bias) v, (B, H, T, W), in the dtype of `query`, with gradients of q, k and v.

    `query` (B, H, T, K), `key` (B, H, S, K), `value` (B, H, S, W). The rules have no `allowed`: a mask is a bias of 0
    and -inf, which broadcasts to (B, H, T, S).
    """
    context: Tensor = _Blocked.apply(query, key, value, rules.bias, rules)
    return context


class _Block(NamedTuple):
    """Some rows of the batch with all heads, some queries, and the keys that they see."""

    rows: slice
    queries: slice
    keys: slice


def _blocks(shape: tuple[int, int, int, int], is_causal: bool) -> Iterator[_Block]:
    """Divide (B, H, T, S) into blocks of about `BLOCK` weights.

    >>> [(b.queries, b.keys) for b in _blocks((1, 8, 1024, 1024), True)][:2]
    [(slice(0, 256, None), slice(0, 256, None)), (slice(256, 512, None), slice(0, 512, None))]
    """
    n_rows, n_heads, n_queries, n_keys = shape
    per_query = n_heads * n_keys
    queries = min(n_queries, max(MIN_QUERIES, BLOCK // per_query))
    rows = max(1, BLOCK // (per_query * n_queries))
    for row in range(0, n_rows, rows):
        for begin in range(0, n_queries, queries):
            end = min(begin + queries, n_queries)
            if is_causal:
                n_keys = end
            yield _Block(slice(row, min(row + rows, n_rows)), slice(begin, end), slice(0, n_keys))


class _Weights:
    """Weights of one block after another, written to one buffer: fresh memory costs more time than the products."""

    def __init__(self, query: Tensor, key: Tensor, rules: ScoreRules) -> None:
        self.query, self.key, self.rules = query, key, rules
        self.scale = rules.factor(query.shape[-1])
        self.shape = (*query.shape[:3], key.shape[2])
        self.blocks = list(_blocks(self.shape, rules.is_causal))
        self.size = max(math.prod(self.shape_of(block)) for block in self.blocks)
        self.buffer = query.new_empty(self.size)

    def shape_of(self, block: _Block) -> tuple[int, int, int]:
        n_rows, n_queries, n_keys = (part.stop - part.start for part in block)
        return n_rows * self.shape[1], n_queries, n_keys

    def of(self, block: _Block) -> Tensor:
        """Return the weights of a block, (rows · H, queries, keys); the next call overwrites them."""
        shape = self.shape_of(block)
        weights = self.buffer[: math.prod(shape)].view(shape)
        query, key = self.query[block.rows, :, block.queries], self.key[block.rows, :, block.keys]
        added, beta = self._bias(block), 1
        if added is None:
            added, beta = weights, 0
        products = query.flatten(0, 1), key.flatten(0, 1).mT
        torch.baddbmm(added, *products, beta=beta, alpha=self.scale, out=weights)
        return torch.softmax(weights, dim=-1, out=weights)

    def _bias(self, block: _Block) -> Tensor | None:
        """Return what is added to the scores of a block."""
        bias = self.rules.bias
        if bias is not None:
            rows = slice(None) if bias.shape[0] == 1 else block.rows
            queries = slice(None) if bias.shape[2] == 1 else block.queries
            n_rows = block.rows.stop - block.rows.start
            bias = bias[rows, :, queries, block.keys].expand(n_rows, self.shape[1], -1, -1).flatten(0, 1)
        if self.rules.is_causal:
            n_queries, n_keys = self.shape_of(block)[1:]
            later = self.query.new_full((n_queries, n_keys), -math.inf).triu(block.queries.start + 1)
            bias = later if bias is None else bias + later
        return bias


class _Blocked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, rules: ScoreRules) -> Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        context = query.new_empty(*query.shape[:3], value.shape[3])
        weights, factors, dropout = _Weights(query, key, rules), [], rules.dropout
        for block in weights.blocks:
            of_block = weights.of(block)
            if dropout:
                factors.append(torch.empty_like(of_block).bernoulli_(1 - dropout).div_(1 - dropout))
                of_block *= factors[-1]
            of_queries = of_block @ value[block.rows, :, block.keys].flatten(0, 1)
            context[block.rows, :, block.queries] = of_queries.unflatten(0, (-1, context.shape[1]))
        ctx.save_for_backward(query, key, value, bias, *factors)
        ctx.rules = replace(rules, bias=None)  # only the saved tensors keep memory
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, value, bias, *factors = ctx.saved_tensors
        rules: ScoreRules = replace(ctx.rules, bias=bias)
        weights, n_heads = _Weights(query, key, rules), query.shape[1]
        grad_query, grad_key, grad_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        buffer = query.new_empty(weights.size)
        for number, block in enumerate(weights.blocks):
            of_keys, of_queries = (block.rows, slice(None), block.keys), (block.rows, slice(None), block.queries)
            q, k, v, g = (x.flatten(0, 1) for x in (query[of_queries], key[of_keys], value[of_keys], grad[of_queries]))
            of_block = weights.of(block)
            of_scores = torch.bmm(g, v.mT, out=buffer[: of_block.numel()].view(of_block.shape))
            dropped = of_block * factors[number] if factors else of_block
            grad_value[of_keys] += (dropped.mT @ g).unflatten(0, (-1, n_heads))
            if factors:
                of_scores *= factors[number]
            # Gradient of a softmax: w · (g - Σ w g), the sum over the keys.
            torch._softmax_backward_data(of_scores, of_block, -1, of_block.dtype, grad_input=of_scores)
            grad_query[of_queries] = (of_scores @ k).mul_(weights.scale).unflatten(0, (-1, n_heads))
            grad_key[of_keys] += (of_scores.mT @ q).mul_(weights.scale).unflatten(0, (-1, n_heads))
        return grad_query, grad_key, grad_value, None, None
