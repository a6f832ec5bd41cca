"""Parameter counts in closed form; tests compare them with the models that `models/build.py` builds.

The first part resolves the widths that parameters, FLOPs and activations depend on (0 in a setting means a default).
"""

from dataclasses import dataclass

from glassformer.config import transformer as c
from glassformer.config.recurrent import AttendAfter, AttendBefore, ModelConfig, NoAttention, RecurrentConfig

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
"""Number of gate matrices that a cell stacks into one weight."""


@dataclass(frozen=True)
class StackShape:
    """An encoder or a decoder, as a part of its model."""

    stack: c.Stack
    is_decoder: bool
    has_memory: bool
    """True if its blocks attend to the encoder's output."""
    vocab_size: int
    n_positions: int


def stack_shapes(config: c.TransformerConfig) -> list[StackShape]:
    """Return the stacks of a configuration, the encoder first.

    >>> [side.has_memory for side in stack_shapes(c.TransformerConfig(encoder=c.Stack(), decoder=c.Stack()))]
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
            d_fed = d_memory if attention.context_every_step else 0
        case AttendBefore():
            d_fed = d_context
        case AttendAfter():
            d_fed = config.d_decoder if attention.input_feeding else 0
    return RecurrentWidths(
        n_directions=2 if config.bidirectional else 1,
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
class ParameterCounts:
    """Numbers of trained parameters by part; a tied table counts once."""

    embeddings: int
    """Tables of tokens, positions and types, with their norms and projections."""
    layers: int
    """Blocks or recurrent layers, and what they share: final norms, score biases, bridge, attention."""
    head: int
    """Parameters of the head, without a tied table."""
    largest_layer: int
    """Parameters of the largest block; equal to `layers` for a recurrent model, which is not split."""
    matrices: int
    """Weights that Muon updates: matrices of blocks, of recurrent layers and of the bridge."""

    @property
    def total(self) -> int:
        return self.embeddings + self.layers + self.head

    @property
    def outside(self) -> int:
        """Parameters outside of the layers."""
        return self.embeddings + self.head


def parameter_counts(config: ModelConfig) -> ParameterCounts:
    """Count the trained parameters of the model that `build_model` makes from `config`.

    >>> small = c.TransformerConfig(decoder=c.Stack(2, 2, d_ff=32), d_model=8, vocab_size=11, max_len=16)
    >>> counts = parameter_counts(small)
    >>> counts.embeddings, counts.layers, counts.head, counts.total
    (216, 1760, 0, 1976)
    """
    return _recurrent(config) if isinstance(config, RecurrentConfig) else _transformer(config)


def attention_matrices(config: c.TransformerConfig, stack: c.Stack) -> tuple[int, int, int]:
    """Count the weights of W_Q, of W_K and W_V together, and of W_O (0 if there is no W_O)."""
    w, d = config.attention_widths(stack), config.d_model
    return d * w.query, d * (w.key + w.value), d * w.context * config.attn_out_proj


def ff_matrices(config: c.TransformerConfig, stack: c.Stack) -> int:
    """Count the weights of a feed-forward layer: up, down, and the gate if there is one."""
    return (3 if config.gated_ff else 2) * config.d_model * stack.d_ff


def head_matrices(config: c.TransformerConfig) -> int:
    """Count the matrix weights that the head applies to a hidden state, a tied table included."""
    d, e, head = config.d_model, config.table_width, config.head
    if isinstance(head, (c.PositionHead, c.SpanHead)):
        return d * config.n_outputs
    if isinstance(head, c.SequenceHead):
        return d * head.n_labels + (d * d if head.pooler != "none" else 0)
    if isinstance(head, c.VectorHead):
        return d * d if head.pooler in ("tanh", "relu") else 0
    return e * config.vocab_size + (d * e if head.transform or e != d else 0)


def _transformer(config: c.TransformerConfig) -> ParameterCounts:
    e = config.table_width
    embeddings = layers = matrices = largest = 0
    for side in stack_shapes(config):
        in_block, beside = _block(config, side)
        embeddings += 0 if side.has_memory and config.share_embeddings else side.vocab_size * e
        embeddings += _beside_the_table(config, side.n_positions)
        layers += side.stack.n_layers * (in_block + beside) + config.final_norm * _norm(config, config.d_model)
        if isinstance(config.positions, c.RelativePositions):
            layers += config.positions.n_buckets * side.stack.n_heads
        matrices += side.stack.n_layers * in_block
        largest = max(largest, (in_block + beside) * (side.stack.n_layers > 0))
    return ParameterCounts(embeddings, layers, _head(config), largest, matrices)


def _beside_the_table(config: c.TransformerConfig, n_positions: int) -> int:
    """Count the embedding parameters of one stack, without the token table."""
    d, e = config.d_model, config.table_width
    n = config.n_token_types * e + config.embedding_norm * _norm(config, e)
    if isinstance(config.positions, c.LearnedPositions):
        n += (n_positions + config.positions.offset) * e
    return n + (e * d if e != d else 0)


def _block(config: c.TransformerConfig, side: StackShape) -> tuple[int, int]:
    """Count the matrix weights of a block, and its other parameters: biases and norms."""
    d, stack, w = config.d_model, side.stack, config.attention_widths(side.stack)
    n_attentions = 2 if side.has_memory else 1
    n_sublayers = n_attentions + (stack.d_ff > 0)
    matrices = n_attentions * sum(attention_matrices(config, stack)) + ff_matrices(config, stack)
    beside = config.qkv_bias * (w.query + w.key + w.value) + config.qk_norm * 2 * _norm(config, w.d_head)
    beside += config.attn_out_proj * config.attn_out_bias * d
    beside *= n_attentions
    if stack.d_ff and config.ff_bias:
        beside += (2 if config.gated_ff else 1) * stack.d_ff + d
    beside += n_sublayers * (2 if config.norm_order == "sandwich" else 1) * _norm(config, d)
    return matrices, beside


def _norm(config: c.TransformerConfig, width: int) -> int:
    return width * config.norm_weight * (2 if config.norm == "layernorm" and config.norm_bias else 1)


def _head(config: c.TransformerConfig) -> int:
    d, e, head = config.d_model, config.table_width, config.head
    n = head_matrices(config)
    if isinstance(head, (c.PositionHead, c.SpanHead)):
        return n + config.n_outputs
    if isinstance(head, c.SequenceHead):
        return n + head.bias * head.n_labels + (d if head.pooler != "none" else 0)
    if isinstance(head, c.VectorHead):
        return d * d + d if head.pooler != "none" else 0
    n -= config.tie_output * e * config.vocab_size
    n += e + _norm(config, e) if head.transform else 0
    return n + (config.vocab_size if head.bias == "learned" else 0)


def _recurrent(config: RecurrentConfig) -> ParameterCounts:
    e, d, m = config.d_embedding, config.d_decoder, config.d_memory
    w, attention, gates = recurrent_widths(config), config.attention, GATES[config.cell]
    embeddings = config.vocab_size * e
    if not config.share_embeddings:
        embeddings += config.encoder_vocab_size * e
    cells = cell_widths(e, config.d_encoder, config.n_layers, w.n_directions)
    cells += cell_widths(e + w.d_fed, d, config.n_layers)
    n_bridges = config.n_layers * (2 if config.cell == "lstm" else 1) * w.has_bridge
    matrices = sum(gates * width * (d_input + width) for d_input, width in cells) + n_bridges * m * d
    layers = matrices + sum(2 * gates * width for _, width in cells) + n_bridges * d
    if not isinstance(attention, NoAttention):
        layers += sum(single_head_matrices(config, attention))
        layers += w.d_attention if attention.score == "additive" else 0
    if isinstance(attention, AttendAfter):
        layers += (w.d_context + d) * d + d
    elif attention.deep_output:
        layers += 2 * e * (d + e + w.d_context) + 2 * e
    head = 0 if config.tie_output else config.vocab_size * config.d_readout
    return ParameterCounts(embeddings, layers, head, layers, matrices)


def single_head_matrices(config: RecurrentConfig, attention: AttendBefore | AttendAfter) -> tuple[int, int]:
    """Count the attention weights of a recurrent model: those for each query, and those for each source position."""
    w, d, m = recurrent_widths(config), config.d_decoder, config.d_memory
    of_query = {"additive": d * w.d_attention, "scaled_dot": d * w.d_attention}
    of_source = {"additive": m * w.d_attention, "scaled_dot": 2 * m * w.d_attention, "general": m * d}
    return of_query.get(attention.score, 0), of_source.get(attention.score, 0)
