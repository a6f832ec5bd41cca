"""Tiny configurations that together cover every axis of `TransformerConfig`, and models built from them."""

from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from glassformer.config.recurrent import AttendAfter, AttendBefore, ModelConfig, NoAttention, RecurrentConfig
from glassformer.config.transformer import (
    AlibiPositions,
    BalanceBias,
    Experts,
    FanInInit,
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoBalance,
    NoPositions,
    PositionHead,
    RelativePositions,
    RotaryPositions,
    SequenceHead,
    SinusoidalPositions,
    Stack,
    TokenHead,
    TransformerConfig,
    VectorHead,
    XavierInit,
    YarnScaling,
)
from glassformer.models.build import undrawn_model
from glassformer.models.recurrent import RecurrentModel
from glassformer.models.transformer import Transformer

TWO_LAYERS = Stack(2, 4, d_ff=24)
GPT = TransformerConfig(decoder=TWO_LAYERS, d_model=16, vocab_size=19, max_len=24)
LLAMA = replace(
    GPT,
    decoder=Stack(2, 4, n_kv_heads=2, d_head=6, d_ff=20),
    positions=RotaryPositions(base=100.0),
    norm="rmsnorm",
    activation="silu",
    gated_ff=True,
    qkv_bias=False,
    attn_out_bias=False,
    ff_bias=False,
    tie_output=False,
)
BERT = TransformerConfig(
    encoder=TWO_LAYERS,
    d_model=16,
    vocab_size=19,
    max_len=24,
    n_token_types=2,
    norm_order="post",
    final_norm=False,
    embedding_norm=True,
    head=TokenHead(transform=True, bias="learned"),
)
PAPER = TransformerConfig(
    encoder=TWO_LAYERS,
    decoder=TWO_LAYERS,
    d_model=16,
    vocab_size=19,
    max_len=24,
    share_embeddings=True,
    positions=SinusoidalPositions(),
    norm_order="post",
    final_norm=False,
    activation="relu",
    embedding_scale=0.0,
    init=XavierInit(),
)

