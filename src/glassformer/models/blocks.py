"""Transformer block: self-attention, cross-attention and feed-forward, each with a norm and a residual connection."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.nn.attention import Attention, Memory, Tap, scoped, tapped
from glassformer.nn.feedforward import FeedForward
from glassformer.nn.kv_cache import CacheStep
from glassformer.nn.masks import Mask
from glassformer.nn.norms import NormFactory

Sublayer = Callable[[Tensor], Tensor]
Connect = Callable[[Tensor, Sublayer, nn.Module, nn.Module | None, Sublayer], Tensor]


def pre_norm(x: Tensor, sublayer: Sublayer, norm: nn.Module, out_norm: nn.Module | None, dropout: Sublayer) -> Tensor:
    """Return x + dropout(sublayer(norm(x))); `out_norm`, if given, normalises the added term (sandwich, Ding 2021)."""
    added = dropout(sublayer(norm(x)))
    if out_norm is not None:
        added = out_norm(added)
    return x + added


def post_norm(x: Tensor, sublayer: Sublayer, norm: nn.Module, out_norm: nn.Module | None, dropout: Sublayer) -> Tensor:
    """Return norm(x + dropout(sublayer(x))) (Vaswani 2017, section 3.1)."""
    return norm(x + dropout(sublayer(x)))


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
    tap: Tap | None = None


@dataclass(frozen=True)
class Residual:
    """Connection of each sublayer of a block with the residual stream."""

    norm: NormFactory
    connect: Connect
    """`pre_norm` or `post_norm`."""
    norm_outputs: bool = False
    """True if the output of a sublayer is also normalised."""
    dropout: float = 0.0


class Block(nn.Module):
    """Transformer block: self-attention, cross-attention (decoder with a memory only) and feed-forward (optional)."""

    def __init__(
        self,
        d_model: int,
        self_attn: Attention,
        cross_attn: Attention | None,
        ff: FeedForward | None,
        residual: Residual,
    ) -> None:
        super().__init__()

        def norm_for(present: bool) -> nn.Module | None:
            return residual.norm(d_model) if present else None

        has_out_norms = residual.norm_outputs
        self.self_attn_norm = residual.norm(d_model)
        self.self_attn = self_attn
        self.self_attn_out_norm = norm_for(has_out_norms)
        self.cross_attn_norm = norm_for(cross_attn is not None)
        self.cross_attn = cross_attn
        self.cross_attn_out_norm = norm_for(cross_attn is not None and has_out_norms)
        self.ff_norm = norm_for(ff is not None)
        self.ff = ff
        self.ff_out_norm = norm_for(ff is not None and has_out_norms)
        self.residual = residual

    def forward(self, x: Tensor, inputs: BlockInputs) -> Tensor:
        """Apply the block to `x` (B, T, D); return (B, T, D)."""
        x = self.attend(x, inputs)
        if self.ff is not None and self.ff_norm is not None:
            x = self.residual.connect(x, self.ff, self.ff_norm, self.ff_out_norm, self.dropout)
        return tapped(inputs.tap, "residual", x)

    def attend(self, x: Tensor, inputs: BlockInputs) -> Tensor:
        """Apply the attentions of the block to `x` (B, T, D), without its feed-forward."""
        tap = inputs.tap

        def self_attention(h: Tensor) -> Tensor:
            of_attention = scoped(tap, "self_attn")
            return self.self_attn(h, mask=inputs.mask, rotary=inputs.rotary, step=inputs.step, tap=of_attention)

        def cross_attention(h: Tensor) -> Tensor:
            assert self.cross_attn is not None
            return self.cross_attn(h, inputs.memory, mask=inputs.memory_mask, tap=scoped(tap, "cross_attn"))

        # `connect` with pre_norm: x + dropout(sublayer(norm(x))); with post_norm: norm(x + dropout(sublayer(x)))
        x = self.residual.connect(x, self_attention, self.self_attn_norm, self.self_attn_out_norm, self.dropout)
        if self.cross_attn_norm is not None:
            x = self.residual.connect(x, cross_attention, self.cross_attn_norm, self.cross_attn_out_norm, self.dropout)
        return x

    def dropout(self, x: Tensor) -> Tensor:
        if not self.residual.dropout:
            return x
        return F.dropout(x, self.residual.dropout, self.training)


class ParallelBlock(Block):
    """Pre-norm block whose feed-forward reads the block's input, as the attention does (Black 2022, section 2.1)."""

    def forward(self, x: Tensor, inputs: BlockInputs) -> Tensor:
        """Return x + attention(norm(x)) + ff(norm(x)), each with its own norm; (B, T, D) to (B, T, D)."""
        y = self.attend(x, inputs)
        if self.ff is not None and self.ff_norm is not None:
            y = y + self.dropout(self.ff(self.ff_norm(x)))
        return tapped(inputs.tap, "residual", y)
