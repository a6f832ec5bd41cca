"""T5 (Raffel 2020) 1.0 and 1.1, and mT5: an encoder-decoder with RMSNorm, relative positions and unscaled scores.

Its encoder alone is a family of its own, whose outputs are vectors.
"""

from dataclasses import replace
from typing import Any

from glassformer.config.transformer import (
    NormalInit,
    RelativePositions,
    Stack,
    TokenHead,
    TransformerConfig,
    VectorHead,
)
from glassformer.interop.compatibility import Compatibility
from glassformer.interop.equivalent import with_norm_scales
from glassformer.interop.family import Family, Rule, attention_lines, rule
from glassformer.interop.hf_config import ACTIVATION_NAMES, ACTIVATIONS, HFConfig, settings, written

HEAD, SHARED = "lm_head.weight", "shared.weight"
FEED_FORWARDS = {name: (ours, False) for name, ours in ACTIVATIONS.items()}
FEED_FORWARDS |= {f"gated-{name}": (ours, True) for name, ours in ACTIVATIONS.items()}
FEED_FORWARDS["gated-gelu"] = ("gelu_tanh", True)  # in 1.1 the name means the tanh approximation
FEED_FORWARD_NAMES = {meaning: name for name, meaning in reversed(FEED_FORWARDS.items())}
"""(activation, gated) → `feed_forward_proj`; a gate with the exact GELU has no name."""
SETTINGS = settings(int, d_model="d_model", vocab_size="vocab_size") | settings(int, 512, max_len="n_positions")
SETTINGS |= settings(float, 1e-6, norm_eps="layer_norm_epsilon")
DROPOUTS = ("embedding_dropout", "attention_dropout", "ff_dropout", "residual_dropout")  # the last one is written
SETTINGS |= settings(float, 0.1, **dict.fromkeys(DROPOUTS, "dropout_rate"))
RELATIVE = settings(int, 32, n_buckets="relative_attention_num_buckets")
RELATIVE |= settings(int, 128, max_distance="relative_attention_max_distance")


def read_t5(hf: HFConfig, architecture: str) -> TransformerConfig:
    scale_logits, tie_output = _head(hf)
    return replace(_read(hf, "relu"), scale_logits=scale_logits, tie_output=tie_output)


def read_mt5(hf: HFConfig, architecture: str) -> TransformerConfig:
    hf.pass_over("tie_word_embeddings")  # transformers ignores it: a head that is not tied is among the weights
    return replace(_read(hf, "gated-gelu"), tie_output=HEAD not in hf.tensors)


def read_encoder(hf: HFConfig, architecture: str) -> TransformerConfig:
    config = read_t5(hf, architecture)
    return replace(config, decoder=None, share_embeddings=False, head=VectorHead(pooling="mean"))


def _read(hf: HFConfig, feed_forward: str) -> TransformerConfig:
    """Read the keys that T5 and mT5 share; `feed_forward` is the default of `feed_forward_proj`."""
    # Sizes
    n_heads, d_head, d_ff = hf.take("num_heads", int), hf.take("d_kv", int), hf.take("d_ff", int)
    n_layers = hf.take("num_layers", int)
    n_decoder_layers = hf.take("num_decoder_layers", int, n_layers)
    activation, gated = hf.choose("feed_forward_proj", FEED_FORWARDS, feed_forward)
    # transformers derives these keys from feed_forward_proj, and writes them too.
    hf.only("dense_act_fn", *(name for name, ours in ACTIVATIONS.items() if ours == activation))
    hf.only("is_gated_act", gated)
    return TransformerConfig(
        encoder=Stack(n_layers, n_heads, d_head=d_head, d_ff=d_ff),
        decoder=Stack(n_decoder_layers, n_heads, d_head=d_head, d_ff=d_ff),
        share_embeddings=True,
        positions=RelativePositions(**hf.fields(RELATIVE)),
        norm="rmsnorm",
        activation=activation,
        gated_ff=gated,
        qkv_bias=False,
        attn_out_bias=False,
        ff_bias=False,
        attention_scale=1.0,
        init=NormalInit(0.02),
        **hf.fields(SETTINGS),
    )


def _head(hf: HFConfig) -> tuple[bool, bool]:
    """Return two flags: True if logits are scaled, and True if the head is tied.

    `tie_word_embeddings` once defined both. transformers 5 defines scaling with `scale_decoder_outputs`, and always
    sets `tie_word_embeddings` to true. A head that is not tied is then among the weights.
    """
    tied, scaled = hf.maybe("tie_word_embeddings", bool), hf.maybe("scale_decoder_outputs", bool)
    has_head = HEAD in hf.tensors
    if scaled is None:
        return tied is not False, tied is not False or not has_head
    return scaled, not has_head


def fit_t5(config: TransformerConfig) -> list[str]:
    fit = _fit(config, has_decoder=True)
    fit.heads([TokenHead()])
    fit.holds("scale_logits")
    return fit.done()


def fit_mt5(config: TransformerConfig) -> list[str]:
    fit = _fit(config, has_decoder=True)
    fit.heads([TokenHead()])
    return fit.done()


