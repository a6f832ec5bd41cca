"""Settings of a Transformer (`TransformerConfig`); its recurrent predecessors are in `config/recurrent.py`.

A run's other sections are in `config/run.py`. GPT, BERT, BART, Marian, Llama and T5 are values of these fields, not
separate classes. `docs/glossary.md` explains symbols and terms.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from glassformer.common.errors import UserError
from glassformer.config.schema import at_most, between, checked, setting

MAX_LAYERS = 1000  # the deepest Transformer trained so far (Wang 2022)
MAX_WIDTH = 1 << 20  # about 60 × the widest published model
MAX_LEN = 1 << 24  # fp32 represents positions exactly up to here
MAX_VOCAB = 1 << 24  # about 60 × the largest vocabulary in use
MAX_EXPERTS = 1 << 14  # above the number of any published model

WIDTH, WIDTH_OR_0 = ("≥ 1", at_most(MAX_WIDTH)), ("≥ 0", at_most(MAX_WIDTH))
LENGTH, LENGTH_OR_0 = ("≥ 1", at_most(MAX_LEN)), ("≥ 0", at_most(MAX_LEN))
ORIGINAL_LENGTH = between(1, MAX_LEN)
VOCAB_OR_0 = ("≥ 0", at_most(MAX_VOCAB))
"""`WIDTH` to `VOCAB_OR_0` reject larger sizes early: building such a module would exhaust memory or take too long."""
SPECIAL_IDS = ("pad_id", "bos_id", "eos_id", "unk_id", "mask_id", "decoder_start_id")


@checked
class Stack:
    """Shape of an encoder or decoder stack."""

    n_layers: int = setting(6, "number of blocks", "≥ 0", at_most(MAX_LAYERS))
    n_heads: int = setting(8, "number of query heads", *WIDTH)
    n_kv_heads: int = setting(0, "number of key-value heads, shared by groups of query heads; 0 = n_heads", *WIDTH_OR_0)
    d_head: int = setting(0, "width of each query, key and value head; 0 = d_model / n_heads", *WIDTH_OR_0)
    d_ff: int = setting(2048, "inner width of the feed-forward layer; 0 = attention-only blocks", *WIDTH_OR_0)
    window_pattern: tuple[int, ...] = setting(
        (), "attention window of each layer in tokens, own token included; repeats over the layers; 0 or [] = all"
    )


@dataclass(frozen=True)
class AttentionWidths:
    """Widths of one multi-head attention, with the zeros of a `Stack` resolved; symbols as in `docs/glossary.md`."""

    n_heads: int
    n_kv_heads: int
    d_head: int

    @property
    def query(self) -> int:
        """H·K, the width of all queries, and of the weighted values of all heads."""
        return self.n_heads * self.d_head

    @property
    def key(self) -> int:
        """G·K, the width of all keys, and of all values."""
        return self.n_kv_heads * self.d_head


@checked
class SinusoidalPositions:
    """Fixed sines and cosines (Vaswani 2017, section 3.5)."""

    kind: ClassVar[str] = "sinusoidal"
    layout: Literal["interleaved", "halves"] = setting(
        "interleaved", "interleaved = sine and cosine of each frequency together; halves = all sines, then all cosines"
    )
    offset: int = setting(0, "number of the first position", between(0, MAX_LEN))
    ends_at_base: bool = setting(False, "the lowest frequency is 1/10000 exactly (M2M-100); false = 10000^(2/D - 1)")


@checked
class LearnedPositions:
    """Learned table of max_len + offset rows (GPT-2, BERT; BART starts at row 2)."""

    kind: ClassVar[str] = "learned"
    offset: int = setting(0, "number of table rows before position 0", between(0, MAX_LEN))


@checked
class LinearScaling:
    """Positions divided by a factor (Chen 2023)."""

    kind: ClassVar[str] = "linear"
    factor: float = setting(1.0, "factor by which the context grows", "≥ 1")


@checked
class Llama3Scaling:
    """Low frequencies divided by a factor, high frequencies unchanged, a ramp between them (Llama 3.1)."""

    kind: ClassVar[str] = "llama3"
    factor: float = setting(8.0, "factor by which the context grows", "≥ 1")
    low_freq_factor: float = setting(1.0, "wavelengths above original_max_len / low_freq_factor are scaled")
    high_freq_factor: float = setting(4.0, "wavelengths below original_max_len / high_freq_factor are kept")
    original_max_len: int = setting(8192, "context length before the extension, in tokens", ORIGINAL_LENGTH)


@checked
class YarnScaling:
    """YaRN: interpolation by frequency, and an adjusted softmax temperature (Peng 2023)."""

    kind: ClassVar[str] = "yarn"
    factor: float = setting(1.0, "factor by which the context grows", "≥ 1")
    original_max_len: int = setting(2048, "context length before the extension, in tokens", ORIGINAL_LENGTH)
    beta_fast: float = setting(32.0, "frequencies with more turns than this in original_max_len are kept")
    beta_slow: float = setting(1.0, "frequencies with fewer turns than this are divided by the factor")
    attention_factor: float = setting(0.0, "factor of rotated queries and keys; 0 = 0.1·ln(factor) + 1", "≥ 0")


@checked
class LongRopeScaling:
    """A divisor for each frequency (Ding 2024), for texts of at most max_len tokens: one set for all lengths."""

    kind: ClassVar[str] = "longrope"
    divisors: tuple[float, ...] = setting((), "divisor of each frequency, the highest first")
    attention_factor: float = setting(1.0, "factor of rotated queries and keys", "> 0")


Scaling = LinearScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@checked
class RotaryPositions:
    """Rotation of queries and keys by an angle proportional to the position (Su 2021), half-split layout."""

    kind: ClassVar[str] = "rotary"
    base: float = setting(10000.0, "wavelengths range from 2π to 2π·base tokens", "> 1")
    fraction: float = setting(1.0, "fraction of each head's dimensions that is rotated", "(0, 1]")
    scaling: Scaling | None = setting(None, "frequency scaling for a longer context")
    base_pattern: tuple[float, ...] = setting(
        (),
        "base of each layer, repeated over the layers; 0 = no rotation; [] = base; scaling applies only to layers with "
        "base, so a pattern without base leaves base and scaling unused",
    )

    @property
    def bases(self) -> tuple[float, ...]:
        """The pattern of bases that repeats over the layers."""
        return self.base_pattern or (self.base,)

    def width(self, d_head: int) -> int:
        """Return the number of rotated dimensions per head.

        >>> RotaryPositions(fraction=0.25).width(64)
        16
        """
        return int(d_head * self.fraction)


@checked
class AlibiPositions:
    """Penalty on the attention score that grows linearly with distance, with one slope for each head (Press 2022)."""

    kind: ClassVar[str] = "alibi"


@checked
class RelativePositions:
    """Learned bias of the attention score for each distance bucket (Raffel 2020), one table per stack."""

    kind: ClassVar[str] = "relative"
    n_buckets: int = setting(32, "number of distance buckets", at_most(MAX_WIDTH))
    max_distance: int = setting(128, "distances of at least this many tokens share the last bucket")


@checked
class NoPositions:
    """No position signal; a causal model can still infer positions from its mask."""

    kind: ClassVar[str] = "none"


Positions = SinusoidalPositions | LearnedPositions | RotaryPositions | AlibiPositions | RelativePositions | NoPositions


@checked
class TokenHead:
    """Logits over the vocabulary at every position."""

    kind: ClassVar[str] = "tokens"
    transform: bool = setting(False, "dense layer, activation and norm before the output projection (BERT)")
    bias: Literal["none", "learned", "constant"] = setting(
        "none", "bias of the logits; constant = a stored buffer of zeros that is never trained (BART)"
    )


@checked
class PositionHead:
    """Logits over labels at every position (tagging)."""

    kind: ClassVar[str] = "positions"
    n_labels: int = setting(0, "number of labels; 0 = number of labels in the data", at_most(MAX_VOCAB))
    transform: bool = setting(False, "dense layer, activation and norm before the output projection (ModernBERT)")


@checked
class SequenceHead:
    """Logits over labels for the whole sequence (classification; one label: regression)."""

    kind: ClassVar[str] = "sequence"
    n_labels: int = setting(0, "number of labels; 0 = number of labels in the data", at_most(MAX_VOCAB))
    pooling: Literal["first", "last", "mean", "max"] = setting("first", "pooling of hidden states over the sequence")
    pooler: Literal["none", "tanh", "relu", "gelu"] = setting("none", "dense layer and activation after pooling")
    mean: float = setting(0.0, "regression: number that an output of 0 means; if std is 0, the mean of the data")
    std: float = setting(0.0, "regression: scale of the output; 0 = standard deviation of the data")
    bias: bool = setting(True, "bias of the logits")
    pooler_norm: bool = setting(False, "a norm after the pooler (ModernBERT)")


@checked
class VectorHead:
    """A vector for the whole sequence, without logits (sentence encoders)."""

    kind: ClassVar[str] = "vectors"
    pooling: Literal["first", "last", "mean", "max"] = setting("mean", "pooling of hidden states over the sequence")
    pooler: Literal["none", "tanh", "relu", "unused"] = setting(
        "none", "dense layer and activation after pooling; unused = layer stored but not applied (BERT)"
    )
    normalize: bool = setting(False, "divide vectors by their L2 norm")
    max_tokens: int = setting(0, "cut texts to this many tokens, special tokens included; 0 = max_len")


Head = TokenHead | PositionHead | SequenceHead | VectorHead


@checked
class NormalInit:
    """Weights from N(0, std²), biases zero (GPT-2, BERT)."""

    kind: ClassVar[str] = "normal"
    std: float = setting(0.02, "standard deviation of the weights")
    residual: Literal["same", "scaled", "zero"] = setting(
        "same", "init of projections to the residual stream; scaled = × (sublayers)^-½ (GPT-2)"
    )


@checked
class XavierInit:
    """Matrices uniform with variance 2 / (fan-in + fan-out) (Glorot 2010), embeddings from N(0, 1/d_embedding)."""

    kind: ClassVar[str] = "xavier"


@checked
class FanInInit:
    """Matrices uniform with variance 1 / fan-in, embeddings from N(0, 1), residual projections and untied heads 0."""

    kind: ClassVar[str] = "fan_in"


Init = NormalInit | XavierInit | FanInInit


@checked
class BalanceLoss:
    """Loss that is smallest for equal loads: experts · Σ share of tokens · mean probability (Fedus 2021, eq. 4-6)."""

    kind: ClassVar[str] = "loss"
    is_default_kind: ClassVar[bool] = True
    weight: float = setting(0.01, "factor of the mean over the layers, added to the loss per target", "(0, ∞)")


@checked
class BalanceBias:
    """Bias of each expert in the choice of the active experts, moved after each step (Wang 2024)."""

    kind: ClassVar[str] = "bias"
    rate: float = setting(0.001, "change per step, up for loads below the mean, otherwise down", "(0, ∞)")


@checked
class NoBalance:
    """No balance, for example for a model that is balanced already."""

    kind: ClassVar[str] = "none"


Balance = BalanceLoss | BalanceBias | NoBalance


@checked
class Experts:
    """Experts in place of each feed-forward layer, each of width d_ff; a router chooses those that read a token."""

    n_experts: int = setting(8, "number of experts per layer", "≥ 2", at_most(MAX_EXPERTS))
    n_active: int = setting(2, "number of experts that read a token", "≥ 1")
    normalize: bool = setting(True, "weights of a token's active experts sum to 1; false = their probabilities")
    balance: Balance = setting(BalanceLoss(), "way to give the experts equal loads")


@checked
class TransformerConfig:
    """Settings of a Transformer: an encoder, a decoder, or both, which adds cross-attention."""

    kind: ClassVar[str] = "transformer"
    section: ClassVar[str] = "model."
    is_default_kind: ClassVar[bool] = True
    start_from: ClassVar[str] = 'glassformer.presets.preset("modern-mini")'
    encoder: Stack | None = setting(None, "encoder: attention to the whole input")
    decoder: Stack | None = setting(None, "decoder: causal attention")
    d_model: int = setting(512, "width of the residual stream", *WIDTH)
    d_embedding: int = setting(0, "width of the token embeddings, projected to d_model; 0 = d_model", *WIDTH_OR_0)
    vocab_size: int = setting(0, "size of the (target) vocabulary; 0 = size of the tokenizer", *VOCAB_OR_0)
    source_vocab_size: int = setting(0, "size of the source vocabulary; 0 = one joint vocabulary", *VOCAB_OR_0)
    n_token_types: int = setting(0, "number of segment types, each with an embedding; 0 = none", *WIDTH_OR_0)
    max_len: int = setting(1024, "longest (target) sequence, in tokens", *LENGTH)
    source_max_len: int = setting(0, "longest source sequence, in tokens; 0 = max_len", *LENGTH_OR_0)
    share_embeddings: bool = setting(False, "encoder and decoder share one embedding table")
    tie_output: bool = setting(True, "the output head reuses the embedding table of its stack")
    positions: Positions = setting(LearnedPositions(), "position encoding")
    norm: Literal["layernorm", "rmsnorm"] = setting("layernorm", "type of normalisation in all layers")
    norm_eps: float = setting(1e-5, "constant added to the variance", "> 0")
    norm_weight: bool = setting(True, "norms have a learned scale")
    norm_bias: bool = setting(True, "LayerNorm has a learned shift")
    norm_order: Literal["pre", "post", "sandwich", "output", "parallel", "parallel_shared"] = setting(
        "pre",
        "norm before sublayers, after the addition, on both sides of sublayers, or on their output only; parallel = "
        "before, and attention beside feed-forward; parallel_shared = both read the same norm",
    )
    first_norm: bool = setting(
        True, "a norm before the first attention; false = it reads the embeddings, usually with embedding_norm"
    )
    final_norm: bool = setting(True, "a norm after the last block")
    embedding_norm: bool = setting(False, "a norm after the embeddings")
    qk_norm: Literal["all"] | bool = setting(
        False, "norms of queries and keys, before rotary positions: of each head, or of all heads together (all)"
    )
    activation: Literal["relu", "gelu", "gelu_tanh", "silu", "relu2"] = setting("gelu", "feed-forward activation")
    gated_ff: bool = setting(False, "gated feed-forward layer: down(act(gate(x)) · up(x))")
    fused_qkv: bool = setting(False, "self-attention has one matrix for queries, keys and values")
    qkv_bias: bool = setting(True, "biases of the query, key and value projections")
    attn_out_bias: bool = setting(True, "bias of the output projection")
    ff_bias: bool = setting(True, "biases of the feed-forward layers")
    experts: Experts | None = setting(None, "several feed-forward layers per block, of which a token uses a few")
    attention_scale: float | None = setting(None, "factor of the attention scores; none = d_head^-½")
    score_cap: float = setting(0.0, "bound of the attention scores: cap · tanh(score / cap); 0 = none", "[0, ∞)")
    embedding_scale: float = setting(1.0, "factor of token embeddings; 0 = √d_model")
    residual_scale: float = setting(1.0, "factor of what each sublayer adds to the residual stream")
    logit_scale: float = setting(1.0, "factor of the logits; 0 = d_model^-½")
    logit_cap: float = setting(0.0, "bound of the logits: cap · tanh(logit / cap); 0 = none", "[0, ∞)")
    token_dropout: float = setting(
        0.0, "dropout of whole token embeddings, before positions are added (Gal 2016)", "[0, 1)"
    )
    embedding_dropout: float = setting(0.0, "dropout after the embeddings and positions", "[0, 1)")
    residual_dropout: float = setting(0.0, "dropout of each sublayer's output", "[0, 1)")
    attention_dropout: float = setting(0.0, "dropout of the attention weights", "[0, 1)")
    ff_dropout: float = setting(0.0, "dropout inside the feed-forward layers", "[0, 1)")
    head: Head = setting(TokenHead(), "output head")
    head_bias: bool = setting(True, "bias of the dense layer in a transform or pooler of the head")
    init: Init = setting(NormalInit(), "initial weights")
    pad_id: int | None = setting(None, "id of the padding token")
    bos_id: int | None = setting(None, "id of the token that begins a sequence")
    eos_id: int | None = setting(None, "id of the token that ends a sequence or document")
    unk_id: int | None = setting(None, "id of the token for unknown text")
    mask_id: int | None = setting(None, "id of the mask token")
    decoder_start_id: int | None = setting(
        None, "id of the decoder's first token; none = trained without a start token"
    )

    def __post_init__(self) -> None:
        """Raise `UserError` for settings that contradict each other."""
        require_special_ids(self, self.vocab_size)
        for problem in self._problems():
            raise UserError(problem)

    def _problems(self) -> Iterator[str]:
        # The stacks
        if not self.stacks:
            yield (
                "a model needs an encoder, a decoder, or both: give decoder=Stack(n_layers=…) or, in a recipe, a "
                f"[model.decoder] table, or start from a preset: {self.start_from}"
            )
        for name, stack in self.stacks.items():
            yield from self._problems_of(name, stack)
        # The norms
        if not self.first_norm and self.norm_order not in ("pre", "sandwich"):
            yield f"model.first_norm = false needs norm_order pre or sandwich, not {self.norm_order}"
        if self.residual_scale != 1 and self.norm_order in ("sandwich", "output"):
            yield (
                f"model.residual_scale is {self.residual_scale:g}, and must be 1 with norm_order {self.norm_order}: "
                "the norm of an output removes the factor"
            )
        # The vocabularies
        if (self.source_vocab_size or self.share_embeddings) and not self.is_encoder_decoder:
            yield "model.source_vocab_size and share_embeddings need an encoder and a decoder"
        if self.source_vocab_size and self.share_embeddings:
            yield "model.share_embeddings needs one joint vocabulary: set source_vocab_size to 0"
        # The positions
        positions = self.positions
        if isinstance(positions, SinusoidalPositions):
            if self.table_width % 2:
                name = "d_embedding" if self.d_embedding else "d_model"
                yield f"sinusoidal positions need an even width: model.{name} is {self.table_width}; change it"
            if positions.ends_at_base and self.table_width < 4:
                yield "model.positions.ends_at_base needs at least two frequencies: set model.d_model to at least 4"
        if isinstance(positions, RelativePositions) and not 4 <= positions.n_buckets < 2 * positions.max_distance:
            yield (
                f"model.positions.n_buckets is {positions.n_buckets} and must be at least 4, and below 2 × max_distance"
            )
        if isinstance(positions, RotaryPositions):
            for base in (base for base in positions.base_pattern if not (base > 1 or base == 0)):
                yield f"model.positions.base_pattern has {base:g}: give bases above 1, or 0 for no rotation"
            scaling = positions.scaling
            if isinstance(scaling, YarnScaling) and not 0 < scaling.beta_slow < scaling.beta_fast:
                yield (
                    f"model.positions.scaling.beta_slow is {scaling.beta_slow} and must be positive and below "
                    f"beta_fast {scaling.beta_fast}"
                )
        # The head and the experts
        if isinstance(self.head, SequenceHead) and self.head.pooler_norm and self.head.pooler == "none":
            yield "model.head.pooler_norm normalises the output of a pooler: set model.head.pooler"
        if isinstance(self.head, VectorHead) and not 0 <= self.head.max_tokens <= self.max_len:
            yield f"model.head.max_tokens is {self.head.max_tokens} and must be from 0 to model.max_len"
        if self.experts is not None and self.experts.n_active > self.experts.n_experts:
            yield (
                f"model.experts.n_active is {self.experts.n_active} and must be at most n_experts, "
                f"{self.experts.n_experts}"
            )

    def _problems_of(self, name: str, stack: Stack) -> Iterator[str]:
        if min(stack.window_pattern, default=0) < 0:
            yield f"model.{name}.window_pattern: expected at least 0, got {min(stack.window_pattern)}"
        if max(stack.window_pattern, default=0) > MAX_LEN:
            yield f"model.{name}.window_pattern has {max(stack.window_pattern):,}: give 0 for no limit"
        if not stack.d_head and self.d_model % stack.n_heads:
            yield (
                f"model.d_model {self.d_model} is not divisible by model.{name}.n_heads {stack.n_heads}: "
                "change one of them, or give d_head"
            )
        if stack.n_kv_heads and stack.n_heads % stack.n_kv_heads:
            yield f"model.{name}.n_heads {stack.n_heads} is not divisible by n_kv_heads {stack.n_kv_heads}"
        if self.experts is not None and not stack.d_ff:
            yield f"model.experts needs feed-forward layers: set model.{name}.d_ff to at least 1"
        if isinstance(self.positions, RotaryPositions):
            d_head = self.attention_widths(stack).d_head
            width = self.positions.width(d_head)
            if width < 2 or width % 2:
                yield (
                    f"model.positions.fraction {self.positions.fraction:g} rotates {width} of the {d_head} "
                    f"dimensions of a head of model.{name}, and rotary positions rotate pairs: choose fraction (at "
                    "most 1) and d_head so that their product is even and at least 2"
                )
            divisors = getattr(self.positions.scaling, "divisors", (1.0,) * (width // 2))
            if len(divisors) != width // 2 or min(divisors) <= 0:
                yield (
                    f"model.positions.scaling.divisors: expected {width // 2} numbers above 0, one for each frequency "
                    f"of model.{name}, got {len(divisors)} numbers"
                )

    @property
    def stacks(self) -> dict[str, Stack]:
        """Present stacks by name, the encoder first."""
        both = {"encoder": self.encoder, "decoder": self.decoder}
        return {name: stack for name, stack in both.items() if stack is not None}

    @property
    def is_encoder_decoder(self) -> bool:
        """True if there are two stacks; the decoder then attends to the encoder."""
        return len(self.stacks) == 2

    @property
    def uncompilable(self) -> str:
        """The parts that `torch.compile` cannot trace, or "": how many tokens an expert reads depends on the data."""
        return "" if self.experts is None else "experts"

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
        """Width of the token embeddings."""
        return self.d_embedding or self.d_model

    def attention_widths(self, stack: Stack) -> AttentionWidths:
        """Return the widths of each attention of a stack.

        >>> config = TransformerConfig(decoder=Stack(1, 8, n_kv_heads=2), d_model=64)
        >>> config.attention_widths(config.decoder)
        AttentionWidths(n_heads=8, n_kv_heads=2, d_head=8)
        """
        d_head = stack.d_head or self.d_model // stack.n_heads
        return AttentionWidths(stack.n_heads, stack.n_kv_heads or stack.n_heads, d_head)

    @property
    def head_stack(self) -> Stack:
        """The stack before the head: the decoder if present, else the encoder."""
        return self.stacks[self.head_stack_name]

    @property
    def head_stack_name(self) -> Literal["encoder", "decoder"]:
        """Name of the stack before the head."""
        return "encoder" if self.decoder is None else "decoder"

    @property
    def n_outputs(self) -> int:
        """Width of the head's output: the number of logits, or the width of the vector."""
        if isinstance(self.head, (PositionHead, SequenceHead)):
            return self.head.n_labels
        return self.vocab_size if isinstance(self.head, TokenHead) else self.d_model

    @property
    def needs_source(self) -> bool:
        """True if the encoder reads other ids than the decoder."""
        return self.is_encoder_decoder and isinstance(self.head, TokenHead)

    @property
    def reads_text_twice(self) -> bool:
        """True if both stacks of an encoder-decoder read the same text, since the head gives no tokens (BART)."""
        return self.is_encoder_decoder and not isinstance(self.head, TokenHead)

    @property
    def reads_whole_sequence(self) -> bool:
        """True if the head gives one output per sequence, not one per position."""
        return isinstance(self.head, (SequenceHead, VectorHead))


def require_special_ids(config: Any, vocab_size: int) -> None:
    """Raise `UserError` for a special token's id outside the vocabulary; size 0 means not yet known."""
    for name in SPECIAL_IDS:
        token = getattr(config, name)
        if token is not None and not 0 <= token < (vocab_size or MAX_VOCAB):
            raise UserError(
                f"model.{name} is {token} and must be an id of the vocabulary, at least 0 and below "
                f"{vocab_size or MAX_VOCAB:,}"
            )