CONFIGS: dict[str, TransformerConfig] = {
    # One stack with causal attention.
    "gpt": GPT,
    "llama": LLAMA,
    "fused_qkv": replace(GPT, decoder=Stack(2, 4, 2, d_head=6, d_ff=24), fused_qkv=True),
    "one_wide_kv_head": replace(GPT, decoder=Stack(2, 4, 1, d_head=6, d_ff=24)),
    "window": replace(LLAMA, decoder=replace(LLAMA.decoder, window_pattern=(3,))),
    "window_pattern": replace(GPT, decoder=replace(TWO_LAYERS, n_layers=3, window_pattern=(2, 0))),
    "alibi": replace(GPT, positions=AlibiPositions(), decoder=replace(TWO_LAYERS, n_heads=3, d_head=4)),
    "alibi_window": replace(GPT, positions=AlibiPositions(), decoder=replace(TWO_LAYERS, window_pattern=(0, 3))),
    "relative": replace(GPT, positions=RelativePositions(n_buckets=8, max_distance=12), attention_scale=1.0),
    "no_positions": replace(GPT, positions=NoPositions(), norm_weight=False, activation="relu2"),
    "sinusoidal_halves": replace(GPT, positions=SinusoidalPositions("halves", 2, True), activation="gelu_tanh"),
    "learned_offset": replace(GPT, positions=LearnedPositions(offset=2), norm_bias=False, ff_bias=False),
    "rotary_partial_qk_norm": replace(
        LLAMA, decoder=replace(LLAMA.decoder, d_head=8), positions=RotaryPositions(fraction=0.5), qk_norm=True
    ),
    "rotary_linear": replace(LLAMA, positions=RotaryPositions(scaling=LinearScaling(2.0))),
    "rotary_llama3": replace(LLAMA, positions=RotaryPositions(scaling=Llama3Scaling(4.0, 1.0, 4.0, 16))),
    "rotary_yarn": replace(LLAMA, positions=RotaryPositions(scaling=YarnScaling(4.0, 16))),
    "rotary_longrope": replace(LLAMA, positions=RotaryPositions(scaling=LongRopeScaling((1.0, 1.2, 3.0), 1.1))),
    "sandwich": replace(GPT, norm_order="sandwich", qk_norm=True, init=FanInInit()),
    "parallel": replace(GPT, norm_order="parallel"),
    "rotary_pattern": replace(
        LLAMA,
        positions=RotaryPositions(scaling=LinearScaling(2.0), base_pattern=(50.0, 10000.0, 0.0)),
        decoder=replace(LLAMA.decoder, n_layers=3),
        qk_norm="all",
        fused_qkv=True,
    ),
    "output_norm": replace(LLAMA, norm_order="output"),
    "capped": replace(GPT, score_cap=2.0, logit_cap=3.0),
    "scaled": replace(GPT, embedding_scale=3.0, residual_scale=0.5, logit_scale=0.25, attention_scale=0.2),
    "shared_norm": replace(GPT, norm_order="parallel_shared"),
    "no_first_norm": replace(GPT, embedding_norm=True, first_norm=False),
    "post_norm": replace(GPT, norm_order="post", final_norm=False, embedding_norm=True),
    "attention_only": replace(GPT, decoder=replace(TWO_LAYERS, d_ff=0)),
    "experts": replace(GPT, experts=Experts(4, 2)),
    "experts_one_active": replace(LLAMA, experts=Experts(3, 1, normalize=False, balance=BalanceBias(0.01))),
    "d_embedding": replace(GPT, d_embedding=6, embedding_norm=True, embedding_scale=0.0, logit_scale=0.0),
    "token_types": replace(GPT, n_token_types=3, head=TokenHead(bias="constant")),
    "gpt_classifier_unbiased": replace(GPT, head=SequenceHead(3, "last", bias=False)),
    "gpt_classifier": replace(GPT, head=SequenceHead(3, "last", "relu")),
    # One stack with bidirectional attention.
    "bert": BERT,
    "bert_narrow_table": replace(BERT, d_embedding=6),
    "bert_relative": replace(
        BERT, positions=RelativePositions(n_buckets=8, max_distance=12), norm="rmsnorm", norm_order="pre"
    ),
    "bert_rotary_window": replace(
        BERT, positions=RotaryPositions(), encoder=replace(TWO_LAYERS, window_pattern=(3, 0)), fused_qkv=True
    ),
    "bert_alibi": replace(BERT, positions=AlibiPositions()),
    "modernbert": replace(
        BERT,
        encoder=replace(TWO_LAYERS, n_layers=3, window_pattern=(0, 3)),
        n_token_types=0,
        positions=RotaryPositions(base_pattern=(10000.0, 50.0)),
        norm_order="pre",
        norm_bias=False,
        first_norm=False,
        final_norm=True,
        gated_ff=True,
        fused_qkv=True,
        head_bias=False,
    ),
    "tagger": replace(BERT, head=PositionHead(5)),
    "tagger_transform": replace(BERT, head=PositionHead(5, transform=True), head_bias=False),
    "classifier_first": replace(BERT, head=SequenceHead(3, "first", "tanh")),
    "classifier_norm": replace(BERT, head=SequenceHead(3, "mean", "gelu", pooler_norm=True), head_bias=False),
    "classifier_mean": replace(BERT, head=SequenceHead(3, "mean")),
    "classifier_max": replace(BERT, head=SequenceHead(1, "max")),
    "vectors_first": replace(BERT, head=VectorHead("first", "tanh")),
    "vectors_mean": replace(BERT, head=VectorHead("mean")),
    "vectors_normalized": replace(BERT, head=VectorHead("max", normalize=True)),
    # An encoder and a decoder with cross-attention.
    "paper": PAPER,
    "two_vocabularies": replace(PAPER, share_embeddings=False, source_vocab_size=13, source_max_len=30),
    "bart": replace(
        PAPER,
        positions=LearnedPositions(offset=2),
        embedding_norm=True,
        embedding_scale=1.0,
        activation="gelu",
        head=TokenHead(bias="constant"),
    ),
    "t5": replace(
        PAPER,
        positions=RelativePositions(n_buckets=8, max_distance=12),
        norm="rmsnorm",
        norm_order="pre",
        final_norm=True,
        embedding_scale=1.0,
        logit_scale=0.0,
        attention_scale=1.0,
        qkv_bias=False,
        attn_out_bias=False,
        ff_bias=False,
    ),
    "experts_in_both_stacks": replace(PAPER, experts=Experts(5, 3, balance=NoBalance())),
    "unequal_stacks": replace(
        PAPER,
        encoder=Stack(1, 2, d_ff=12),
        decoder=Stack(2, 4, n_kv_heads=2, d_head=6, d_ff=20, window_pattern=(3, 0)),
        positions=RotaryPositions(),
        share_embeddings=False,
        tie_output=False,
        fused_qkv=True,
        qk_norm=True,
        norm_order="sandwich",
    ),
}

