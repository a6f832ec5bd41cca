"""What a recurrent encoder-decoder can be: the axes of `RecurrentConfig`, the Transformer's ancestors.

Sutskever (2014) is no attention, Bahdanau (2015) additive attention before the decoder's step, Luong (2015)
multiplicative attention after it: three settings of one model.
"""

from typing import ClassVar, Literal

from glassformer.config.schema import at_most, between, checked, setting
from glassformer.config.transformer import (
    LENGTH,
    LENGTH_OR_0,
    MAX_LAYERS,
    MAX_WIDTH,
    VOCAB_OR_0,
    WIDTH,
    TransformerConfig,
    require_special_ids,
)
from glassformer.errors import UserError

Score = Literal["additive", "dot", "general", "scaled_dot"]
"""vᵀtanh(W₁h + W₂s) · hᵀs · hᵀW s · (W₁h)ᵀ(W₂s) / √d_attention, over the values W₃s."""


@checked
class NoAttention:
    """The decoder knows the source by the encoder's last state alone (Sutskever 2014)."""

    kind: ClassVar[str] = "none"
    context_every_step: bool = setting(False, "the last state also joins the input of every step (Cho 2014)")
    deep_output: bool = setting(False, "logits are read off state, context and last token through a maxout layer")


@checked
class AttendBefore:
    """The former state looks at the source, and what it sees is an input of the step (Bahdanau 2015)."""

    kind: ClassVar[str] = "before"
    score: Score = setting("additive", "how a state is compared with a source position")
    d_attention: int = setting(
        0, "width of the projected states; 0 = d_decoder; dot and general have none", between(0, MAX_WIDTH)
    )
    deep_output: bool = setting(False, "logits are read off state, context and last token through a maxout layer")


@checked
class AttendAfter:
    """The new state looks at the source after the step; both make h̃ = tanh(W[c; h]), which is read (Luong 2015)."""

    kind: ClassVar[str] = "after"
    score: Score = setting("general", "how a state is compared with a source position; additive = Luong's concat")
    d_attention: int = setting(
        0, "width of the projected states; 0 = d_decoder; dot and general have none", between(0, MAX_WIDTH)
    )
    input_feeding: bool = setting(True, "h̃ joins the input of the next step")


@checked
class RecurrentConfig:
    """Every axis of a recurrent encoder-decoder."""

    kind: ClassVar[str] = "recurrent"
    section: ClassVar[str] = "model."
    cell: Literal["rnn", "gru", "lstm"] = setting("lstm", "tanh (Elman 1990), Cho (2014), or Hochreiter (1997)")
    n_layers: int = setting(1, "recurrent layers of the encoder, and of the decoder", "≥ 1", at_most(MAX_LAYERS))
    bidirectional: bool = setting(True, "the encoder reads the source both ways")
    reverse_source: bool = setting(False, "the encoder reads the source from its end (Sutskever 2014, section 3.3)")
    d_embedding: int = setting(256, "width of the token tables", *WIDTH)
    d_encoder: int = setting(256, "width of the encoder's state, in each direction", *WIDTH)
    d_decoder: int = setting(256, "width of the decoder's state", *WIDTH)
    attention: NoAttention | AttendBefore | AttendAfter = setting(AttendBefore(), "how the decoder sees the source")
    vocab_size: int = setting(0, "size of the (target) vocabulary; 0 = the tokenizer's", *VOCAB_OR_0)
    source_vocab_size: int = setting(0, "size of the source vocabulary; 0 = one joint vocabulary", *VOCAB_OR_0)
    max_len: int = setting(256, "longest target sequence, in tokens", *LENGTH)
    source_max_len: int = setting(0, "longest source sequence, in tokens; 0 = max_len", *LENGTH_OR_0)
    share_embeddings: bool = setting(False, "encoder and decoder read one table")
    tie_output: bool = setting(False, "the head reuses the decoder's table")
    embedding_dropout: float = setting(0.0, "dropout of the token embeddings", "[0, 1)")
    layer_dropout: float = setting(0.0, "dropout between recurrent layers", "[0, 1)")
    output_dropout: float = setting(0.0, "dropout of what the head reads", "[0, 1)")
    init_range: float = setting(
        0.0, "weights uniform in ± this (Sutskever: 0.08); 0 = Xavier, recurrent ones orthogonal", "≥ 0"
    )
    pad_id: int | None = setting(None, "id of the padding token")
    bos_id: int | None = setting(None, "id of the token that begins a sequence")
    eos_id: int | None = setting(None, "id of the token that ends a sequence")
    unk_id: int | None = setting(None, "id of the token for unknown characters")
    mask_id: int | None = setting(None, "id of the mask token")
    decoder_start_id: int | None = setting(None, "id that the decoder starts from")

    def __post_init__(self) -> None:
        """Raises `UserError` for numbers that cannot make a model."""
        require_special_ids(self, self.vocab_size)
        if self.source_vocab_size and self.share_embeddings:
            raise UserError("model.share_embeddings needs one joint vocabulary: leave source_vocab_size at 0")
        if not isinstance(self.attention, NoAttention):
            self._check_attention(self.attention)
        if self.tie_output and self.d_readout != self.d_embedding:
            raise UserError(
                f"model.tie_output needs a readout as wide as the table: d_embedding is {self.d_embedding} and what "
                f"the head reads {self.d_readout} wide"
            )

    def _check_attention(self, attention: AttendBefore | AttendAfter) -> None:
        if attention.score in ("dot", "general") and attention.d_attention:
            raise UserError(f"model.attention.score {attention.score} has no d_attention: leave it at 0")
        if attention.score == "dot" and self.d_memory != self.d_decoder:
            raise UserError(
                f"model.attention.score dot compares states of one width: d_decoder is {self.d_decoder} and the "
                f"encoder's states are {self.d_memory} wide"
            )

    @property
    def is_encoder_decoder(self) -> bool:
        """Always."""
        return True

    @property
    def encoder_vocab_size(self) -> int:
        """Size of the vocabulary that the encoder reads."""
        return self.source_vocab_size or self.vocab_size

    @property
    def encoder_max_len(self) -> int:
        """Longest sequence that the encoder reads, in tokens."""
        return self.source_max_len or self.max_len

    @property
    def d_memory(self) -> int:
        """Width of what the encoder says of a position: both directions side by side."""
        return self.d_encoder * (2 if self.bidirectional else 1)

    @property
    def d_readout(self) -> int:
        """Width of what the head reads: the maxout layer is as wide as the table, all else as the decoder."""
        return self.d_embedding if getattr(self.attention, "deep_output", False) else self.d_decoder


ModelConfig = TransformerConfig | RecurrentConfig
