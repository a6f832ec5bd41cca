"""Rules that turn the scores of an attention into weights, for every kernel."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor


def scale_or_default(scale: float | None, width: int) -> float:
    """Return the factor of the products of vectors of this width; None = 1/√width."""
    return 1 / math.sqrt(width) if scale is None else scale


@dataclass(frozen=True)
class ScoreRules:
    """Rules from the products q kᵀ to the weights; B batch, H heads, T query length, S key length, K key width."""

    allowed: Tensor | None = None
    """(B or 1, 1, T, S) bool, True = may attend; None if no pair is hidden, or by the causal rule only."""
    is_causal: bool = False
    """True if the only rule is that query t sees keys up to t, with T = S."""
    bias: Tensor | None = None
    """(B or 1, H, T, S), added to the scores."""
    may_leave_a_row_empty: bool = False
    """True if `allowed` may hide all keys of a query."""
    scale: float | None = None
    """Factor of the products; None = 1/√K."""
    dropout: float = 0.0
    """Dropout of the weights."""

    def factor(self, width: int) -> float:
        """Return the factor of the products of vectors of this width."""
        return scale_or_default(self.scale, width)

    def without_empty_rows(self) -> "tuple[ScoreRules, Tensor | None]":
        """Unmask the rows that hide all keys, because a softmax over only -inf is NaN.

        Return these rows too, (B or 1, 1, T, 1): the caller sets their context to zero.
        """
        if self.allowed is None or not self.may_leave_a_row_empty:
            return self, None
        empty = ~self.allowed.any(dim=-1, keepdim=True)
        return replace(self, allowed=self.allowed | empty), empty

    def mask_of_kernel(self, dtype: torch.dtype) -> Tensor | None:
        """Return the mask or the masked bias, (B or 1, H or 1, T, S)."""
        if self.bias is None:
            return self.allowed
        bias = self.bias.to(dtype)
        if self.allowed is not None:
            bias = bias.masked_fill(~self.allowed, -math.inf)
        return bias
