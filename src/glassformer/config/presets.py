"""Presets: named configurations of published models, and of small models that train well.

Sizes are those of the papers and of the published checkpoints. Two rows of GPT-3's table 2.1 contradict themselves:
"GPT-3 XL" (1.3 B) has 24 heads of width 128 at d_model 2048, and "GPT-3 13B" has 40 heads of width 128 at d_model
5140. Here the number of heads times their width equals d_model: 16 × 128 = 2048, and 40 × 128 = 5120.
"""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal, TypeVar, overload

from glassformer.common.arguments import renamed
from glassformer.common.errors import UserError, did_you_mean
from glassformer.config import transformer as c
from glassformer.config.recurrent import AttendAfter, AttendBefore, ModelConfig, NoAttention, RecurrentConfig

_DROPOUTS = frozenset(("embedding_dropout", "residual_dropout", "attention_dropout", "output_dropout"))
M = TypeVar("M", bound=ModelConfig)
_NO_BIASES: dict[str, Any] = {"qkv_bias": False, "attn_out_bias": False, "ff_bias": False}


def _gpt(n_layers: int, n_heads: int, d_model: int, max_len: int = 1024, dropout: float = 0.1) -> c.TransformerConfig:
    """Build GPT-2 (Radford 2019): pre-norm, learned positions, tied head, all biases."""
    return c.TransformerConfig(
        decoder=c.Stack(n_layers, n_heads, d_ff=4 * d_model),
        d_model=d_model,
        vocab_size=50257,
        max_len=max_len,
        positions=c.LearnedPositions(),
        activation="gelu_tanh",
        embedding_dropout=dropout,
        residual_dropout=dropout,
        attention_dropout=dropout,
        init=c.NormalInit(0.02, residual="scaled"),
    )


def _gpt3(n_layers: int, n_heads: int, d_model: int) -> c.TransformerConfig:
    """Build GPT-3 (Brown 2020, table 2.1); its alternating sparse layers are dense here."""
    return _gpt(n_layers, n_heads, d_model, max_len=2048, dropout=0.0)


def _modern(n_layers: int, n_heads: int, d_model: int, max_len: int) -> c.TransformerConfig:
    """Build the small model that trains best here (see `docs/log/2026-quality.md`).

    Rotary positions, RMSNorm without scale, QK-norm, squared ReLU, no bias, zero residual projections, untied head."""
    return c.TransformerConfig(
        decoder=c.Stack(n_layers, n_heads, d_ff=4 * d_model),
        d_model=d_model,
        max_len=max_len,
        tie_output=False,
        positions=c.RotaryPositions(),
        norm="rmsnorm",
        norm_weight=False,
        qk_norm=True,
        activation="relu2",
        **_NO_BIASES,
        init=c.FanInInit(),
    )


def _bert(n_layers: int, n_heads: int, d_model: int) -> c.TransformerConfig:
    """Build BERT (Devlin 2019) with its masked-LM head."""
    return c.TransformerConfig(
        encoder=c.Stack(n_layers, n_heads, d_ff=4 * d_model),
        d_model=d_model,
        vocab_size=30522,
        n_token_types=2,
        max_len=512,
        positions=c.LearnedPositions(),
        norm_eps=1e-12,
        norm_order="post",
        final_norm=False,
        embedding_norm=True,
        activation="gelu",
        embedding_dropout=0.1,
        residual_dropout=0.1,
        attention_dropout=0.1,
        head=c.TokenHead(transform=True, bias="learned"),
        init=c.NormalInit(0.02),
        pad_id=0,
        unk_id=100,
        mask_id=103,
    )


def _bart(n_layers: int, n_heads: int, d_model: int) -> c.TransformerConfig:
    """Build BART (Lewis 2020)."""
    stack = c.Stack(n_layers, n_heads, d_ff=4 * d_model)
    return c.TransformerConfig(
        encoder=stack,
        decoder=stack,
        d_model=d_model,
        vocab_size=50265,
        max_len=1024,
        share_embeddings=True,
        positions=c.LearnedPositions(offset=2),
        norm_order="post",
        final_norm=False,
        embedding_norm=True,
        activation="gelu",
        embedding_dropout=0.1,
        residual_dropout=0.1,
        head=c.TokenHead(bias="constant"),
        init=c.NormalInit(0.02),
        bos_id=0,
        pad_id=1,
        eos_id=2,
        unk_id=3,
        mask_id=50264,
        decoder_start_id=2,
    )


