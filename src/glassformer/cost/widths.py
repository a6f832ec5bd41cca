"""Widths that FLOPs and activations depend on, where 0 in a setting means a default."""

from dataclasses import dataclass

from glassformer.config import transformer as c
from glassformer.config.recurrent import AttendAfter, AttendBefore, NoAttention, RecurrentConfig


@dataclass(frozen=True)
class StackShape:
    """An encoder or a decoder, as a part of its model."""

    stack: c.Stack
    is_decoder: bool
    has_memory: bool
    """True if its blocks attend to the encoder's output."""
    n_positions: int
    reads_source: bool = False
    """True for the encoder of an encoder-decoder."""


def stack_shapes(config: c.TransformerConfig) -> list[StackShape]:
    """Return the stacks of a configuration, the encoder first.

    >>> [side.has_memory for side in stack_shapes(c.TransformerConfig(encoder=c.Stack(), decoder=c.Stack()))]
    [False, True]
    """
    shapes = []
    if config.encoder is not None:
        shapes.append(StackShape(config.encoder, False, False, config.encoder_max_len, config.is_encoder_decoder))
    if config.decoder is not None:
        shapes.append(StackShape(config.decoder, True, bool(shapes), config.max_len))
    return shapes


@dataclass(frozen=True)
class RecurrentWidths:
    """Widths of a recurrent encoder-decoder."""

    n_directions: int
    d_attention: int
    """Width in which attention compares a decoder state and an encoder state; 0 without attention."""
    d_context: int
    """Width of the context vector, the summary of the source."""
    d_fed: int
    """Width of the vector that a decoder step reads in addition to the token embedding."""
    has_bridge: bool


def recurrent_widths(config: RecurrentConfig) -> RecurrentWidths:
    """Return the widths that `build_model` derives from a recurrent configuration."""
    attention, d_memory = config.attention, config.d_memory
    d_attention, d_context = 0, d_memory
    if not isinstance(attention, NoAttention):
        d_attention = attention.d_attention or config.d_decoder
        d_context = d_attention if attention.score == "scaled_dot" else d_memory
    match attention:
        case NoAttention():
            d_fed = d_memory * attention.context_every_step
        case AttendBefore():
            d_fed = d_context
        case AttendAfter():
            d_fed = config.d_decoder * attention.input_feeding
    return RecurrentWidths(
        n_directions=1 + config.bidirectional,
        d_attention=d_attention,
        d_context=d_context,
        d_fed=d_fed,
        has_bridge=config.bidirectional or config.d_encoder != config.d_decoder,
    )


def cell_widths(d_input: int, d_state: int, n_layers: int, n_directions: int = 1) -> list[tuple[int, int]]:
    """Return the (input, state) widths of every recurrent layer and direction, bottom first.

    >>> cell_widths(6, 5, 2, n_directions=2)
    [(6, 5), (6, 5), (10, 5), (10, 5)]
    """
    inputs = [d_input] + [d_state * n_directions] * (n_layers - 1)
    return [(width, d_state) for width in inputs for _ in range(n_directions)]
