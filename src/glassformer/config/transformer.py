"""What a Transformer can be: the axes of `TransformerConfig`; its ancestors are in `config/recurrent.py`.

A run's other sections are in `config/run.py`. GPT, BERT, BART, Marian, Llama and T5 are settings of these fields, never
classes of their own. Every field is one line; letters and words are explained in `docs/glossary.md`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from glassformer.config.schema import at_most, between, checked, setting
from glassformer.errors import UserError

MAX_LAYERS = 1000  # as many as the deepest that was ever trained (Wang 2022)
MAX_WIDTH = 1 << 20  # sixty times the widest
MAX_LEN = 1 << 24  # fp32 counts positions exactly up to here
MAX_VOCAB = 1 << 24  # sixty times the largest vocabulary in use

WIDTH, WIDTH_OR_0 = ("≥ 1", at_most(MAX_WIDTH)), ("≥ 0", at_most(MAX_WIDTH))
LENGTH, LENGTH_OR_0 = ("≥ 1", at_most(MAX_LEN)), ("≥ 0", at_most(MAX_LEN))
ORIGINAL_LENGTH = between(1, MAX_LEN)
VOCAB_OR_0 = ("≥ 0", at_most(MAX_VOCAB))
"""Ranges: larger sizes are refused before a module is made, since making it would fill the memory or never end."""
SPECIAL_IDS = ("pad_id", "bos_id", "eos_id", "unk_id", "mask_id", "decoder_start_id")


@checked
class Stack:
    """The shape of an encoder or a decoder."""

    n_layers: int = setting(6, "number of blocks", "≥ 0", at_most(MAX_LAYERS))
    n_heads: int = setting(8, "number of query heads", *WIDTH)
    n_kv_heads: int = setting(0, "number of key-value heads, shared by groups of query heads; 0 = n_heads", *WIDTH_OR_0)
    d_head: int = setting(0, "width of a query and key head; 0 = d_model / n_heads", *WIDTH_OR_0)
    d_value: int = setting(0, "width of a value head; 0 = d_head", *WIDTH_OR_0)
    d_ff: int = setting(2048, "inner width of the feed-forward layer; 0 = a block of attention alone", *WIDTH_OR_0)
    window_pattern: tuple[int, ...] = setting(
        (), "how many tokens back a query sees, layer by layer in turns, itself included; 0 or none = all"
    )


@dataclass(frozen=True)
class AttentionWidths:
    """Of one multi-head attention, with the zeros of a `Stack` filled in; letters as in `docs/glossary.md`."""

    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int

    @property
    def query(self) -> int:
        """H·K, of all heads side by side; the next three likewise."""
        return self.n_heads * self.d_head

    @property
    def key(self) -> int:
        return self.n_kv_heads * self.d_head

    @property
    def value(self) -> int:
        return self.n_kv_heads * self.d_value

    @property
    def context(self) -> int:
        return self.n_heads * self.d_value


@checked
class SinusoidalPositions:
    """Fixed sines and cosines (Vaswani 2017, section 3.5)."""

    kind: ClassVar[str] = "sinusoidal"
    layout: Literal["interleaved", "halves"] = setting(
        "interleaved", "sine and cosine of a frequency side by side, or all sines before all cosines"
    )


@checked
class LearnedPositions:
    """A table of max_len + offset rows (GPT-2, BERT; BART starts at row 2)."""

    kind: ClassVar[str] = "learned"
    offset: int = setting(0, "rows of the table before position 0", between(0, MAX_LEN))


@checked
class LinearScaling:
    """Positions divided by a factor (Chen 2023)."""

    kind: ClassVar[str] = "linear"
    factor: float = setting(1.0, "how many times longer the context becomes", "≥ 1")


@checked
class Llama3Scaling:
    """Low frequencies divided by a factor, high ones kept, a ramp between (Llama 3.1)."""

    kind: ClassVar[str] = "llama3"
    factor: float = setting(8.0, "how many times longer the context becomes", "≥ 1")
    low_freq_factor: float = setting(1.0, "wavelengths above original_max_len / this are divided")
    high_freq_factor: float = setting(4.0, "wavelengths below original_max_len / this are kept")
    original_max_len: int = setting(8192, "the context of the model before it was extended, in tokens", ORIGINAL_LENGTH)


@checked
class YarnScaling:
    """Interpolation by parts and a warmer softmax (Peng 2023)."""

    kind: ClassVar[str] = "yarn"
    factor: float = setting(1.0, "how many times longer the context becomes", "≥ 1")
    original_max_len: int = setting(2048, "the context of the model before it was extended, in tokens", ORIGINAL_LENGTH)
    beta_fast: float = setting(32.0, "frequencies that turn more often than this in the context are kept")
    beta_slow: float = setting(1.0, "frequencies that turn less often than this are divided by the factor")


Scaling = LinearScaling | Llama3Scaling | YarnScaling


@checked
class RotaryPositions:
    """Queries and keys turned by an angle that grows with the position (Su 2021), half-split layout."""

    kind: ClassVar[str] = "rotary"
    base: float = setting(10000.0, "wavelengths run from 2π to 2π·base tokens", "> 1")
    fraction: float = setting(1.0, "share of each head's width that is turned", "(0, 1]")
    scaling: Scaling | None = setting(None, "how the frequencies are stretched for a longer context")

    def width(self, d_head: int) -> int:
        """How many of a head's dimensions are turned.

        >>> RotaryPositions(fraction=0.25).width(64)
        16
        """
        return int(d_head * self.fraction)


@checked
class AlibiPositions:
    """A penalty on the score that grows linearly with the distance, by head (Press 2022)."""

    kind: ClassVar[str] = "alibi"


@checked
class RelativePositions:
    """A learned score bias by bucket of the distance (Raffel 2020), one table a stack."""

    kind: ClassVar[str] = "relative"
    n_buckets: int = setting(32, "number of distance buckets", at_most(MAX_WIDTH))
    max_distance: int = setting(128, "distances from here on share the last bucket, in tokens")


@checked
class NoPositions:
    """No position signal: a causal model can still count through its mask."""

    kind: ClassVar[str] = "none"


Positions = SinusoidalPositions | LearnedPositions | RotaryPositions | AlibiPositions | RelativePositions | NoPositions


@checked
class TokenHead:
    """Logits over the vocabulary at every position."""

    kind: ClassVar[str] = "tokens"
    transform: bool = setting(False, "dense, activation and norm before the projection (BERT)")
    bias: Literal["none", "learned", "constant"] = setting(
        "none", "bias of the logits; constant = a buffer of zeros that is stored and never trained (BART)"
    )


@checked
class PositionHead:
    """Logits over labels at every position (tagging)."""

    kind: ClassVar[str] = "positions"
    n_labels: int = setting(0, "number of labels; 0 = those of the data", at_most(MAX_VOCAB))


@checked
class SequenceHead:
    """Logits over labels for the whole sequence (classification; one label = regression)."""

    kind: ClassVar[str] = "sequence"
    n_labels: int = setting(0, "number of labels; 0 = those of the data", at_most(MAX_VOCAB))
    pooling: Literal["first", "last", "mean", "max"] = setting("first", "which hidden states are read")
    pooler: Literal["none", "tanh", "relu", "gelu"] = setting("none", "dense layer and activation after pooling")
    mean: float = setting(0.0, "of numbers: what an output of 0 says; that of the data where std is 0")
    std: float = setting(0.0, "of numbers: what an output of 1 adds; 0 = standard deviation of the data")


@checked
class VectorHead:
    """A vector for the whole sequence, and no logits: a model that predicts nothing (sentence encoders)."""

    kind: ClassVar[str] = "vectors"
    pooling: Literal["first", "last", "mean", "max"] = setting("mean", "which hidden states are read")
    pooler: Literal["none", "tanh", "relu", "unused"] = setting(
        "none", "dense layer and activation after pooling; unused = a layer that is stored and not applied (BERT)"
    )
    normalize: bool = setting(False, "vectors are divided by their length (L2 norm)")
    max_tokens: int = setting(0, "texts are cut to this many tokens, special ones included; 0 = max_len")


Head = TokenHead | PositionHead | SequenceHead | VectorHead


@checked
class NormalInit:
    """Every weight from N(0, std²), biases zero (GPT-2, BERT)."""

    kind: ClassVar[str] = "normal"
    std: float = setting(0.02, "standard deviation")
    residual: Literal["same", "scaled", "zero"] = setting(
        "same", "projections that write to the residual stream: the same, × (sublayers)^-½ (GPT-2), or zero"
    )


@checked
class XavierInit:
    """Every matrix uniform with variance 2 / (fan in + fan out) (Glorot 2010), embeddings N(0, 1/d_embedding)."""

    kind: ClassVar[str] = "xavier"


@checked
class FanInInit:
    """Every matrix uniform with variance 1 / fan in; embeddings N(0, embedding_std²)."""

    kind: ClassVar[str] = "fan_in"
    residual: Literal["same", "zero"] = setting("zero", "projections that write to the residual stream")
    embedding_std: float = setting(1.0, "standard deviation of the embedding tables")
    head: Literal["same", "zero"] = setting("same", "an untied output head")


Init = NormalInit | XavierInit | FanInInit


@checked
class TransformerConfig:
    """Every axis of a Transformer. Which stacks are present says what kind it is; both means cross-attention."""

    kind: ClassVar[str] = "transformer"
    section: ClassVar[str] = "model."
    is_default_kind: ClassVar[bool] = True
    start_from: ClassVar[str] = 'glassformer.presets.preset("modern-mini")'
    encoder: Stack | None = setting(None, "the stack that sees the whole input")
    decoder: Stack | None = setting(None, "the causal stack")
    d_model: int = setting(512, "width of the residual stream", *WIDTH)
    d_embedding: int = setting(0, "width of the token table, projected to d_model; 0 = d_model", *WIDTH_OR_0)
    vocab_size: int = setting(0, "size of the (target) vocabulary; 0 = the tokenizer's", *VOCAB_OR_0)
    source_vocab_size: int = setting(0, "size of the source vocabulary; 0 = one joint vocabulary", *VOCAB_OR_0)
    n_token_types: int = setting(0, "segment types that are added to the embedding; 0 = none", *WIDTH_OR_0)
    max_len: int = setting(1024, "longest (target) sequence, in tokens", *LENGTH)
    source_max_len: int = setting(0, "longest source sequence, in tokens; 0 = max_len", *LENGTH_OR_0)
    share_embeddings: bool = setting(False, "encoder and decoder read one table")
    tie_output: bool = setting(True, "the head reuses the table of the stack that it reads")
    positions: Positions = setting(LearnedPositions(), "how the model knows where a token stands")
    norm: Literal["layernorm", "rmsnorm"] = setting("layernorm", "which normalisation, everywhere")
    norm_eps: float = setting(1e-5, "added to the variance", "> 0")
    norm_weight: bool = setting(True, "norms have a learned scale")
    norm_bias: bool = setting(True, "a layernorm has a learned shift")
    norm_order: Literal["pre", "post", "sandwich"] = setting("pre", "norm before, after, or on both sides")
    final_norm: bool = setting(True, "a norm after the last block")
    embedding_norm: bool = setting(False, "a norm on the embeddings")
    qk_norm: bool = setting(False, "a norm on each head's queries and keys before the positions turn them")
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "relu2"] = setting("gelu", "in the feed-forward")
    gated_ff: bool = setting(False, "feed-forward with a gate: down(act(gate(x)) · up(x))")
    fused_qkv: bool = setting(False, "self-attention keeps one matrix for queries, keys and values")
    qkv_bias: bool = setting(True, "biases of the query, key and value projections")
    attn_out_proj: bool = setting(True, "attention has an output projection")
    attn_out_bias: bool = setting(True, "bias of the output projection")
    ff_bias: bool = setting(True, "biases of the feed-forward")
    attention_scale: float | None = setting(None, "factor of the scores; none = d_head^-½")
    scale_embeddings: bool = setting(False, "token embeddings × √d_model")
    scale_logits: bool = setting(False, "logits × d_model^-½")
    token_dropout: float = setting(
        0.0, "whole token embeddings that are dropped, before positions (Gal 2016)", "[0, 1)"
    )
    embedding_dropout: float = setting(0.0, "dropout after the embeddings and positions", "[0, 1)")
    residual_dropout: float = setting(0.0, "dropout of what each sublayer adds", "[0, 1)")
    attention_dropout: float = setting(0.0, "dropout of the attention weights", "[0, 1)")
    ff_dropout: float = setting(0.0, "dropout inside the feed-forward", "[0, 1)")
    head: Head = setting(TokenHead(), "what is read off the hidden states")
    init: Init = setting(NormalInit(), "how weights start")
    pad_id: int | None = setting(None, "id of the padding token")
    bos_id: int | None = setting(None, "id of the token that begins a sequence")
    eos_id: int | None = setting(None, "id of the token that ends a sequence or document")
    unk_id: int | None = setting(None, "id of the token for unknown characters")
    mask_id: int | None = setting(None, "id of the mask token")
    decoder_start_id: int | None = setting(
        None, "id that the decoder was trained to start a text from; none = it was trained from no start token"
    )

    def __post_init__(self) -> None:
        """Raises `UserError` for numbers that cannot make a model."""
        require_special_ids(self, self.vocab_size)
        if self.encoder is None and self.decoder is None:
            raise UserError(
                "a model needs an encoder, a decoder, or both: give decoder=Stack(n_layers=…), in a recipe a "
                f"[model.decoder] table, or start from a preset: {self.start_from}"
            )
        for name, stack in self.stacks.items():
            self._check_stack(name, stack)
        if (self.source_vocab_size or self.share_embeddings) and not self.is_encoder_decoder:
            raise UserError("model.source_vocab_size and share_embeddings need an encoder and a decoder")
        if self.source_vocab_size and self.share_embeddings:
            raise UserError("model.share_embeddings needs one joint vocabulary: leave source_vocab_size at 0")
        if isinstance(self.positions, SinusoidalPositions) and self.table_width % 2:
            name = "d_embedding" if self.d_embedding else "d_model"
            raise UserError(f"sinusoidal positions come in pairs, and model.{name} is {self.table_width}: make it even")
        if isinstance(self.head, VectorHead) and not 0 <= self.head.max_tokens <= self.max_len:
            raise UserError(f"model.head.max_tokens is {self.head.max_tokens} and must be from 0 to model.max_len")
        positions = self.positions
        if isinstance(positions, RelativePositions) and not 4 <= positions.n_buckets < 2 * positions.max_distance:
            raise UserError(
                f"model.positions.n_buckets is {positions.n_buckets} and must be at least 4, and below 2 × max_distance"
            )
        scaling = positions.scaling if isinstance(positions, RotaryPositions) else None
        if isinstance(scaling, YarnScaling) and not 0 < scaling.beta_slow < scaling.beta_fast:
            raise UserError(
                f"model.positions.scaling.beta_slow is {scaling.beta_slow} and must be positive and below beta_fast "
                f"{scaling.beta_fast}"
            )

    def _check_stack(self, name: str, stack: Stack) -> None:
        if min(stack.window_pattern, default=0) < 0:
            raise UserError(f"model.{name}.window_pattern has {min(stack.window_pattern)}: 0 sees all, and no less")
        if max(stack.window_pattern, default=0) > MAX_LEN:
            raise UserError(f"model.{name}.window_pattern has {max(stack.window_pattern):,}: 0 sees all")
        if not stack.d_head and self.d_model % stack.n_heads:
            raise UserError(
                f"model.d_model {self.d_model} is not divisible by model.{name}.n_heads {stack.n_heads}: "
                "change one of them, or give d_head"
            )
        if stack.n_kv_heads and stack.n_heads % stack.n_kv_heads:
            raise UserError(f"model.{name}.n_heads {stack.n_heads} is not divisible by n_kv_heads {stack.n_kv_heads}")
        widths = self.attention_widths(stack)
        if not self.attn_out_proj and widths.context != self.d_model:
            raise UserError(
                f"without attn_out_proj the heads' values must fill d_model {self.d_model}, and they have "
                f"{widths.context}"
            )
        if isinstance(self.positions, RotaryPositions):
            width = self.positions.width(widths.d_head)
            if width < 2 or width % 2:
                raise UserError(
                    f"model.positions.fraction {self.positions.fraction:g} turns {width} of the {widths.d_head} "
                    f"dimensions of a head of model.{name}, and rotary positions turn pairs: give a fraction (at most "
                    "1) and a d_head whose product is an even number from 2 on"
                )

    @property
    def stacks(self) -> dict[str, Stack]:
        """The stacks that are present, by name, the encoder first."""
        both = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: stack for name, stack in both.items() if stack is not None}

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether there are two stacks, of which the second reads the first."""
        return len(self.stacks) == 2

    @property
    def encoder_vocab_size(self) -> int:
        """Size of the vocabulary that the encoder reads."""
        return self.source_vocab_size or self.vocab_size

    @property
    def encoder_max_len(self) -> int:
        """Longest sequence that the encoder reads, in tokens."""
        return self.source_max_len or self.max_len

    @property
    def table_width(self) -> int:
        """Width of the token tables."""
        return self.d_embedding or self.d_model

    def attention_widths(self, stack: Stack) -> AttentionWidths:
        """The widths of every attention of a stack.

        >>> config = TransformerConfig(decoder=Stack(1, 8, n_kv_heads=2), d_model=64)
        >>> config.attention_widths(config.decoder)
        AttentionWidths(n_heads=8, n_kv_heads=2, d_head=8, d_value=8)
        """
        d_head = stack.d_head or self.d_model // stack.n_heads
        return AttentionWidths(stack.n_heads, stack.n_kv_heads or stack.n_heads, d_head, stack.d_value or d_head)

    @property
    def head_stack(self) -> Stack:
        """The stack that the head reads: the decoder where there is one."""
        stack = self.decoder or self.encoder
        assert stack is not None  # checked in __post_init__
        return stack

    @property
    def n_outputs(self) -> int:
        """Numbers that the head gives for what it reads: logits, or the width of a vector."""
        if isinstance(self.head, (PositionHead, SequenceHead)):
            return self.head.n_labels
        return self.vocab_size if isinstance(self.head, TokenHead) else self.d_model

    @property
    def reads_whole_sequence(self) -> bool:
        """Whether the head gives one answer a sequence, and not one a position."""
        return isinstance(self.head, (SequenceHead, VectorHead))


def require_special_ids(config: Any, vocab_size: int) -> None:
    """`UserError` for an id of a special token that no token of the vocabulary has; one of size 0 is still open."""
    for name in SPECIAL_IDS:
        token = getattr(config, name)
        if token is not None and not 0 <= token < (vocab_size or MAX_VOCAB):
            raise UserError(
                f"model.{name} is {token}, and the ids of the vocabulary are below {vocab_size or MAX_VOCAB:,}"
            )
