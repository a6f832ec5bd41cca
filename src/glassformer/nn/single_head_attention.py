"""Single-head attention of a decoder state over encoder states, with the score function as an argument."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from glassformer.nn import attention_functions as functions
from glassformer.nn.arguments import one_of
from glassformer.nn.attention import Tap, tapped_as_one
from glassformer.nn.linear_layers import Linear

Score = Literal["additive", "dot", "general", "scaled_dot"]

_PROJECTED: dict[Score, str] = {"additive": "qk", "dot": "", "general": "k", "scaled_dot": "qkv"}
"""Letters of the queries (q), keys (k) and values (v) that have a projection matrix, for each score."""


class SingleHeadAttention(nn.Module):
    """Attention context = Σⱼ softmaxⱼ(score(h, sⱼ)) vⱼ of a state h (width `d_query`) and memory sⱼ (width `d_memory`).

    - "additive": vᵀ tanh(W₁h + W₂s) (Bahdanau 2015, appendix A.1.2), which is Luong's "concat" vᵀ tanh(W[h; s])
      with W split into two halves.
    - "dot": hᵀs, "general": hᵀW s (Luong 2015, section 3.1, equation 8).
    - "scaled_dot": (W₁h)ᵀ(W₂s) / √A over the values W₃s (Vaswani 2017, equation 1, with one head).

    Letters: B batch, T query length, S source length, A `d_attention`, W `d_context`, the width of a value: `d_memory`,
    or A if values are projected. "dot" and "general" have no A, and "dot" needs `d_query` equal to `d_memory`.
    """

    def __init__(self, d_query: int, d_memory: int, score: Score, d_attention: int | None = None) -> None:
        super().__init__()
        projected = _PROJECTED[one_of("score", score, _PROJECTED)]
        if score == "dot" and d_query != d_memory:
            raise ValueError(f"score dot: expected d_query equal to d_memory, got {d_query} and {d_memory}")
        d_key, self.d_context = d_query, d_memory
        self.q_proj: nn.Module = nn.Identity()
        self.k_proj: nn.Module = nn.Identity()
        self.v_proj: nn.Module = nn.Identity()
        if "q" in projected:
            d_key = d_attention or d_query
            self.q_proj = Linear(d_query, d_key, bias=False)
        if "k" in projected:
            self.k_proj = Linear(d_memory, d_key, bias=False)
        if "v" in projected:
            self.d_context = d_key
            self.v_proj = Linear(d_memory, d_key, bias=False)
        self.vector = None
        if score == "additive":
            self.vector = nn.Parameter(torch.empty(d_key))
            nn.init.uniform_(self.vector, -1 / math.sqrt(d_key), 1 / math.sqrt(d_key))
        self.multiply = functions.multiplicative_scores
        if score == "scaled_dot":
            self.multiply = functions.scaled_dot_product_scores

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Project `memory` (B, S, D) to keys (B, S, A) and values (B, S, W), once per source."""
        return self.k_proj(memory), self.v_proj(memory)

    def forward(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None, tap: Tap | None = None
    ) -> Tensor:
        """Return the context (B, T, W) of `query` (B, T, D) on projected `keys`, `values`; `mask` (B, S) True = real.

        A row without a real token gets zeros. The tap receives scores and weights (B, 1, T, S), context (B, 1, T, W).
        """
        if mask is not None:
            mask = mask[:, None]  # (B, 1, S)
        scores = tapped_as_one(tap, "scores", self.scores(self.q_proj(query), keys))
        weights = tapped_as_one(tap, "weights", functions.masked_softmax(scores, mask))
        return tapped_as_one(tap, "context", weights @ values)

    def scores(self, query: Tensor, keys: Tensor) -> Tensor:
        """Return the scores (B, T, S) of a projected query and projected keys."""
        if self.vector is None:
            return self.multiply(query, keys)
        return functions.additive_scores(query, keys, self.vector)
