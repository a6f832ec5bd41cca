"""Attention weights head by head: queries and keys of a forward pass, and the weights computed from them on demand."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.nn.attention import Memory
from glassformer.nn.attention_functions import at_least_fp32, capped
from glassformer.nn.masks import Mask


@dataclass(frozen=True)
class HeadWeights:
    """Weights of the H heads of one attention, as `heads[i]` and by iteration: (T, S) each, in fp32 on the CPU.

    Only queries and keys are stored, (T + S) · K numbers per head in place of T · S. The formula is that of
    `attention_reference`.
    """

    query: Tensor
    """(H, T, K)"""
    key: Tensor
    """(G, S, K); each key head serves H / G adjacent query heads."""
    mask: Mask
    scale: float
    bias: Tensor | None = None
    """(H, T, S), added to the scores."""
    cap: float = 0.0
    """Bound of the scores before the bias; 0 = none."""

    def __len__(self) -> int:
        return len(self.query)

    def __getitem__(self, head: int) -> Tensor:
        return self._weights(range(len(self))[head], self._hidden())

    def __iter__(self) -> Iterator[Tensor]:
        hidden = self._hidden()
        return (self._weights(head, hidden) for head in range(len(self)))

    def allowed(self) -> Tensor:
        """Return (T, S) on the CPU: True where a query may attend to a key."""
        n_queries, n_keys = self.query.shape[1], self.key.shape[1]
        hidden = self._hidden()
        if hidden is None:
            return torch.ones(n_queries, n_keys, dtype=torch.bool)
        return ~hidden.cpu()

    def _hidden(self) -> Tensor | None:
        """Return (T, S): True where a query may not see a key; None if every query sees every key."""
        if self.mask.is_trivial:
            return None
        return ~self.mask.dense(self.query.shape[1], self.key.shape[1], self.query.device)[0, 0]

    @torch.no_grad()
    def _weights(self, head: int, hidden: Tensor | None) -> Tensor:
        query, key = self.query[head], self.key[head * len(self.key) // len(self.query)]
        scores = at_least_fp32(query) @ at_least_fp32(key).T  # (T, S)
        scores *= self.scale  # in place, here and below: a new (T, S) matrix takes longer than its arithmetic
        scores = capped(scores, self.cap)
        if self.bias is not None:
            scores = scores + self.bias[head]
        if hidden is None:
            return scores.softmax(dim=-1).to("cpu", torch.float32)
        weights = scores.masked_fill_(hidden, -torch.inf).softmax(dim=-1)
        if self.mask.may_leave_a_row_empty:
            weights.masked_fill_(hidden.all(dim=-1, keepdim=True), 0.0)
        return weights.to("cpu", torch.float32)


@contextlib.contextmanager
def head_weights(network: nn.Module) -> Iterator[dict[str, HeadWeights]]:
    """Store queries and keys of each multi-head attention inside the `with` block, by path.

    The forward pass keeps its fused kernel. The first row of a batch is stored. The last pass replaces earlier ones.

    ```python
    with head_weights(model.network) as weights:
        model.network(token_ids)
    weights["decoder.blocks.0.self_attn"][3]  # (T, T): head 3
    ```
    """
    weights: dict[str, HeadWeights] = {}

    def store(path: str, attention: Any, x: Tensor, memory: Memory | None = None, **named: Any) -> None:
        query, key, _ = attention.project(x, memory, named.get("rotary"))
        mask, bias = named.get("mask") or Mask(), None
        if mask.bias is not None:
            bias = mask.bias[0].detach()
        weights[path] = HeadWeights(
            query[0].detach(), key[0].detach(), mask, attention.scale, bias, getattr(attention, "cap", 0.0)
        )

    def hook(path: str) -> Any:
        return lambda attention, args, named: store(path, attention, *args, **named)

    with contextlib.ExitStack() as stack:
        for path, module in network.named_modules():
            if hasattr(module, "project") and hasattr(module, "scale"):  # weights are softmax(scale · q kᵀ)
                stack.callback(module.register_forward_pre_hook(hook(path), with_kwargs=True).remove)
        yield weights
