"""Recurrent encoder-decoder, with the same interface as the Transformer."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.config.recurrent import RecurrentConfig
from glassformer.models.heads import TokenLogits
from glassformer.models.recurrent_stacks import Bridge, Encoding, RecurrentDecoder, RecurrentEncoder, RecurrentState
from glassformer.nn.attention import Probe, Tap, scoped


class RecurrentModel(nn.Module):
    """Recurrent encoder-decoder: an encoder reads the source, a bridge maps its last state, a decoder writes a target.

    The models of Sutskever (2014), Cho (2014), Bahdanau (2015) and Luong (2015) are configurations of it. Without a
    `bridge`, the encoder's last state is the decoder's first state (Sutskever). `forward` is `head(hidden(…))`.
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

    def forward(
        self,
        token_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        source_ids: Tensor,
        source_attention_mask: Tensor | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """Return logits (B, T, V) of `token_ids` (B, T) and `source_ids` (B, S); masks are bool, True = a real token.

        Padding may be anywhere in a row. A tap receives "encoder.embeddings", "encoder.memory" (read only by attention)
        and "decoder.embeddings". At each step, with T = 1, it receives "decoder.hidden" and
        "decoder.cross_attn.scores", ".weights" and ".context", with source positions in the order of the source.
        """
        hidden = self.hidden(
            token_ids, attention_mask, source_ids=source_ids, source_attention_mask=source_attention_mask, tap=tap
        )
        return self.head(hidden, attention_mask)

    def hidden(
        self,
        token_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        source_ids: Tensor,
        source_attention_mask: Tensor | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """Return the input of the head, (B, T, d_readout): the decoder's state, Luong's h̃ or the maxout layer."""
        encoding = self.encode(source_ids, source_attention_mask, tap=tap)
        state = self.first_state(encoding, source_attention_mask)
        return self.decoder(token_ids, state, attention_mask, scoped(tap, "decoder"))[0]

    def head(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map hidden states to logits; the mask is not used."""
        return self.output(F.dropout(hidden, self.config.output_dropout, self.training))

    def encode(
        self, source_ids: Tensor, source_attention_mask: Tensor | None = None, *, tap: Tap | None = None
    ) -> Encoding:
        """Encode a source: its memory (B, S, C) and its last state."""
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
        """Read as `step` does; also return the weights (B, T, S) to the source; None for a model without attention."""
        probe = Probe("decoder.cross_attn.weights", [])
        logits, state = self.step(token_ids, state, attention_mask, probe)
        return logits, state, torch.cat(probe.found, dim=2)[:, 0] if probe.found else None

    def read_at(
        self, token_ids: Tensor, state: RecurrentState, attention_mask: Tensor | None, at: Tensor
    ) -> tuple[Tensor, RecurrentState]:
        """Read as `step` does; return the logits (B, V) of one token per row, number `at` (B,), and the new state."""
        hidden, state = self.decoder(token_ids, state, attention_mask)
        return self.head(hidden[torch.arange(len(at), device=at.device), at]), state

    def first_state(self, encoding: Encoding, mask: Tensor | None) -> RecurrentState:
        """Return the decoder's state before the first token, for an encoded source and its `mask` (B, S)."""
        first = encoding.last if self.bridge is None else self.bridge(encoding.last)
        return self.decoder.start(encoding, first, mask)

    def n_parameters(self) -> int:
        """Return the number of trained parameters; a tied table counts once."""
        return sum(p.numel() for p in self.parameters())
