"""The closed-form parameter count equals the built network, for every preset and random configurations."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import CONFIGS, RECURRENT
from glassformer.config.presets import PRESETS
from glassformer.config.recurrent import AttendAfter, AttendBefore, ModelConfig, NoAttention, RecurrentConfig
from glassformer.config.transformer import (
    AlibiPositions,
    LearnedPositions,
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
)
from glassformer.cost.parameters import parameter_counts
from glassformer.models.build import build_model
from glassformer.training.optimizers.muon import hidden_matrices

EVERY: dict[str, ModelConfig] = {**CONFIGS, **RECURRENT}


def require_counts(config: ModelConfig) -> None:
    network, counts = build_model(config, "meta"), parameter_counts(config)
    assert counts.total == network.n_parameters()
    assert counts.matrices == sum(p.numel() for _, p in hidden_matrices(network))
    if isinstance(config, TransformerConfig):
        blocks = [b for n, b in network.named_modules() if n.rsplit(".", 1)[0].endswith("blocks")]
        assert counts.largest_layer == max((sum(p.numel() for p in b.parameters()) for b in blocks), default=0)


@pytest.mark.parametrize("name", PRESETS)
def test_the_count_equals_the_network_for_every_preset(name: str) -> None:
    require_counts(replace(PRESETS[name], vocab_size=PRESETS[name].vocab_size or 300))


@pytest.mark.parametrize("name", EVERY)
def test_the_count_equals_the_network_for_every_axis(name: str) -> None:
    require_counts(EVERY[name])


@st.composite
def stacks(draw: st.DrawFn) -> Stack:
    group, n_kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return Stack(
        n_layers=draw(st.integers(0, 3)),
        n_heads=group * n_kv_heads,
        n_kv_heads=draw(st.sampled_from((0, n_kv_heads))),
        d_head=2 * draw(st.integers(1, 4)),
        d_value=draw(st.integers(0, 5)),
        d_ff=draw(st.integers(0, 20)),
    )


@st.composite
def transformers(draw: st.DrawFn) -> TransformerConfig:
    which = draw(st.sampled_from(("encoder", "decoder", "both")))
    both, flags = which == "both", st.booleans()
    encoder, decoder = (draw(stacks()) if which in (side, "both") else None for side in ("encoder", "decoder"))
    share = both and draw(flags)
    positions = (
        LearnedPositions(offset=draw(st.integers(0, 3))),
        SinusoidalPositions(),
        RotaryPositions(),
        RelativePositions(n_buckets=draw(st.integers(4, 9))),
        AlibiPositions(),
        NoPositions(),
    )
    heads = (
        TokenHead(draw(flags), draw(st.sampled_from(("none", "learned", "constant")))),
        PositionHead(draw(st.integers(1, 5))),
        SequenceHead(draw(st.integers(1, 5)), pooler=draw(st.sampled_from(("none", "tanh")))),
        VectorHead(pooler=draw(st.sampled_from(("none", "relu", "unused")))),
    )
    return TransformerConfig(
        encoder=encoder,
        decoder=decoder,
        d_model=2 * draw(st.integers(1, 9)),
        d_embedding=2 * draw(st.integers(0, 9)),
        vocab_size=draw(st.integers(1, 40)),
        source_vocab_size=draw(st.integers(0, 40)) if both and not share else 0,
        n_token_types=draw(st.integers(0, 3)),
        max_len=draw(st.integers(1, 30)),
        source_max_len=draw(st.integers(0, 30)),
        share_embeddings=share,
        tie_output=draw(flags),
        positions=draw(st.sampled_from(positions)),
        norm=draw(st.sampled_from(("layernorm", "rmsnorm"))),
        norm_weight=draw(flags),
        norm_bias=draw(flags),
        norm_order=draw(st.sampled_from(("pre", "post", "sandwich"))),
        final_norm=draw(flags),
        embedding_norm=draw(flags),
        qk_norm=draw(flags),
        gated_ff=draw(flags),
        fused_qkv=draw(flags),
        qkv_bias=draw(flags),
        attn_out_bias=draw(flags),
        ff_bias=draw(flags),
        head=draw(st.sampled_from(heads)),
    )


@st.composite
def recurrents(draw: st.DrawFn) -> RecurrentConfig:
    flags, widths = st.booleans(), st.integers(1, 9)
    score = draw(st.sampled_from(("additive", "general", "scaled_dot")))
    d_attention = 0 if score == "general" else draw(st.integers(0, 7))
    kinds = (
        NoAttention(draw(flags), draw(flags)),
        AttendBefore(score, d_attention, draw(flags)),
        AttendAfter(score, d_attention, draw(flags)),
    )
    share = draw(flags)
    return RecurrentConfig(
        cell=draw(st.sampled_from(("rnn", "gru", "lstm"))),
        n_layers=draw(st.integers(1, 3)),
        bidirectional=draw(flags),
        d_embedding=draw(widths),
        d_encoder=draw(widths),
        d_decoder=draw(widths),
        attention=draw(st.sampled_from(kinds)),
        vocab_size=draw(st.integers(1, 30)),
        source_vocab_size=0 if share else draw(st.integers(0, 30)),
        share_embeddings=share,
    )


@given(config=st.one_of(transformers(), recurrents()))
@settings(max_examples=80, deadline=None)
def test_the_count_equals_the_network_for_random_configurations(config: ModelConfig) -> None:
    require_counts(config)
