"""Transformer block: self-attention, cross-attention and feed-forward, each with a norm and a residual connection."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.nn.arguments import function, number
from glassformer.nn.attention import Attention, Memory, Tap, scoped, tapped
from glassformer.nn.experts import Experts
from glassformer.nn.feedforward import FeedForward
from glassformer.nn.kv_cache import CacheStep
from glassformer.nn.masks import Mask
from glassformer.nn.norms import NormFactory

Sublayer = Callable[[Tensor], Tensor]
Norm = nn.Module | None
Connect = Callable[[Tensor, Sublayer, Norm, Norm, Sublayer], Tensor]


def pre_norm(x: Tensor, sublayer: Sublayer, norm: Norm, out_norm: Norm, added: Sublayer) -> Tensor:
    """Return x + added(sublayer(norm(x))), `added` is dropout and a factor; `out_norm` normalises the added term.

    Both norms make a sandwich (Ding 2021). OLMo 2 has only the norm of the output (Walsh 2024, section 3.1).

    >>> import torch
    >>> pre_norm(torch.ones(2), lambda h: 10 * h, nn.Identity(), None, nn.Identity())
    tensor([11., 11.])
    """
    y = added(sublayer(x if norm is None else norm(x)))
    if out_norm is not None:
        y = out_norm(y)
    return x + y


def post_norm(x: Tensor, sublayer: Sublayer, norm: Norm, out_norm: Norm, added: Sublayer) -> Tensor:
    """Return norm(x + added(sublayer(x))) (Vaswani 2017, section 3.1).

    >>> import torch
    >>> post_norm(torch.tensor([1.0, 3.0]), lambda h: 10 * h, nn.LayerNorm(2), None, nn.Identity()).round()
    tensor([-1.,  1.], grad_fn=<RoundBackward0>)
    """
    assert norm is not None
    return norm(x + added(sublayer(x)))


@dataclass(frozen=True)
class BlockInputs:
    """Inputs of a block beside the hidden states; most are the same for all blocks of a stack.

    No default is an instance of a class of this package: `torch.compile` would break the graph at every block.
    """

    mask: Mask
    rotary: tuple[Tensor, Tensor] | None = None
    memory: Memory | None = None
    memory_mask: Mask | None = None
    step: CacheStep | None = None
    """In generation: the cache of the block's self-attention, and the slots of the new tokens."""
    real: Tensor | None = None
    """(B, T) bool: tokens that count as load of experts in training; None = all."""
    tap: Tap | None = None


@dataclass(frozen=True)
class Residual:
    """Connection of each sublayer of a block with the residual stream.

    >>> Residual(nn.LayerNorm, pre_norm, shared_norm=True).norm_outputs
    False
    """

    norm: NormFactory
    connect: Connect
    """`pre_norm` or `post_norm`."""
    norm_inputs: bool = True
    """True if the input of a sublayer is normalised, or with `post_norm` its sum with the output."""
    norm_outputs: bool = False
    """True if the output of a sublayer is also normalised."""
    shared_norm: bool = False
    """True if the feed-forward has no norm of its own (`ParallelBlock`)."""
    dropout: float = 0.0
    scale: float = 1.0
    """Factor of what a sublayer adds to the residual stream."""

    def __post_init__(self) -> None:
        """Raise `TypeError` or `ValueError` for an argument that the forward pass of a block cannot use."""
        function("norm", self.norm)
        function("connect", self.connect)
        number("dropout", self.dropout, 0, 1)
        number("scale", self.scale)