def _paper(d_model: int, d_ff: int, n_heads: int, dropout: float) -> c.TransformerConfig:
    """Build a model of Vaswani (2017), table 3, with the 37,000 shared English-German tokens of section 5.1."""
    stack = c.Stack(6, n_heads, d_ff=d_ff)
    return c.TransformerConfig(
        encoder=stack,
        decoder=stack,
        d_model=d_model,
        vocab_size=37000,
        max_len=512,
        share_embeddings=True,
        positions=c.SinusoidalPositions(),
        norm_order="post",
        final_norm=False,
        activation="relu",
        embedding_scale=0.0,
        embedding_dropout=dropout,
        residual_dropout=dropout,
        init=c.XavierInit(),
    )


def _t5(n_layers: int, n_heads: int, d_model: int, d_ff: int) -> c.TransformerConfig:
    """Build T5 (Raffel 2020), version 1.0."""
    stack = c.Stack(n_layers, n_heads, d_head=64, d_ff=d_ff)
    return c.TransformerConfig(
        encoder=stack,
        decoder=stack,
        d_model=d_model,
        vocab_size=32128,
        max_len=512,
        share_embeddings=True,
        positions=c.RelativePositions(n_buckets=32, max_distance=128),
        norm="rmsnorm",
        norm_eps=1e-6,
        activation="relu",
        **_NO_BIASES,
        attention_scale=1.0,
        logit_scale=0.0,
        embedding_dropout=0.1,
        residual_dropout=0.1,
        attention_dropout=0.1,
        ff_dropout=0.1,
        init=c.NormalInit(0.02),
        pad_id=0,
        eos_id=1,
        unk_id=2,
        decoder_start_id=0,
    )


_MARIAN = replace(
    _paper(512, 2048, 8, dropout=0.1),
    vocab_size=58101,
    positions=c.SinusoidalPositions(layout="halves"),
    activation="silu",
    head=c.TokenHead(bias="constant"),
    init=c.NormalInit(0.02),
    pad_id=58100,
    eos_id=0,
    unk_id=1,
    decoder_start_id=58100,
)

_LLAMA_3_1_8B = c.TransformerConfig(
    decoder=c.Stack(32, 32, n_kv_heads=8, d_head=128, d_ff=14336),
    d_model=4096,
    vocab_size=128256,
    max_len=131072,
    tie_output=False,
    positions=c.RotaryPositions(base=500000.0, scaling=c.Llama3Scaling(8.0, 1.0, 4.0, 8192)),
    norm="rmsnorm",
    activation="silu",
    gated_ff=True,
    **_NO_BIASES,
    bos_id=128000,
    eos_id=128001,
)

PRESETS: dict[str, c.TransformerConfig] = {
    "gpt-mini": _gpt(6, 6, 192, max_len=256),
    "modern-mini": _modern(4, 4, 128, max_len=256),
    "modern-small": _modern(6, 6, 384, max_len=256),
    "gpt2": _gpt(12, 12, 768),
    "gpt2-medium": _gpt(24, 16, 1024),
    "gpt2-large": _gpt(36, 20, 1280),
    "gpt2-xl": _gpt(48, 25, 1600),
    "gpt3-small": _gpt3(12, 12, 768),
    "gpt3-medium": _gpt3(24, 16, 1024),
    "gpt3-large": _gpt3(24, 16, 1536),
    "gpt3-xl": _gpt3(24, 16, 2048),
    "gpt3-2.7b": _gpt3(32, 32, 2560),
    "gpt3-6.7b": _gpt3(32, 32, 4096),
    "gpt3-13b": _gpt3(40, 40, 5120),
    "gpt3-175b": _gpt3(96, 96, 12288),
    "bert-base": _bert(12, 12, 768),
    "bert-large": _bert(24, 16, 1024),
    "bart-base": _bart(6, 12, 768),
    "bart-large": _bart(12, 16, 1024),
    "transformer-base": _paper(512, 2048, 8, dropout=0.1),
    "transformer-big": _paper(1024, 4096, 16, dropout=0.3),
    "marian": _MARIAN,
    "llama-3.1-8b": _LLAMA_3_1_8B,
    "t5-small": _t5(6, 8, 512, 2048),
    "t5-base": _t5(12, 12, 768, 3072),
}

_RECURRENT = RecurrentConfig(
    d_embedding=256, d_encoder=256, d_decoder=512, vocab_size=10_000, embedding_dropout=0.2, output_dropout=0.2
)
RECURRENT_PRESETS: dict[str, RecurrentConfig] = {
    "seq2seq": replace(
        _RECURRENT, attention=NoAttention(), bidirectional=False, reverse_source=True, n_layers=2, d_encoder=512
    ),
    "bahdanau": replace(_RECURRENT, cell="gru", attention=AttendBefore(deep_output=True)),
    "luong": replace(_RECURRENT, attention=AttendAfter(), bidirectional=False, n_layers=2, d_encoder=512),
}
"""Recurrent models of Sutskever (2014), Bahdanau (2015) and Luong (2015), at a size that two cores train in minutes.

The papers have 1,000 units per layer, and Sutskever and Luong have four layers.
"""
SAME_PRESET = {
    **dict.fromkeys(("vaswani", "vaswani-base", "transformer"), "transformer-base"),
    **dict.fromkeys(("gpt", "gpt2-small"), "gpt2"),
    **dict.fromkeys(("encoder", "bert"), "bert-base"),
    **dict.fromkeys(("rnn", "rnnsearch"), "bahdanau"),
    "vaswani-big": "transformer-big",
    "bart": "bart-base",
    "t5": "t5-small",
}
"""Other names of presets."""