def fit_encoder(config: TransformerConfig) -> list[str]:
    fit = _fit(config, has_decoder=False)
    fit.heads([VectorHead(pooling="mean")], "none")
    fit.holds("scale_logits")  # a vector head has no logits
    return fit.done()


def _fit(config: TransformerConfig, has_decoder: bool) -> Compatibility:
    """Check the fields that all three share."""
    fit = Compatibility(config)
    fit.stack("encoder", True, "d_head")
    fit.stack("decoder", has_decoder, "d_head")
    shapes = {(side.n_heads, config.attention_widths(side).d_head, side.d_ff) for side in config.stacks.values()}
    if len(shapes) > 1:
        fit.misfits.append("encoder and decoder must have the same n_heads, d_head and d_ff")
    positions = config.positions
    is_relative = isinstance(positions, RelativePositions)
    fit.check("positions", is_relative, f"model.positions: expected relative, got {positions.kind}")
    fit.needs(norm="rmsnorm", share_embeddings=has_decoder, attention_scale=1.0)
    fit.needs(qkv_bias=False, attn_out_bias=False, ff_bias=False)
    has_name = (config.activation, config.gated_ff) in FEED_FORWARD_NAMES
    fit.check("activation", has_name, f"model.activation: expected gelu_tanh with a gate, got {config.activation}")
    fit.holds("d_model", "source_max_len", "tie_output", "norm_eps", "norm_weight", "norm_bias")
    fit.holds("gated_ff", "fused_qkv")
    return fit


def write_t5(config: TransformerConfig) -> dict[str, Any]:
    stack, encoder = config.head_stack, config.encoder
    assert encoder is not None  # it fits
    return {
        **written(SETTINGS, config),
        **written(RELATIVE, config.positions),
        "d_kv": config.attention_widths(stack).d_head,
        "d_ff": stack.d_ff,
        "num_layers": encoder.n_layers,
        "num_decoder_layers": stack.n_layers,
        "num_heads": stack.n_heads,
        "feed_forward_proj": FEED_FORWARD_NAMES[config.activation, config.gated_ff],
        "is_gated_act": config.gated_ff,
        "dense_act_fn": ACTIVATION_NAMES[config.activation],
        "scale_decoder_outputs": config.scale_logits,
        "tie_word_embeddings": config.scale_logits,  # before transformers 5, this key scales the logits
    }


def write_mt5(config: TransformerConfig) -> dict[str, Any]:
    keys = write_t5(config) | {"tie_word_embeddings": config.tie_output}
    del keys["scale_decoder_outputs"]
    return keys


def table_t5(config: TransformerConfig) -> list[Rule]:
    lines = [rule("encoder.embeddings.tokens", "shared"), rule("output.proj", "lm_head")]
    for half in config.stacks:
        ours, theirs = f"{half}.blocks.{{i}}.", f"{half}.block.{{i}}.layer."
        attentions = {"self_attn": "0.SelfAttention"}
        if half == "decoder":
            attentions["cross_attn"] = "1.EncDecAttention"
        for mine, other in attentions.items():
            parts = (f"{theirs}{other}.{part}" for part in "qkvo")
            lines.append(rule(f"{ours}{mine}_norm", f"{theirs}{other[0]}.layer_norm"))
            lines += attention_lines(config, f"{ours}{mine}", *parts)
        last = f"{theirs}{len(attentions)}."
        dense = f"{last}DenseReluDense."
        lines.append(rule(f"{ours}ff_norm", f"{last}layer_norm"))
        lines.append(rule(f"{ours}ff.gate_proj", f"{dense}wi_0"))
        lines.append(rule(f"{ours}ff.up_proj", f"{dense}wi_1" if config.gated_ff else f"{dense}wi"))
        lines.append(rule(f"{ours}ff.down_proj", f"{dense}wo"))
        lines.append(rule(f"{half}.final_norm", f"{half}.final_layer_norm"))
        bias = f"{half}.block.0.layer.0.SelfAttention.relative_attention_bias"
        lines.append(rule(f"{half}.score_bias.table", bias))
    return lines


T5 = Family(
    name="T5",
    model_type="t5",
    heads={"T5ForConditionalGeneration": TokenHead(), "T5WithLMHeadModel": TokenHead()},  # its older name
    read=read_t5,
    fit=fit_t5,
    write=write_t5,
    table=table_t5,
    recast=with_norm_scales,
    repeats={"encoder.embed_tokens.weight": SHARED, "decoder.embed_tokens.weight": SHARED, HEAD: SHARED},
    derived=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),  # never used
    roles={"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
)
T5_ENCODER = replace(
    T5,
    name="T5 encoder",
    heads={"T5EncoderModel": VectorHead(pooling="mean")},
    read=read_encoder,
    fit=fit_encoder,
    bare=frozenset({"T5EncoderModel"}),
    other_heads={"vectors": ("decoder.*", HEAD)},
)
MT5 = replace(
    T5,
    name="mT5",
    model_type="mt5",
    heads={"MT5ForConditionalGeneration": TokenHead()},
    read=read_mt5,
    fit=fit_mt5,
    write=write_mt5,
)
