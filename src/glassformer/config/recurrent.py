"""Settings of a recurrent encoder-decoder (`RecurrentConfig`), the predecessor of the Transformer.

Three settings of one model: no attention (Sutskever 2014), additive attention before the decoder's step (Bahdanau
2015), and multiplicative attention after it (Luong 2015).
"""

from typing import ClassVar, Literal

from glassformer.common.errors import UserError
from glassformer.config import transformer as c
from glassformer.config.schema import at_most, between, checked, setting

Score = Literal["additive", "dot", "general", "scaled_dot"]
"""Score of decoder state h and source state s. additive: vᵀtanh(W₁h + W₂s); dot: hᵀs; general: hᵀWs; scaled_dot:
(W₁h)ᵀ(W₂s) / √d_attention, with the values W₃s."""


D_ATTENTION_DOC = "width of the projected states; 0 = d_decoder; not used by dot and general"


@checked
class NoAttention:
    """No attention: the decoder gets only the encoder's last state (Sutskever 2014)."""

    kind: ClassVar[str] = "none"
    context_every_step: bool = setting(False, "also feed the encoder's last state to every step (Cho 2014)")
    deep_output: bool = setting(False, "compute logits from state, context and last token with a maxout layer")


@checked
class AttendBefore:
    """Attention before the step: the previous state attends, its context is an input (Bahdanau 2015)."""

    kind: ClassVar[str] = "before"
    score: Score = setting("additive", "score function of a decoder state and a source position")
    d_attention: int = setting(0, D_ATTENTION_DOC, between(0, c.MAX_WIDTH))
    deep_output: bool = setting(False, "compute logits from state, context and last token with a maxout layer")


@checked
class AttendAfter:
    """Attention after the step: the new state attends, and the head reads h̃ = tanh(W[c; h]) (Luong 2015)."""

    kind: ClassVar[str] = "after"
    score: Score = setting("general", "score function of decoder state and source position; additive = Luong's concat")
    d_attention: int = setting(0, D_ATTENTION_DOC, between(0, c.MAX_WIDTH))
    input_feeding: bool = setting(True, "also feed h̃ to the next step")


@checked
class RecurrentConfig:
    """Settings of a recurrent encoder-decoder."""

    kind: ClassVar[str] = "recurrent"
    section: ClassVar[str] = "model."
    is_encoder_decoder: ClassVar[bool] = True
    uncompilable: ClassVar[str] = "recurrent modules"
    cell: Literal["rnn", "gru", "lstm"] = setting("lstm", "tanh (Elman 1990), GRU (Cho 2014) or LSTM (Hochreiter 1997)")
    n_layers: int = setting(1, "recurrent layers of the encoder and of the decoder", "≥ 1", at_most(c.MAX_LAYERS))
    bidirectional: bool = setting(True, "the encoder reads the source in both directions")
    reverse_source: bool = setting(False, "the encoder reads the source backwards (Sutskever 2014, section 3.3)")
    d_embedding: int = setting(256, "width of the token embeddings", *c.WIDTH)
    d_encoder: int = setting(256, "width of the encoder's state per direction", *c.WIDTH)
    d_decoder: int = setting(256, "width of the decoder's state", *c.WIDTH)
    attention: NoAttention | AttendBefore | AttendAfter = setting(AttendBefore(), "decoder's attention to the source")
    vocab_size: int = setting(0, "size of the (target) vocabulary; 0 = size of the tokenizer", *c.VOCAB_OR_0)
    source_vocab_size: int = setting(0, "size of the source vocabulary; 0 = one joint vocabulary", *c.VOCAB_OR_0)
    max_len: int = setting(256, "longest target sequence, in tokens", *c.LENGTH)
    source_max_len: int = setting(0, "longest source sequence, in tokens; 0 = max_len", *c.LENGTH_OR_0)
    share_embeddings: bool = setting(False, "encoder and decoder share one embedding table")
    tie_output: bool = setting(False, "the output head reuses the decoder's embedding table")
    embedding_dropout: float = setting(0.0, "dropout of the token embeddings", "[0, 1)")
    layer_dropout: float = setting(0.0, "dropout between recurrent layers", "[0, 1)")
    output_dropout: float = setting(0.0, "dropout of the head's input", "[0, 1)")
    init_range: float = setting(
        0.0, "weights are uniform in ± this value (Sutskever: 0.08); 0 = Xavier, recurrent weights orthogonal", "≥ 0"
    )
    pad_id: int | None = setting(None, "id of the padding token")
    bos_id: int | None = setting(None, "id of the token that begins a sequence")
    eos_id: int | None = setting(None, "id of the token that ends a sequence")
    unk_id: int | None = setting(None, "id of the token for unknown text")
    mask_id: int | None = setting(None, "id of the mask token")
    decoder_start_id: int | None = setting(None, "id of the decoder's first token")

    def __post_init__(self) -> None:
        """Raise `UserError` for settings that contradict each other."""
        c.require_special_ids(self, self.vocab_size)
        if self.source_vocab_size and self.share_embeddings:
            raise UserError("model.share_embeddings needs one joint vocabulary: set source_vocab_size to 0")
        if not isinstance(self.attention, NoAttention):
            self._check_attention(self.attention)
        if self.tie_output and self.d_readout != self.d_embedding:
            raise UserError(
                f"model.tie_output needs a head input of width d_embedding, {self.d_embedding}, and its width is "
                f"{self.d_readout}: change d_embedding or d_decoder, or set tie_output to false"
            )

    def _check_attention(self, attention: AttendBefore | AttendAfter) -> None:
        if attention.score in ("dot", "general") and attention.d_attention:
            raise UserError(f"model.attention.score {attention.score} does not use d_attention: set it to 0")
        if attention.score == "dot" and self.d_memory != self.d_decoder:
            raise UserError(
                f"model.attention.score dot needs states of equal width, and d_decoder is {self.d_decoder} and the "
                f"encoder's states have width {self.d_memory}: change one width, or use another score"
            )

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
        """Width of the encoder's output per position: both directions concatenated."""
        return self.d_encoder * (2 if self.bidirectional else 1)

    @property
    def d_readout(self) -> int:
        """Width of the head's input: d_embedding after a maxout layer, d_decoder otherwise."""
        return self.d_embedding if getattr(self.attention, "deep_output", False) else self.d_decoder


ModelConfig = c.TransformerConfig | RecurrentConfig
