"""Attention masks: which query may attend to which key. In every mask, True = may attend.

A mask is a set of rules that are combined with AND, so a kernel can recognise "only causal". A stack computes the dense
form once for all its blocks. The output for a query that may attend to no key is 0.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from glassformer.nn.boundary import allowed_pairs, as_bool, described
from glassformer.nn.kernels.flex_attention import document_blocks


@dataclass(frozen=True)
class Mask:
    """Attention rules combined by AND; symbolic, so that a kernel can detect "only causal" without reading a matrix.

    A `bias` is added to the scores of the keys that the rules allow.

    Letters: B batch, T query length, S key length.
    """

    causal: bool = False
    """If True, a query sees keys up to its own index."""
    window: int = 0
    """A query sees keys at a distance of less than `window`, itself included; 0 = any distance."""
    keys: Tensor | None = None
    """(B, S) bool, True = a real key. This rule does not replace the causal rule."""
    query_index: Tensor | None = None
    """(T,) or (B, T): index of each query on the key axis; `None` = query t has index t."""
    documents: tuple[Tensor, Tensor] | None = None
    """(B, T) and (B, S): document of each query and key; a query sees only keys of its own document."""
    key_index: Tensor | None = None
    """(B, S): index of each key; `None` = key s has index s."""
    pairs: Tensor | None = None
    """(B, T, S) bool: the keys that each query sees, at least one."""
    bias: Tensor | None = None
    """(B or 1, H, T, S): added to the scores."""
    is_prepared: bool = False
    """True if `allowed` and `empty` hold what a kernel reads; a stack computes them once for its blocks."""
    allowed: Tensor | None = None
    """(B or 1, 1, T, S) bool: the dense form of the rules; `None` if there is no rule, or only the kernel's causal
    rule."""
    empty: Tensor | None = None
    """(B, 1, T, 1) bool: queries that may attend to no key; `None` if every query has a key."""
    block_mask: BlockMask | None = None
    """The rules for FlexAttention, in place of `allowed`: which keys a block of queries reads."""

    def __post_init__(self) -> None:
        """Convert a mask of numbers 0 and 1 to bool; raise `TypeError` or `ValueError` for another mask."""
        if self.keys is not None and getattr(self.keys, "dtype", None) != torch.bool:
            object.__setattr__(self, "keys", as_bool("keys", self.keys))

    @property
    def is_trivial(self) -> bool:
        """True if every query may attend to every key."""
        return not self.causal and self.allowed is None and self._has_no_other_rule

    @property
    def is_only_causal(self) -> bool:
        """True if the only rule is "query t sees keys up to t", which a fused kernel applies without a matrix."""
        return self.causal and self.query_index is None and self.key_index is None and self._has_no_other_rule

    @property
    def _has_no_other_rule(self) -> bool:
        """True if no rule except the causal one can hide a key."""
        return not self.window and self.keys is None and self.pairs is None and self.documents is None

    @property
    def may_leave_a_row_empty(self) -> bool:
        """True if a query may see no key at all. The causal rule alone always allows the query itself."""
        return self.keys is not None or self.documents is not None

    def dense(self, n_queries: int, n_keys: int, device: torch.device | None = None) -> Tensor:
        """Return the rules as one (B or 1, 1, T, S) bool tensor, True = may attend: the reference for every backend.

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
        allowed = with_rows(allowed, 3)  # (B or 1, T, S)
        if self.pairs is not None:
            allowed = allowed & self.pairs
        if self.keys is not None:
            allowed = allowed & self.keys[:, None, :]
        if self.documents is not None:
            of_query, of_key = self.documents
            allowed = allowed & (of_query[:, :, None] == of_key[:, None, :])
        return allowed[:, None]

    def materialized(self, n_queries: int, n_keys: int, device: torch.device) -> "Mask":
        """Return the mask with its dense form, unless there is no rule, or only a causal rule that the kernel has.

        The kernel has a causal rule only for as many queries as keys, both counted from 0, and without a bias.
        """
        if self.is_prepared:
            return self
        if self.is_trivial or (self.is_only_causal and self.bias is None and n_queries == n_keys):
            return replace(self, is_prepared=True)
        allowed, empty = self.dense(n_queries, n_keys, device), None
        if self.may_leave_a_row_empty:
            empty = ~allowed.any(dim=-1, keepdim=True)
        return replace(self, is_prepared=True, allowed=allowed, empty=empty)

    @property
    def can_be_blocks(self) -> bool:
        """True if `as_blocks` can represent the rules: documents, without a bias, indices or pairs."""
        others = (self.bias, self.query_index, self.key_index, self.pairs)
        return self.documents is not None and all(rule is None for rule in others)

    def as_blocks(self) -> "Mask":
        """Return the mask, which has `documents`, with its rules as blocks for FlexAttention."""
        assert self.documents is not None
        return replace(self, block_mask=document_blocks(self.documents, self.causal, self.window, self.keys))


def as_mask(name: str, mask: object, shape: tuple[int, int, int, int]) -> Mask:
    """Return what a caller gives as a mask of scores (B, H, T, S): a `Mask`, None for no rule, or a tensor.

    Tensors are those of `allowed_pairs`. Raises `TypeError` for another object.

    >>> as_mask("mask", torch.ones(2, 2).tril(), (1, 1, 2, 2)).dense(2, 2).int()[0, 0]
    tensor([[1, 0],
            [1, 1]], dtype=torch.int32)
    """
    if mask is None:
        return Mask()
    if isinstance(mask, Mask):
        return mask
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name}: expected a tensor or a Mask, such as Mask(causal=True), got {described(mask)}")
    allowed = allowed_pairs(name, mask, shape)
    return Mask(is_prepared=True, allowed=allowed, empty=~allowed.any(dim=-1, keepdim=True))


def causal_as_well(mask: object, shape: tuple[int, int, int, int]) -> Mask:
    """Return a mask that `as_mask` takes, together with the causal rule.

    >>> causal_as_well(torch.tensor([[True, False]]), (1, 1, 2, 2)).dense(2, 2).int()[0, 0]
    tensor([[1, 0],
            [1, 0]], dtype=torch.int32)
    """
    rules, device = as_mask("mask", mask, shape), mask.device if isinstance(mask, Tensor) else None
    both = rules.dense(shape[2], shape[3], device) & Mask(causal=True).dense(shape[2], shape[3], device)
    return as_mask("mask", both, shape)


def with_rows(x: Tensor, n_dims: int) -> Tensor:
    """Return `x` with `n_dims` dimensions: add a first dimension of 1 if `x` has no dimension for the rows."""
    return x if x.dim() == n_dims else x[None]


def positions_from_mask(attention_mask: Tensor) -> Tensor:
    """Return each real token's position among the real tokens of its row, (B, T); padding gets any position from 0 on.

    >>> positions_from_mask(torch.tensor([[False, True, True], [True, True, False]]))
    tensor([[0, 0, 1],
            [0, 1, 1]])
    """
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
