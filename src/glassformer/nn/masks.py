"""Who may attend to whom. One meaning everywhere: True = may attend."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """Rules that are ANDed; kept symbolic, so that a fast path can see "only causal" without reading a matrix.

    Letters: B batch, T query length, S key length.
    """

    causal: bool = False
    """A query sees keys up to its own index."""
    window: int = 0
    """A query sees keys less than `window` away, itself included; 0 = any distance."""
    keys: Tensor | None = None
    """(B, S) bool: real keys. It masks keys and never replaces the causal rule."""
    query_index: Tensor | None = None
    """(T,) or (B, T): where each query stands on the key axis; None = query t stands at key t."""
    documents: tuple[Tensor, Tensor] | None = None
    """(B, T) and (B, S): the document of each query and key; none sees another's."""
    key_index: Tensor | None = None
    """(B, S): where each key stands; None = key s stands at s."""
    pairs: Tensor | None = None
    """(B, T, S) bool: which keys each query sees, one at least."""
    allowed: Tensor | None = None
    """(B or 1, 1, T, S) bool: the rules already worked out, when a stack shares them among its blocks."""

    @property
    def is_trivial(self) -> bool:
        """Every query may attend to every key."""
        return not self.causal and self._hides_by_place_alone

    @property
    def is_only_causal(self) -> bool:
        """Nothing but "query t sees keys up to t": what a fused kernel does without a matrix."""
        is_in_place = self.query_index is None and self.key_index is None
        return self.causal and is_in_place and self._hides_by_place_alone

    @property
    def _hides_by_place_alone(self) -> bool:
        """No rule but perhaps the causal one."""
        return not self.window and self.keys is None and self.pairs is None and self.documents is None

    @property
    def may_leave_a_row_empty(self) -> bool:
        """Some query might see no key at all: the causal rule alone always leaves the query itself."""
        return self.keys is not None or self.documents is not None

    def dense(self, n_queries: int, n_keys: int, device: torch.device | None = None) -> Tensor:
        """The rules as one (B or 1, 1, T, S) bool tensor, True = may attend: the reference for every backend.

        >>> Mask(causal=True, window=2).dense(3, 3).int()[0, 0]
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
        """
        if self.allowed is not None:
            return self.allowed
        key = torch.arange(n_keys, device=device) if self.key_index is None else self.key_index[:, None]
        query = torch.arange(n_queries, device=device) if self.query_index is None else self.query_index
        distance = query[..., :, None] - key  # (T, S) or (B, T, S)
        allowed = torch.ones_like(distance, dtype=torch.bool)
        if self.causal:
            allowed = distance >= 0
        if self.window:
            allowed = allowed & (distance.abs() < self.window)
        allowed = allowed if allowed.dim() == 3 else allowed[None]  # (B or 1, T, S)
        if self.pairs is not None:
            allowed = allowed & self.pairs
        if self.keys is not None:
            allowed = allowed & self.keys[:, None, :]
        if self.documents is not None:
            of_query, of_key = self.documents
            allowed = allowed & (of_query[:, :, None] == of_key[:, None, :])
        return allowed[:, None]

    def worked_out(self, n_queries: int, n_keys: int, device: torch.device, always: bool = False) -> "Mask":
        """The same mask with its dense form inside, unless a kernel needs none (`always`: a bias needs it)."""
        if self.is_trivial or (self.is_only_causal and not always):
            return self
        return replace(self, allowed=self.dense(n_queries, n_keys, device))


def positions_from_mask(attention_mask: Tensor) -> Tensor:
    """(B, T) bool → (B, T) position of each real token among the real tokens of its row; padding gets 0 or more.

    >>> positions_from_mask(torch.tensor([[False, True, True], [True, True, False]]))
    tensor([[0, 0, 1],
            [0, 1, 1]])
    """
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
