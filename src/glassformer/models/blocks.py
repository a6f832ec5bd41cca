"""Transformer block: self-attention, cross-attention and feed-forward, each with a norm and a residual connection."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.nn.attention import MultiHeadAttention, Tap, scoped
from glassformer.nn.feedforward import FeedForward
from glassformer.nn.kv_cache import Grid, LayerCache, Slots
from glassformer.nn.masks import Mask
from glassformer.nn.norms import NormFactory

Sublayer = Callable[[Tensor], Tensor]
Connect = Callable[[Tensor, Sublayer, nn.Module, nn.Module | None, Sublayer], Tensor]


def pre_norm(x: Tensor, sublayer: Sublayer, norm: nn.Module, out_norm: nn.Module | None, dropout: Sublayer) -> Tensor:
    """Return x + dropout(sublayer(norm(x))); `out_norm`, if given, normalises the added term (sandwich, Ding 2021)."""
    added = dropout(sublayer(norm(x)))
    return x + (added if out_norm is None else out_norm(added))


def post_norm(x: Tensor, sublayer: Sublayer, norm: nn.Module, out_norm: nn.Module | None, dropout: Sublayer) -> Tensor:
    """Return norm(x + dropout(sublayer(x))) (Vaswani 2017, section 3.1)."""
    return norm(x + dropout(sublayer(x)))


@dataclass(frozen=True)
class BlockInputs:
    """Inputs that a stack computes once and passes to each of its blocks.

    No default is an instance of a class of this package: `torch.compile` would break the graph at every block.
    """

    mask: Mask
    bias: Tensor | None = None
    rotary: tuple[Tensor, Tensor] | None = None
    memory: Tensor | None = None
    memory_mask: Mask | None = None
    slots: Slots | None = None
    grid: Grid | None = None
    tap: Tap | None = None


class Block(nn.Module):
    """Transformer block: self-attention, cross-attention (decoder with a memory only) and feed-forward (optional)."""

    def __init__(
        self,
        d_model: int,
        self_attn: MultiHeadAttention,
        cross_attn: MultiHeadAttention | None,
        ff: FeedForward | None,
        norm: NormFactory,
        connect: Connect,
        norm_outputs: bool,
        dropout: float,
    ) -> None:
        super().__init__()

        def norm_for(present: bool) -> nn.Module | None:
            return norm(d_model) if present else None

        self.self_attn_norm = norm(d_model)
        self.self_attn = self_attn
        self.self_attn_out_norm = norm_for(norm_outputs)
        self.cross_attn_norm = norm_for(cross_attn is not None)
        self.cross_attn = cross_attn
        self.cross_attn_out_norm = norm_for(cross_attn is not None and norm_outputs)
        self.ff_norm = norm_for(ff is not None)
        self.ff = ff
        self.ff_out_norm = norm_for(ff is not None and norm_outputs)
        self.connect = connect
        self.residual_dropout = dropout

    def forward(
        self,
        x: Tensor,
        inputs: BlockInputs,
        cache: LayerCache | None = None,
        memory_kv: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Apply the block to `x` (B, T, D); return (B, T, D). `cache` and `memory_kv` are those of the block."""
        tap = inputs.tap

        def look_around(h: Tensor) -> Tensor:
            return self.self_attn(
                h,
                mask=inputs.mask,
                bias=inputs.bias,
                rotary=inputs.rotary,
                cache=cache,
                slots=inputs.slots,
                grid=inputs.grid,
                tap=scoped(tap, "self_attn"),
            )

        def look_at_memory(h: Tensor) -> Tensor:
            assert self.cross_attn is not None
            return self.cross_attn(
                h,
                inputs.memory,
                mask=inputs.memory_mask,
                memory_kv=memory_kv,
                grid=inputs.grid,
                tap=scoped(tap, "cross_attn"),
            )

        x = self.connect(x, look_around, self.self_attn_norm, self.self_attn_out_norm, self.dropout)
        if self.cross_attn_norm is not None:
            x = self.connect(x, look_at_memory, self.cross_attn_norm, self.cross_attn_out_norm, self.dropout)
        if self.ff is not None and self.ff_norm is not None:
            x = self.connect(x, self.ff, self.ff_norm, self.ff_out_norm, self.dropout)
        return x if tap is None else tap("residual", x)

    def dropout(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.residual_dropout, self.training) if self.residual_dropout else x
