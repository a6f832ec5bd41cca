"""The widths that parameters, FLOPs and activations are all made of, with the zeros of a configuration filled in."""

from dataclasses import dataclass

from glassformer.config.recurrent import AttendAfter, AttendBefore, NoAttention, RecurrentConfig
from glassformer.config.transformer import Stack, TransformerConfig

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
"""Matrices of a cell that stand one above another."""


@dataclass(frozen=True)
class StackShape:
    """An encoder or a decoder as a part of its model."""

    stack: Stack
    is_decoder: bool
    has_memory: bool
    """Its blocks read the encoder."""
    vocab_size: int
    n_positions: int


def stack_shapes(config: TransformerConfig) -> list[StackShape]:
    """The stacks of a configuration, the encoder first.

    >>> [side.has_memory for side in stack_shapes(TransformerConfig(encoder=Stack(), decoder=Stack()))]
    [False, True]
    """
    found = []
    if config.encoder is not None:
        found.append(StackShape(config.encoder, False, False, config.encoder_vocab_size, config.encoder_max_len))
    if config.decoder is not None:
        found.append(StackShape(config.decoder, True, bool(found), config.vocab_size, config.max_len))
    return found


@dataclass(frozen=True)
class RecurrentWidths:
    """Of a recurrent encoder-decoder."""

    n_directions: int
    d_memory: int
    d_attention: int
    """Width in which a state and a memory are compared; 0 without attention."""
    d_context: int
    """Width of what is seen of the source."""
    d_fed: int
    """Width of what joins the token in the input of a decoder's step."""
    has_bridge: bool


def recurrent_widths(config: RecurrentConfig) -> RecurrentWidths:
    """What `build_model` works out from a recurrent configuration."""
    attention, d_memory = config.attention, config.d_memory
    d_attention, d_context = 0, d_memory
    if not isinstance(attention, NoAttention):
        d_attention = attention.d_attention or config.d_decoder
        d_context = d_attention if attention.score == "scaled_dot" else d_memory
    match attention:
        case NoAttention():
            d_fed = d_memory if attention.context_every_step else 0
        case AttendBefore():
            d_fed = d_context
        case AttendAfter():
            d_fed = config.d_decoder if attention.input_feeding else 0
    return RecurrentWidths(
        n_directions=2 if config.bidirectional else 1,
        d_memory=d_memory,
        d_attention=d_attention,
        d_context=d_context,
        d_fed=d_fed,
        has_bridge=config.bidirectional or config.d_encoder != config.d_decoder,
    )


def cell_widths(d_input: int, d_state: int, n_layers: int, n_directions: int = 1) -> list[tuple[int, int]]:
    """(input, state) of every recurrent layer and direction, bottom first.

    >>> cell_widths(6, 5, 2, n_directions=2)
    [(6, 5), (6, 5), (10, 5), (10, 5)]
    """
    inputs = [d_input] + [d_state * n_directions] * (n_layers - 1)
    return [(width, d_state) for width in inputs for _ in range(n_directions)]
