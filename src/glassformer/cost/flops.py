"""FLOPs of matrix products: the product of (m, k) and (k, n) counts as 2·m·n·k operations.

Norms, activations, softmax and dropout are not counted, as is usual in the literature. Scores and weighted values are
counted over the whole T × S, also with a causal mask, because the operations that a mask saves depend on the kernel.

Published totals often use other rules. GPT-3's 3.14e23 (Brown 2020, table D.1) is 6 × parameters × tokens, with the
position table and without attention. The 3.3e18 of Vaswani (2017, table 2) is hours × GPUs × 9.5 TFLOP/s, a sustained
rate, so it includes idle time. It is more than three times 6 × parameters × tokens.
"""

import functools
from dataclasses import dataclass

import torch

from glassformer.config import transformer as c
from glassformer.config.recurrent import AttendAfter, AttendBefore, ModelConfig, NoAttention, RecurrentConfig
from glassformer.models.build import build_attention
from glassformer.nn.attention import AttentionCost

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
"""Number of gate matrices that a cell stacks into one weight."""


@dataclass(frozen=True)
class StackShape:
    """Configuration of an encoder or a decoder, with the facts that depend on the rest of the model."""

    stack: c.Stack
    is_decoder: bool
    has_memory: bool
    """True if the blocks attend to the encoder's output."""
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


@dataclass(frozen=True)
class Shape:
    """Shape of a micro-batch without padding."""

    n_rows: int
    n_tokens: int
    """T, tokens per row that the last stack gives to the head."""
    n_source: int = 0
    """S, source tokens per row of an encoder-decoder; else 0."""
    n_scored: int = 0
    """Tokens per row that get logits; 0 = all."""

    @property
    def n_read(self) -> int:
        """Tokens per row that the head reads."""
        return self.n_scored or self.n_tokens

    def n_read_by(self, side: StackShape) -> int:
        """Return the number of tokens per row that a stack reads."""
        if side.reads_source:
            return self.n_source
        return self.n_tokens


@dataclass(frozen=True)
class Flops:
    """FLOPs of one forward pass, for each part of the model."""

    layers: int
    """FLOPs of products with weight matrices, from the embeddings to the last block."""
    attention: int
    """FLOPs of the scores, and of the weights times the values."""
    head: int

    @property
    def total(self) -> int:
        return self.layers + self.attention + self.head


def forward_flops(config: ModelConfig, shape: Shape) -> Flops:
    """Compute the FLOPs of one forward pass over a micro-batch.

    >>> from glassformer.config.presets import preset
    >>> flops = forward_flops(preset("gpt2"), Shape(n_rows=1, n_tokens=1024))
    >>> flops.layers // 1024 == 2 * 12 * 12 * 768**2, flops.attention // 1024 == 4 * 12 * 1024 * 768
    (True, True)
    """
    return _recurrent(config, shape) if isinstance(config, RecurrentConfig) else _transformer(config, shape)


