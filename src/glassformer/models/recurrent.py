"""Recurrent encoder-decoder, with the same interface as the Transformer: the network, its construction, its weights."""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.common.arguments import takes_other_names
from glassformer.config.recurrent import AttendBefore, NoAttention, RecurrentConfig
from glassformer.models import recurrent_stacks as r
from glassformer.models.heads import NetworkBase, TokenLogits, vocabulary_projection
from glassformer.models.recurrent_stacks import Bridge, Encoding, RecurrentDecoder, RecurrentEncoder, RecurrentState
from glassformer.nn.attention import Probe, Tap, scoped
from glassformer.nn.boundary import is_ids, real_tokens, require_rows
from glassformer.nn.recurrence import CellStep, SingleHeadAttention, gru_step, lstm_step, rnn_step


class RecurrentModel(NetworkBase):
    """Recurrent encoder-decoder: an encoder reads the source, a bridge maps its last state, and a decoder writes.

    The models of Sutskever (2014), Cho (2014), Bahdanau (2015) and Luong (2015) are configurations of this class.
    Without a `bridge`, the encoder's last state is the decoder's first state (Sutskever). `forward` is
    `head(hidden(…))`.
    """

    def __init__(
        self,
        config: RecurrentConfig,
        encoder: RecurrentEncoder,
        bridge: Bridge | None,
        decoder: RecurrentDecoder,
        output: TokenLogits,
    ) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        self.bridge = bridge
        self.decoder = decoder
        self.output = output

    @takes_other_names
    def forward(
        self,
        token_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        source_ids: Tensor | None = None,
        source_attention_mask: Tensor | None = None,
        target_attention_mask: Tensor | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """Return logits (B, T, V) of `token_ids` (B, T) and `source_ids` (B, S); masks have True or 1 at a real token.

        Padding may be anywhere in a row. A tap receives "encoder.embeddings", "encoder.memory" (read only by attention)
        and "decoder.embeddings". At each step, with T = 1, it receives "decoder.hidden" and
        "decoder.cross_attn.scores", ".weights" and ".context", with source positions in the order of the source.
        """
        if source_ids is None and is_ids(attention_mask, token_ids):  # the order of `torch.nn.Transformer`
            token_ids, source_ids, attention_mask = cast(Any, attention_mask), token_ids, target_attention_mask
        if source_ids is None:
            raise ValueError("a model with an encoder and a decoder needs source_ids: model(target_ids, source_ids=…)")
        source = {"source_ids": source_ids, "source_attention_mask": source_attention_mask}
        return self.head(self.hidden(token_ids, attention_mask, tap=tap, **source), attention_mask)

    def hidden(
        self,
        token_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        source_ids: Any,
        source_attention_mask: Tensor | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """Return the input of the head, (B, T, d_readout): the decoder's state, Luong's h̃ or the maxout layer."""
        require_rows("token_ids", token_ids, self.decoder.tokens)
        require_rows("source_ids", source_ids, self.encoder.tokens)
        attention_mask = real_tokens("attention_mask", attention_mask, token_ids, is_causal=True)
        source_attention_mask = real_tokens("source_attention_mask", source_attention_mask, source_ids)
        encoding = self.encode(source_ids, source_attention_mask, tap=tap)
        state = self.first_state(encoding, source_attention_mask)
        return self.decoder(token_ids, state, attention_mask, scoped(tap, "decoder"))[0]

    def head(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map hidden states to logits; the mask is not used."""
        return self.output(F.dropout(hidden, self.config.output_dropout, self.training))

    def encode(
        self, source_ids: Tensor, source_attention_mask: Tensor | None = None, *, tap: Tap | None = None
    ) -> Encoding:
        """Encode a source: return its memory (B, S, C) and the last state of the encoder."""
        return self.encoder(source_ids, source_attention_mask, scoped(tap, "encoder"))

    def start(
        self, n_rows: int, max_len: int, source_ids: Tensor | None = None, source_attention_mask: Tensor | None = None
    ) -> RecurrentState:
        """Encode the source and return the state before the first token of `n_rows` rows; `max_len` is not used."""
        if source_ids is None:
            raise ValueError("a model with an encoder and a decoder needs source_ids")
        if len(source_ids) != n_rows:
            raise ValueError(f"source_ids: expected {n_rows} rows, got {len(source_ids)}")
        return self.first_state(self.encode(source_ids, source_attention_mask), source_attention_mask)

    def step(
        self, token_ids: Tensor, state: RecurrentState, attention_mask: Tensor | None = None, tap: Tap | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """Return logits (B, T, V) for T more tokens per row (prefill, or T = 1) and the new state."""
        hidden, state = self.decoder(token_ids, state, attention_mask, scoped(tap, "decoder"))
        return self.head(hidden, attention_mask), state

    def step_attending(
        self, token_ids: Tensor, state: RecurrentState, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, RecurrentState, Tensor | None]:
        """Return the results of `step`, and the attention weights (B, T, S) to the source; None without attention."""
        probe = Probe("decoder.cross_attn.weights", [])
        logits, state = self.step(token_ids, state, attention_mask, probe)
        return logits, state, torch.cat(probe.found, dim=2)[:, 0] if probe.found else None

    def read_at(
        self, token_ids: Tensor, state: RecurrentState, attention_mask: Tensor | None, at: Tensor
    ) -> tuple[Tensor, RecurrentState]:
        """Read tokens as `step`; return the logits (B, V) of token number `at[i]` of each row i, and the new state."""
        hidden, state = self.decoder(token_ids, state, attention_mask)
        return self.head(hidden[torch.arange(len(at), device=at.device), at]), state

    def first_state(self, encoding: Encoding, mask: Tensor | None) -> RecurrentState:
        """Return the decoder's state before the first token, for an encoded source and its `mask` (B, S)."""
        first = encoding.last if self.bridge is None else self.bridge(encoding.last)
        return self.decoder.start(encoding, first, mask)


CELLS: dict[str, tuple[type[nn.RNNBase], CellStep]] = {
    "rnn": (nn.RNN, rnn_step),
    "gru": (nn.GRU, gru_step),
    "lstm": (nn.LSTM, lstm_step),
}
"""PyTorch module of each recurrent cell, and the function that computes one step of the cell."""


def build_recurrent(config: RecurrentConfig) -> RecurrentModel:
    """Build a recurrent model whose weights have the initial values of PyTorch's modules."""
    source_table = nn.Embedding(config.encoder_vocab_size, config.d_embedding)
    target_table = source_table if config.share_embeddings else nn.Embedding(config.vocab_size, config.d_embedding)
    encoder = r.RecurrentEncoder(
        source_table,
        _cells(config, config.d_embedding, config.d_encoder, config.bidirectional),
        CELLS[config.cell][1],
        reverse=config.reverse_source,
        embedding_dropout=config.embedding_dropout,
    )
    bridge = None
    if config.bidirectional or config.d_encoder != config.d_decoder:
        bridge = r.Bridge(config.d_memory, config.d_decoder, config.n_layers, has_cell=config.cell == "lstm")
    projection = vocabulary_projection(target_table, config.d_readout, tied=config.tie_output)
    output = TokenLogits(config.d_readout, projection)
    return RecurrentModel(config, encoder, bridge, _recurrent_decoder(config, target_table), output)


def _recurrent_decoder(config: RecurrentConfig, table: nn.Embedding) -> r.RecurrentDecoder:
    def parts(d_fed: int) -> r.DecoderParts:
        """Build the parts; `d_fed` is the width of the vector that is concatenated with the token at each step."""
        cells = _cells(config, config.d_embedding + d_fed, config.d_decoder, bidirectional=False)
        return r.DecoderParts(table, cells, CELLS[config.cell][1], config.embedding_dropout)

    def maxout(d_context: int) -> r.MaxoutReadout | None:
        deep_output = getattr(config.attention, "deep_output", False)
        return r.MaxoutReadout(config.d_decoder, config.d_embedding, d_context) if deep_output else None

    attention = config.attention
    if isinstance(attention, NoAttention):
        every_step = attention.context_every_step
        d_fed = config.d_memory if every_step else 0
        return r.PlainDecoder(parts(d_fed), maxout(config.d_memory), context_every_step=every_step)
    cross_attn = SingleHeadAttention(config.d_decoder, config.d_memory, attention.d_attention or None, attention.score)
    if isinstance(attention, AttendBefore):
        return r.AttendBeforeDecoder(parts(cross_attn.d_context), maxout(cross_attn.d_context), cross_attn)
    d_fed = config.d_decoder if attention.input_feeding else 0
    return r.AttendAfterDecoder(parts(d_fed), cross_attn, input_feeding=attention.input_feeding)


def _cells(config: RecurrentConfig, d_input: int, d_state: int, bidirectional: bool) -> nn.RNNBase:
    dropout = config.layer_dropout if config.n_layers > 1 else 0.0  # dropout between layers
    module: Any = CELLS[config.cell][0]
    return module(d_input, d_state, config.n_layers, batch_first=True, dropout=dropout, bidirectional=bidirectional)


@torch.no_grad()
def init_recurrent_weights(model: RecurrentModel, config: RecurrentConfig) -> None:
    """Draw every parameter uniformly in ± `init_range`; if `init_range` is 0, draw it by the kind of the parameter.

    Tables: N(0, 1/d_embedding). Matrices: Xavier (Glorot 2010), but state-to-state matrices orthogonal (Saxe 2014),
    gate by gate. Biases: 0, but 1 for an LSTM's forget gate, so that it keeps its state at first (Jozefowicz 2015).
    """
    if config.init_range:
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -config.init_range, config.init_range)
        return
    tables = {m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=1 / math.sqrt(config.d_embedding))
        elif isinstance(module, nn.Linear):
            if module.weight not in tables:
                nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.RNNBase):
            _draw_cells(module)
        elif isinstance(module, SingleHeadAttention) and module.vector is not None:
            nn.init.xavier_uniform_(module.vector[None])


def _draw_cells(module: nn.RNNBase) -> None:
    width = module.hidden_size
    for from_input, from_state, input_bias, state_bias in module.all_weights:
        for gate in from_input.split(width):
            nn.init.xavier_uniform_(gate)
        for gate in from_state.split(width):
            nn.init.orthogonal_(gate)
        input_bias.zero_()
        state_bias.zero_()
        if isinstance(module, nn.LSTM):
            input_bias[width : 2 * width] = 1.0  # gates i, f, g, o; the two biases are added
