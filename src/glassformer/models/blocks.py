"""Transformer block: self-attention, cross-attention and feed-forward, each with a norm and a residual connection."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.common.arguments import function, number, one_of, takes_other_names
from glassformer.models.state import TransformerState
from glassformer.nn.attention import Attention, Memory, MultiHeadAttention, Tap
from glassformer.nn.experts import Experts
from glassformer.nn.kv_cache import Cache
from glassformer.nn.layers import Activation, FeedForward, LayerNorm, NormFactory
from glassformer.nn.masks import Mask, as_mask


@dataclass
class Inputs:
    """Everything that a forward pass reads besides the token ids (B, T); stacks and blocks take this object.

    A field of None is computed where it is needed, or is not used. No default is an instance of a class of this
    package, because with one, `torch.compile` would break the graph at every block.
    """

    # The caller gives these, by the names of a `Batch`. Masks are bool, and True marks a real token.
    attention_mask: Tensor | None = None  # (B, T)
    source_ids: Tensor | None = None  # (B, S)
    source_attention_mask: Tensor | None = None  # (B, S)
    token_types: Tensor | None = None  # (B, T): the part of a pair that each token belongs to
    positions: Tensor | None = None  # (T,) or (B, T); by default, counted among the real tokens of a row
    document_ids: Tensor | None = None  # (B, T): no token sees another document; padding has -1
    tap: Tap | None = None

    # The network and a step of generation add these.
    memory: Memory | None = None  # (B, S, D); in generation, a block gets its own projection
    state: TransformerState | None = None  # the earlier tokens
    key_positions: Tensor | None = None  # (S,) or (B, S), if they differ from `positions`
    mask: Mask | None = None  # of the self-attention; by default, causality, padding and documents

    # The stack adds these for its blocks.
    memory_mask: Mask | None = None  # of the cross-attention
    rotary: tuple[Tensor, Tensor] | None = None  # cosines and sines, (1 or B, 1, T, K') each
    cache: Cache | None = None  # of the self-attention
    real: Tensor | None = None  # (B, T): the tokens that experts count in training; None = all


@dataclass(frozen=True)
class Residual:
    """Connection of each sublayer of a block with the residual stream: norm, dropout and a factor.

    >>> Residual(nn.LayerNorm, dropout=0.1).scale
    1.0
    """

    norm: NormFactory
    dropout: float = 0.0
    scale: float = 1.0
    """Factor of the output of a sublayer, before it is added to the residual stream."""

    def __post_init__(self) -> None:
        """Raise `TypeError` or `ValueError` for an argument that the forward pass of a block cannot use."""
        function("norm", self.norm)
        number("dropout", self.dropout, 0, 1)
        number("scale", self.scale)


class Block(nn.Module, ABC):
    """The sublayers of a block; a subclass connects them.

    The sublayers are self-attention, cross-attention (in a decoder with a memory) and a feed-forward layer (optional).

    >>> sorted(BLOCKS)
    ['output', 'parallel', 'parallel_shared', 'post', 'pre', 'sandwich']
    """

    normalises_inputs = True
    """True if each sublayer has a norm of its input. (`PostNormBlock` applies this norm after the residual sum.)"""
    normalises_outputs = False
    """True if each sublayer has a norm of its output."""
    shares_norm = False
    """True if the feed-forward layer reads the same normalised input as the attention."""

    def __init__(
        self,
        d_model: int,
        self_attn: Attention,
        cross_attn: Attention | None,
        ff: FeedForward | Experts | None,
        residual: Residual,
    ) -> None:
        super().__init__()

        def norm(is_present: bool) -> Any:
            return residual.norm(d_model) if is_present else None

        inputs, outputs = self.normalises_inputs, self.normalises_outputs
        self.self_attn_norm = norm(inputs)
        self.self_attn: Any = self_attn
        self.self_attn_out_norm = norm(outputs)
        self.cross_attn_norm = norm(cross_attn is not None and inputs)
        self.cross_attn: Any = cross_attn
        self.cross_attn_out_norm = norm(cross_attn is not None and outputs)
        self.ff_norm = norm(ff is not None and inputs and not self.shares_norm)
        self.ff: Any = ff
        self.ff_out_norm = norm(ff is not None and outputs)
        self.residual = residual

    @abstractmethod
    def forward(self, x: Tensor, inputs: Inputs) -> Tensor:
        """Apply the block to `x` (B, T, D); return (B, T, D)."""

    def attention(self, h: Tensor, inputs: Inputs) -> Tensor:
        """Return what the self-attention of `h` (B, T, D) adds to the residual stream."""
        tap = None if inputs.tap is None else inputs.tap.scope("self_attn")
        return self.added(self.self_attn(h, mask=inputs.mask, rotary=inputs.rotary, cache=inputs.cache, tap=tap))

    def cross_attention(self, h: Tensor, inputs: Inputs) -> Tensor:
        """Return what the cross-attention of `h` (B, T, D) adds to the residual stream."""
        tap = None if inputs.tap is None else inputs.tap.scope("cross_attn")
        return self.added(self.cross_attn(h, inputs.memory, mask=inputs.memory_mask, tap=tap))

    def feed_forward(self, h: Tensor, inputs: Inputs) -> Tensor:
        """Return what the feed-forward layer adds to the residual stream for `h` (B, T, D)."""
        return self.added(self.ff(h) if inputs.real is None else self.ff(h, real=inputs.real))

    def added(self, y: Tensor) -> Tensor:
        """Return what a sublayer with the output `y` adds to the residual stream: `y` × the factor, with dropout."""
        residual = self.residual
        if residual.scale != 1:
            y = y * residual.scale
        return F.dropout(y, residual.dropout, self.training) if residual.dropout else y


class PreNormBlock(Block):
    """x + sublayer(norm(x)) (Wang 2019, section 2.2).

    >>> import torch
    >>> from glassformer.nn import MultiHeadAttention
    >>> attention, ff = MultiHeadAttention(16, n_heads=4), FeedForward(16, 64)
    >>> block = PreNormBlock(16, attention, None, ff, Residual(nn.LayerNorm))
    >>> block(torch.zeros(2, 5, 16), Inputs(mask=Mask(causal=True))).shape
    torch.Size([2, 5, 16])
    """

    def forward(self, x: Tensor, inputs: Inputs) -> Tensor:
        x = x + self.attention(self.self_attn_norm(x), inputs)
        if self.cross_attn is not None:
            x = x + self.cross_attention(self.cross_attn_norm(x), inputs)
        if self.ff is not None:
            x = x + self.feed_forward(self.ff_norm(x), inputs)
        return x


class PostNormBlock(Block):
    """norm(x + sublayer(x)) (Vaswani 2017, section 3.1).

    >>> import torch
    >>> from glassformer.nn import MultiHeadAttention
    >>> block = PostNormBlock(16, MultiHeadAttention(16, 4), None, FeedForward(16, 64), Residual(nn.LayerNorm))
    >>> block(torch.zeros(2, 5, 16), Inputs(mask=Mask())).shape
    torch.Size([2, 5, 16])
    """

    def forward(self, x: Tensor, inputs: Inputs) -> Tensor:
        x = self.self_attn_norm(x + self.attention(x, inputs))
        if self.cross_attn is not None:
            x = self.cross_attn_norm(x + self.cross_attention(x, inputs))
        if self.ff is not None:
            x = self.ff_norm(x + self.feed_forward(x, inputs))
        return x


class OutputNormBlock(Block):
    """x + norm(sublayer(x)) (OLMo 2: Walsh 2024, section 3.1).

    >>> from glassformer.nn import MultiHeadAttention
    >>> block = OutputNormBlock(16, MultiHeadAttention(16, 4), None, FeedForward(16, 64), Residual(nn.LayerNorm))
    >>> block.self_attn_norm is None, block.self_attn_out_norm is None
    (True, False)
    """

    normalises_inputs, normalises_outputs = False, True

    def forward(self, x: Tensor, inputs: Inputs) -> Tensor:
        x = x + self.self_attn_out_norm(self.attention(x, inputs))
        if self.cross_attn is not None:
            x = x + self.cross_attn_out_norm(self.cross_attention(x, inputs))
        if self.ff is not None:
            x = x + self.ff_out_norm(self.feed_forward(x, inputs))
        return x


class SandwichBlock(Block):
    """x + norm(sublayer(norm(x))) (Ding 2021, section 3.3).

    >>> from glassformer.nn import MultiHeadAttention
    >>> block = SandwichBlock(16, MultiHeadAttention(16, 4), None, FeedForward(16, 64), Residual(nn.LayerNorm))
    >>> block.self_attn_norm is None, block.self_attn_out_norm is None
    (False, False)
    """

    normalises_outputs = True

    def forward(self, x: Tensor, inputs: Inputs) -> Tensor:
        x = x + self.self_attn_out_norm(self.attention(self.self_attn_norm(x), inputs))
        if self.cross_attn is not None:
            x = x + self.cross_attn_out_norm(self.cross_attention(self.cross_attn_norm(x), inputs))
        if self.ff is not None:
            x = x + self.ff_out_norm(self.feed_forward(self.ff_norm(x), inputs))
        return x


class ParallelBlock(Block):
    """x + attention(norm(x)) + feed_forward(norm(x)) (Black 2022, section 2.1).

    >>> import torch
    >>> from glassformer.nn import MultiHeadAttention
    >>> residual = Residual(nn.LayerNorm)
    >>> block = ParallelBlock(16, MultiHeadAttention(16, n_heads=4), None, FeedForward(16, 64), residual)
    >>> block(torch.zeros(2, 5, 16), Inputs(mask=Mask(causal=True))).shape
    torch.Size([2, 5, 16])
    """

    def forward(self, x: Tensor, inputs: Inputs) -> Tensor:
        h = self.self_attn_norm(x)
        y = x + self.attention(h, inputs)
        if self.cross_attn is not None:
            y = y + self.cross_attention(self.cross_attn_norm(y), inputs)
        if self.ff is not None:
            y = y + self.feed_forward(h if self.ff_norm is None else self.ff_norm(x), inputs)
        return y


class SharedNormBlock(ParallelBlock):
    """A `ParallelBlock` with a single norm, whose output both sublayers read (Wang 2021, GPT-J)."""

    shares_norm = True


BLOCKS: dict[str, type[Block]] = {
    "pre": PreNormBlock,
    "post": PostNormBlock,
    "sandwich": SandwichBlock,
    "output": OutputNormBlock,
    "parallel": ParallelBlock,
    "parallel_shared": SharedNormBlock,
}
"""The class of block for each `norm_order` of a configuration."""


class TransformerBlock(nn.Module):
    """A block by itself, for reading and for models of your own: `BLOCKS[norm_order]` with plain arguments.

    >>> import torch
    >>> x, memory = torch.zeros(2, 5, 16), torch.zeros(2, 7, 16)
    >>> TransformerBlock(16, n_heads=4)(x, mask=torch.ones(5, 5).tril()).shape
    torch.Size([2, 5, 16])
    >>> TransformerBlock(16, n_heads=4, cross_attention=True)(x, memory=memory, mask=Mask(causal=True)).shape
    torch.Size([2, 5, 16])
    """

    @takes_other_names
    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int | None = None,
        dropout: float = 0.0,
        *,
        activation: Activation | str = "gelu",
        norm_order: str = "pre",
        cross_attention: bool = False,
    ) -> None:
        super().__init__()
        attentions = [MultiHeadAttention(d_model, n_heads) for _ in range(1 + cross_attention)]
        ff = FeedForward(d_model, d_ff, activation)
        cls = BLOCKS[one_of("norm_order", norm_order, BLOCKS)]
        cross = attentions[1] if cross_attention else None
        self.block = cls(d_model, attentions[0], cross, ff, Residual(LayerNorm, dropout))

    @takes_other_names
    def forward(
        self,
        x: Tensor,
        mask: Mask | Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Mask | Tensor | None = None,
    ) -> Tensor:
        """Apply the block to `x` (B, T, D), which may also read a `memory` (B, S, D); masks as in `attention`."""
        if (memory is None) != (self.block.cross_attn is None):
            raise ValueError("memory: expected a tensor in a block with cross_attention, and None in another block")
        (n_rows, n_queries), n_heads = x.shape[:2], self.block.self_attn.n_heads
        shape = (n_rows, n_heads, n_queries, n_queries if memory is None else memory.shape[1])
        inputs = Inputs(memory=memory, mask=as_mask("mask", mask, (*shape[:3], n_queries)))
        inputs.memory_mask = as_mask("memory_mask", memory_mask, shape)
        return self.block(x, inputs)