TINY = RecurrentConfig(d_embedding=6, d_encoder=5, d_decoder=16, vocab_size=19, max_len=24)
ONE_WAY = replace(TINY, bidirectional=False, d_encoder=16)  # as wide as the decoder: the state is passed on unchanged
RECURRENT: dict[str, RecurrentConfig] = {
    # The decoder gets the source in its first state only, or at every step.
    "sutskever": replace(ONE_WAY, n_layers=2, attention=NoAttention(), reverse_source=True, init_range=0.4),
    "cho": replace(TINY, cell="gru", bidirectional=False, attention=NoAttention(True, deep_output=True)),
    "elman": replace(TINY, cell="rnn", attention=NoAttention(), source_vocab_size=13, source_max_len=30),
    "context_every_step": replace(TINY, n_layers=2, attention=NoAttention(context_every_step=True)),
    # Attention before the recurrent step.
    "bahdanau": replace(TINY, cell="gru", attention=AttendBefore(deep_output=True)),
    "before_layers": replace(TINY, n_layers=2, attention=AttendBefore(d_attention=7), reverse_source=True),
    "before_dot": replace(TINY, d_encoder=8, cell="gru", n_layers=2, attention=AttendBefore("dot")),
    "before_general": replace(TINY, attention=AttendBefore("general"), d_encoder=3),
    "before_scaled_dot": replace(
        TINY,
        cell="rnn",
        attention=AttendBefore("scaled_dot", d_attention=7, deep_output=True),
        share_embeddings=True,
        tie_output=True,
    ),
    # Attention after the recurrent step.
    "luong": replace(ONE_WAY, n_layers=2, attention=AttendAfter(), reverse_source=True),
    "luong_dot": replace(
        ONE_WAY, cell="gru", d_embedding=16, attention=AttendAfter("dot", input_feeding=False), tie_output=True
    ),
    "luong_concat": replace(TINY, cell="rnn", attention=AttendAfter("additive", 7, input_feeding=False)),
    "after_scaled_dot": replace(TINY, cell="gru", n_layers=2, attention=AttendAfter("scaled_dot")),
    "after_layers": replace(TINY, n_layers=2, attention=AttendAfter("general", input_feeding=False)),
}

CAUSAL = [name for name, config in CONFIGS.items() if config.decoder]
ENCODERS = [name for name, config in CONFIGS.items() if not config.decoder]
CROSS = [name for name, config in CONFIGS.items() if config.decoder and config.encoder]
BY_TOKEN = [name for name, config in CONFIGS.items() if not config.reads_whole_sequence]
GENERATORS = [name for name in CAUSAL if name in BY_TOKEN]


@torch.no_grad()
def randomise(module: torch.nn.Module, seed: int = 0) -> None:
    """Draw every trained parameter, norms and biases too, so that a test fails if one is left out."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3
        is_scale = parameter.dim() == 1 and name.endswith("weight")
        if parameter.requires_grad:
            parameter.copy_(noise + 1 if is_scale else noise)


def random_model(config: ModelConfig | str, seed: int = 0, dtype: torch.dtype = torch.float64) -> Any:
    """Return a model in evaluation mode with all parameters random."""
    model = undrawn_model((CONFIGS | RECURRENT)[config] if isinstance(config, str) else config).to(dtype).eval()
    randomise(model, seed)
    return model


def bytes_of(state: Any) -> int:
    """Memory of the floating-point tensors of a decoding state, including the source."""
    if isinstance(state, Tensor):
        return state.nbytes if state.is_floating_point() else 0
    parts = vars(state).values() if is_dataclass(state) else state if isinstance(state, (list, tuple)) else ()
    return sum(map(bytes_of, parts))


def random_ids(vocab_size: int, *shape: int, seed: int = 1) -> Tensor:
    return torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Inputs:
    """Arguments of a forward, without padding: `model(inputs.token_ids, **inputs.others)`."""

    token_ids: Tensor
    others: dict[str, Any]

    def rows(self, rows: Any) -> "Inputs":
        return Inputs(self.token_ids[rows], {name: x[rows] for name, x in self.others.items()})


def random_inputs(model: Transformer | RecurrentModel, n_rows: int = 2, n_tokens: int = 9, n_source: int = 7) -> Inputs:
    """Return token ids, and a source of another length if the model reads one."""
    config = model.config
    others = {}
    if isinstance(config, RecurrentConfig):
        source_ids = random_ids(config.encoder_vocab_size, n_rows, n_source, seed=2)
        return Inputs(random_ids(config.vocab_size, n_rows, n_tokens), {"source_ids": source_ids})
    if config.is_encoder_decoder:
        vocab_size = config.encoder_vocab_size
        others["source_ids"] = random_ids(vocab_size, n_rows, n_source, seed=2)
    if config.n_token_types and not config.is_encoder_decoder:
        others["token_types"] = random_ids(config.n_token_types, n_rows, n_tokens, seed=3)
    return Inputs(random_ids(config.vocab_size, n_rows, n_tokens), others)


class Recorder:
    """A tap that keeps each value under its full name and returns its replacement from `replacements`."""

    def __init__(self, replacements: dict[str, Any] | None = None) -> None:
        self.seen: dict[str, Tensor] = {}
        self.replacements = replacements or {}
        self.prefix = ""

    def __call__(self, name: str, x: Tensor) -> Tensor:
        name = self.prefix + name
        self.seen[name] = x
        return self.replacements[name](x) if name in self.replacements else x

    def scope(self, name: str) -> "Recorder":
        inner = Recorder()
        inner.seen, inner.replacements = self.seen, self.replacements
        inner.prefix = f"{self.prefix}{name}."
        return inner


SEQ2SEQ: dict[str, ModelConfig] = {
    **{name: CONFIGS[name] for name in CROSS},
    "alibi_source": replace(PAPER, positions=AlibiPositions(), norm_order="pre", final_norm=True),
    **RECURRENT,
}
"""Every kind of model that generates a target from a source; `random_model` builds each."""