N_PARAMETERS = {
    "gpt-mini": 12_368_064,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gpt3-small": 125_226_240,
    "gpt3-medium": 355_871_744,
    "gpt3-large": 760_300_032,
    "gpt3-xl": 1_315_723_264,
    "gpt3-2.7b": 2_651_553_280,
    "gpt3-6.7b": 6_658_404_352,
    "gpt3-13b": 12_853_386_240,
    "gpt3-175b": 174_604_259_328,
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "bart-base": 139_420_416,
    "bart-large": 406_291_456,
    "transformer-base": 63_082_496,
    "transformer-big": 214_245_376,
    "marian": 73_886_208,
    "seq2seq": 17_596_416,
    "bahdanau": 11_881_984,
    "luong": 19_431_936,
    "llama-3.1-8b": 8_030_261_248,
    "t5-small": 60_506_624,
    "t5-base": 222_903_552,
}
"""Numbers of parameters of the presets with a vocabulary, for lists that do not import torch."""


def names() -> list[str]:
    """Return the names of all presets."""
    return [*PRESETS, *RECURRENT_PRESETS]


@overload
def preset(name: Literal["bahdanau", "luong", "seq2seq"], **changes: Any) -> RecurrentConfig: ...
@overload
def preset(name: str, **changes: Any) -> c.TransformerConfig: ...
def preset(name: str, **changes: Any) -> ModelConfig:
    """Return the preset of this name, with `changes` as in `changed`; raise `UserError` if the name is unknown.

    >>> preset("gpt2").d_model, preset("vaswani-base") == preset("transformer-base"), preset("luong").cell
    (768, True, 'lstm')
    """
    found = (PRESETS | RECURRENT_PRESETS).get(SAME_PRESET.get(name, name))
    if found is None:
        raise UserError(f"unknown preset {name!r:.60}: {did_you_mean(name, names(), 'known presets are', cutoff=0.4)}")
    return changed(found, changes)


def changed(config: M, changes: Mapping[str, Any]) -> M:
    """Return a configuration with changed fields; a field of `Stack` changes the encoder and the decoder.

    Names of other libraries are understood (`arguments.OTHER_NAMES`). With a new `d_model` and no `d_ff`, `d_ff` keeps
    its ratio to `d_model`; with a smaller `vocab_size`, special ids beyond it are dropped. `n_labels` sets a head for
    labels of texts, and `dropout` the rates of embeddings, residuals, attention and output. Raises `TypeError` for an
    unknown name.

    >>> small = changed(preset("gpt2"), {"hidden_size": 96, "n_layers": 2})
    >>> small.d_model, small.decoder.n_layers, small.decoder.d_ff
    (96, 2, 384)
    """
    own, of_stack = [field.name for field in fields(config)], [field.name for field in fields(c.Stack)]
    stacks = {side: stack for side in ("encoder", "decoder") if (stack := getattr(config, side, None)) is not None}
    names = [*own, *of_stack, "n_labels", "dropout"] if stacks else [*own, "dropout"]
    named = renamed(type(config).__name__, changes, names)
    # Special ids of the preset's vocabulary
    for name in own:
        value = getattr(config, name)
        if name.endswith("_id") and value is not None and value >= named.get("vocab_size", math.inf):
            named.setdefault(name, None)
    # Dropout, head and stacks
    if (dropout := named.pop("dropout", None)) is not None:
        named = dict.fromkeys(_DROPOUTS.intersection(own), dropout) | named
    if (n_labels := named.pop("n_labels", None)) is not None:
        named["head"] = c.SequenceHead(n_labels)
    inner = {name: named.pop(name) for name in of_stack if name in named and name not in own}
    for side, stack in stacks.items():
        new = dict(inner)
        if "d_model" in named and isinstance(config, c.TransformerConfig):
            new.setdefault("d_ff", stack.d_ff * named["d_model"] // config.d_model)
        if inner and named.get(side) is not None:
            raise UserError(f"{side} is given, and {min(inner)}, which is one of its fields: give one")
        if new:
            named.setdefault(side, replace(stack, **new))
    return replace(config, **named)