class Block(nn.Module):
    """Transformer block: self-attention, cross-attention (decoder with a memory only) and feed-forward (optional).

    >>> import torch
    >>> from glassformer.nn import MultiHeadAttention
    >>> attention, ff = MultiHeadAttention(16, n_heads=4), FeedForward(16, 64)
    >>> block = Block(16, attention, None, ff, Residual(nn.LayerNorm, pre_norm))
    >>> block(torch.zeros(2, 5, 16), BlockInputs(Mask(causal=True))).shape
    torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        d_model: int,
        self_attn: Attention,
        cross_attn: Attention | None,
        ff: FeedForward | Experts | None,
        residual: Residual,
    ) -> None:
        super().__init__()

        def norm_for(present: bool) -> nn.Module | None:
            return residual.norm(d_model) if present else None

        has_norms, has_out_norms = residual.norm_inputs, residual.norm_outputs
        self.self_attn_norm = norm_for(has_norms)
        self.self_attn = self_attn
        self.self_attn_out_norm = norm_for(has_out_norms)
        self.cross_attn_norm = norm_for(cross_attn is not None and has_norms)
        self.cross_attn = cross_attn
        self.cross_attn_out_norm = norm_for(cross_attn is not None and has_out_norms)
        self.ff_norm = norm_for(ff is not None and has_norms and not residual.shared_norm)
        self.ff = ff
        self.ff_out_norm = norm_for(ff is not None and has_out_norms)
        self.residual = residual

    def forward(self, x: Tensor, inputs: BlockInputs) -> Tensor:
        """Apply the block to `x` (B, T, D); return (B, T, D)."""
        # `connect` with pre_norm: x + added(sublayer(norm(x))); with post_norm: norm(x + added(sublayer(x)))
        connect, added = self.residual.connect, self.added
        x = connect(x, self.attention_to(inputs), self.self_attn_norm, self.self_attn_out_norm, added)
        x = self.read_memory(x, inputs)
        if self.ff is not None:
            x = connect(x, self.feed_forward(inputs), self.ff_norm, self.ff_out_norm, added)
        return tapped(inputs.tap, "residual", x)

    def feed_forward(self, inputs: BlockInputs) -> Sublayer:
        """Return the feed-forward sublayer as a function of its normalised input."""
        assert self.ff is not None
        return self.ff if inputs.real is None else partial(self.ff, real=inputs.real)

    def attention_to(self, inputs: BlockInputs) -> Sublayer:
        """Return the self-attention as a function of its normalised input."""

        def self_attention(h: Tensor) -> Tensor:
            tap = scoped(inputs.tap, "self_attn")
            return self.self_attn(h, mask=inputs.mask, rotary=inputs.rotary, step=inputs.step, tap=tap)

        return self_attention

    def read_memory(self, x: Tensor, inputs: BlockInputs) -> Tensor:
        """Apply the cross-attention to `x` (B, T, D); without one, return `x`."""
        if self.cross_attn is None:
            return x
        cross_attn = self.cross_attn

        def cross_attention(h: Tensor) -> Tensor:
            return cross_attn(h, inputs.memory, mask=inputs.memory_mask, tap=scoped(inputs.tap, "cross_attn"))

        return self.residual.connect(x, cross_attention, self.cross_attn_norm, self.cross_attn_out_norm, self.added)

    def added(self, x: Tensor) -> Tensor:
        """Return what a sublayer with the output `x` adds to the residual stream: dropout, and the factor."""
        if self.residual.scale != 1:
            x = x * self.residual.scale
        if not self.residual.dropout:
            return x
        return F.dropout(x, self.residual.dropout, self.training)


class ParallelBlock(Block):
    """Pre-norm block whose feed-forward reads the block's input, as the attention does (Black 2022, section 2.1).

    Both sublayers have a norm of their own, or share the norm of the attention (Wang 2021, GPT-J).

    >>> import torch
    >>> from glassformer.nn import MultiHeadAttention
    >>> shared = Residual(nn.LayerNorm, pre_norm, shared_norm=True)
    >>> block = ParallelBlock(16, MultiHeadAttention(16, n_heads=4), None, FeedForward(16, 64), shared)
    >>> block(torch.zeros(2, 5, 16), BlockInputs(Mask(causal=True))).shape
    torch.Size([2, 5, 16])
    """

    def forward(self, x: Tensor, inputs: BlockInputs) -> Tensor:
        """Return x + attention(norm(x)) + ff(norm(x)); (B, T, D) to (B, T, D)."""
        assert self.self_attn_norm is not None
        h = self.self_attn_norm(x)
        y = self.read_memory(x + self.added(self.attention_to(inputs)(h)), inputs)
        if self.ff is not None:
            if self.ff_norm is not None:
                h = self.ff_norm(x)
            y = y + self.added(self.feed_forward(inputs)(h))
        return tapped(inputs.tap, "residual", y)