def training_flops(config: ModelConfig, shape: Shape, recomputed: int = 0) -> int:
    """Compute the FLOPs of a forward and backward pass over a micro-batch: 3 × the FLOPs of the forward pass.

    The backward pass of C = A·B has two products. Activation checkpointing adds a second forward pass of every
    `recomputed`-th block.
    """
    forward = forward_flops(config, shape)
    if not recomputed or isinstance(config, RecurrentConfig):
        return 3 * forward.total
    n_layers = [stack.n_layers for stack in config.stacks.values()]
    n_recomputed = sum(-(-n // recomputed) for n in n_layers)
    return 3 * forward.total + (forward.layers + forward.attention) * n_recomputed // max(1, sum(n_layers))


def _transformer(config: c.TransformerConfig, shape: Shape) -> Flops:
    layers = attention = 0
    e, d = config.table_width, config.d_model
    for side in stack_shapes(config):
        stack = side.stack
        n_own = shape.n_read_by(side)
        costs = [attention_cost(config, stack, n_own, n_own)]
        if side.has_memory:
            costs.append(attention_cost(config, stack, n_own, shape.n_source, is_self=False))
        ff = n_own * _ff_matrices(config, stack)
        layers += stack.n_layers * (ff + sum(cost.products for cost in costs))
        layers += n_own * e * d * (e != d)
        attention += stack.n_layers * sum(cost.scores for cost in costs)
    n_read = 1 if config.reads_whole_sequence else shape.n_read
    return _doubled(shape.n_rows, layers, attention, n_read * _head_matrices(config))


def _ff_matrices(config: c.TransformerConfig, stack: c.Stack) -> int:
    """Count the weights that a token uses in a feed-forward layer: gate, up, down (of active experts), and router."""
    of_one = (2 + config.gated_ff) * config.d_model * stack.d_ff
    if config.experts is None:
        return of_one
    return config.experts.n_active * of_one + config.d_model * config.experts.n_experts


def _head_matrices(config: c.TransformerConfig) -> int:
    """Count the matrix weights that the head applies to a hidden state, a tied table included."""
    d, e, head = config.d_model, config.table_width, config.head
    if isinstance(head, c.PositionHead):
        return d * head.n_labels + d * d * head.transform
    if isinstance(head, c.SequenceHead):
        return d * head.n_labels + d * d * (head.pooler != "none")
    if isinstance(head, c.VectorHead):
        return d * d * (head.pooler in ("tanh", "relu"))
    return e * config.vocab_size + d * e * (head.transform or e != d)


@functools.lru_cache(maxsize=64)
def attention_cost(
    config: c.TransformerConfig, stack: c.Stack, n_queries: int, n_keys: int, *, is_self: bool = True
) -> AttentionCost:
    """Return the cost of one attention layer of a stack over one row, as its module computes it."""
    with torch.device("meta"):
        return build_attention(config, stack, is_self=is_self).cost(n_queries, n_keys)


def _recurrent(config: RecurrentConfig, shape: Shape) -> Flops:
    e, d, w = config.d_embedding, config.d_decoder, recurrent_widths(config)
    attention, gates = config.attention, GATES[config.cell]
    n, s = shape.n_tokens, shape.n_source

    def cells(d_input: int, d_state: int, n_directions: int) -> int:
        """Return the multiply-adds of one step through all layers."""
        layers = cell_widths(d_input, d_state, config.n_layers, n_directions)
        return sum(gates * width * (of_input + width) for of_input, width in layers)

    layers = s * cells(e, config.d_encoder, w.n_directions) + n * cells(e + w.d_fed, d, 1)
    layers += config.n_layers * (1 + (config.cell == "lstm")) * w.has_bridge * config.d_memory * d
    looks, n_contexts = 0, 1
    if not isinstance(attention, NoAttention):
        of_query, of_source = _single_head_matrices(config, attention)
        layers += n * of_query + s * of_source
        looks, n_contexts = n * s * (w.d_attention + w.d_context), n
    if isinstance(attention, AttendAfter):
        layers += n * (w.d_context + d) * d
    elif attention.deep_output:
        layers += 2 * e * (n * (d + e) + n_contexts * w.d_context)
    return _doubled(shape.n_rows, layers, looks, n * config.d_readout * config.vocab_size)


def _single_head_matrices(config: RecurrentConfig, attention: AttendBefore | AttendAfter) -> tuple[int, int]:
    """Count the elements of the attention matrices that a recurrent model uses per query, and per source position."""
    w, d, m = recurrent_widths(config), config.d_decoder, config.d_memory
    of_query = {"additive": d * w.d_attention, "scaled_dot": d * w.d_attention}
    of_source = {"additive": m * w.d_attention, "scaled_dot": 2 * m * w.d_attention, "general": m * d}
    return of_query.get(attention.score, 0), of_source.get(attention.score, 0)


def _doubled(n_rows: int, layers: int, attention: int, head: int) -> Flops:
    """Convert multiply-adds per row to FLOPs of all rows; a multiply-add is 2 FLOPs."""
    return Flops(2 * n_rows * layers, 2 * n_rows * attention, 2 * n_rows * head)
