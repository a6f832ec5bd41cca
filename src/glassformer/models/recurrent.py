"""The recurrent encoder-decoder: the Transformer's ancestors, used in the same way."""

from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.config.recurrent import RecurrentConfig
from glassformer.models.heads import TokenLogits
from glassformer.models.recurrent_stacks import Bridge, Encoding, RecurrentDecoder, RecurrentEncoder, RecurrentState
from glassformer.nn.attention import Tap, scoped


class RecurrentModel(nn.Module):
    """An encoder reads the source, a bridge hands its last state over, and a decoder writes the target.

    Sutskever (2014), Cho (2014), Bahdanau (2015) and Luong (2015) are settings of it. Without a `bridge` the last
    state is the decoder's first as it is (Sutskever). `forward` is `head(hidden(…))`.
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
        """`token_ids` (B, T), `source_ids` (B, S), masks bool with True = a real token → logits (B, T, V).

        Padding may stand anywhere. A tap is shown "encoder.embeddings", "encoder.memory" (which attention alone reads)
        and "decoder.embeddings"; and of every step, with T = 1, "decoder.hidden" and "decoder.cross_attn.scores",
        ".weights" and ".context", in the order of the source.
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
        """What the head reads, (B, T, d_readout): the decoder's state, Luong's h̃ or the maxout layer."""
        encoding = self.encode(source_ids, source_attention_mask, tap=tap)
        state = self.first_state(encoding, source_attention_mask)
        return self.decoder(token_ids, state, attention_mask, scoped(tap, "decoder"))[0]

    def head(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Hidden states → logits; the mask is not needed."""
        return self.output(F.dropout(hidden, self.config.output_dropout, self.training))

    def encode(
        self, source_ids: Tensor, source_attention_mask: Tensor | None = None, *, tap: Tap | None = None
    ) -> Encoding:
        """What the encoder says of a source: its memory (B, S, C) and its last state."""
        return self.encoder(source_ids, source_attention_mask, scoped(tap, "encoder"))

    def start(
        self, n_rows: int, max_len: int, source_ids: Tensor | None = None, source_attention_mask: Tensor | None = None
    ) -> RecurrentState:
        """The state before the first token of `n_rows` rows; encodes the source, once. It never fills up."""
        if source_ids is None:
            raise ValueError("a model with an encoder and a decoder needs source_ids")
        if len(source_ids) != n_rows:
            raise ValueError(f"{n_rows} rows, and sources of {len(source_ids)}")
        return self.first_state(self.encode(source_ids, source_attention_mask), source_attention_mask)

    def step(
        self, token_ids: Tensor, state: RecurrentState, attention_mask: Tensor | None = None, tap: Tap | None = None
    ) -> tuple[Tensor, RecurrentState]:
        """Logits (B, T, V) of T more tokens a row (prefill, or T = 1), and the state that holds them."""
        hidden, state = self.decoder(token_ids, state, attention_mask, scoped(tap, "decoder"))
        return self.head(hidden, attention_mask), state

    def first_state(self, encoding: Encoding, mask: Tensor | None) -> RecurrentState:
        """The decoder's state before the first token, of a source and its `mask` (B, S)."""
        first = encoding.last if self.bridge is None else self.bridge(encoding.last)
        return self.decoder.start(encoding, first, mask)

    def n_parameters(self) -> int:
        """Trained numbers; a tied table counts once."""
        return sum(p.numel() for p in self.parameters())
