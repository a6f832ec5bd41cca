"""T5 (Raffel 2020) 1.0 and 1.1, mT5 and ByT5: an encoder-decoder with RMSNorm, relative positions and unscaled scores.

The encoder alone is another family, whose outputs are vectors.
"""

from dataclasses import replace
from typing import Any

from glassformer.apps.interop.equivalent import with_norm_scales
from glassformer.apps.interop.family import Family, Rule, attention, lines, rule
from glassformer.apps.interop.hf_config import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    Converter,
    Fields,
    HFConfig,
    inside,
    settings,
)
from glassformer.apps.interop.vocabulary_files import TOKENIZER_CONFIG, byte_tokens
from glassformer.config.transformer import NormalInit, RelativePositions, TokenHead, TransformerConfig, VectorHead

HEAD, SHARED = "lm_head.weight", "shared.weight"
FEED_FORWARDS = {name: (ours, False) for name, ours in ACTIVATIONS.items()}
FEED_FORWARDS |= {f"gated-{name}": (ours, True) for name, ours in ACTIVATIONS.items()}
FEED_FORWARDS["gated-gelu"] = ("gelu_tanh", True)  # in 1.1 the name means the tanh approximation
FEED_FORWARD_NAMES = {meaning: name for name, meaning in reversed(FEED_FORWARDS.items())}
"""For each pair (activation, gated), the value of `feed_forward_proj`. A gate with the exact GELU has no name."""
SETTINGS = settings(int, d_model="d_model", vocab_size="vocab_size") | settings(int, 512, max_len="n_positions")
SETTINGS |= settings(float, 1e-6, norm_eps="layer_norm_epsilon")
DROPOUTS = ("embedding_dropout", "attention_dropout", "ff_dropout", "residual_dropout")  # the last one is written
SETTINGS |= settings(float, 0.1, **dict.fromkeys(DROPOUTS, "dropout_rate"))
SETTINGS |= inside("positions", settings(int, 32, n_buckets="relative_attention_num_buckets"))
SETTINGS |= inside("positions", settings(int, 128, max_distance="relative_attention_max_distance"))
SIZES = settings(int, n_heads="num_heads", d_head="d_kv", d_ff="d_ff")
ENCODER = SETTINGS | inside("encoder", settings(int, n_layers="num_layers") | SIZES)
BOTH = ENCODER | inside("decoder", SIZES)
ALWAYS: Fields = {"norm": "rmsnorm", "positions": RelativePositions(), "attention_scale": 1.0, "init": NormalInit(0.02)}
ALWAYS |= dict.fromkeys(("qkv_bias", "attn_out_bias", "ff_bias"), False)


def read_encoder(hf: HFConfig, fields: Fields) -> Fields:
    """Read the feed-forward layer, whether logits are scaled, and whether the head is tied.

    Before transformers 5, `tie_word_embeddings` defined both scaling and tying. Since then, `scale_decoder_outputs`
    defines scaling, `tie_word_embeddings` is always true, and a head that is not tied is among the weights.
    """
    tied, scaled = hf.maybe("tie_word_embeddings", bool), hf.maybe("scale_decoder_outputs", bool)
    tie_output = HEAD not in hf.tensors
    if scaled is None:
        scaled = tied is not False
        tie_output = scaled or tie_output
    return _feed_forward(hf, "relu") | {"logit_scale": 0.0 if scaled else 1.0, "tie_output": tie_output}


def read_mt5(hf: HFConfig, fields: Fields) -> Fields:
    hf.pass_over("tie_word_embeddings")  # transformers ignores it: a head that is not tied is among the weights
    return _feed_forward(hf, "gated-gelu") | {"tie_output": HEAD not in hf.tensors}


def read_decoder(hf: HFConfig, fields: Fields) -> Fields:
    return {"decoder.n_layers": hf.take("num_decoder_layers", int, fields["encoder.n_layers"])}


def _feed_forward(hf: HFConfig, default: str) -> Fields:
    """Read the activation and the gate; `default` is the value of a missing `feed_forward_proj`."""
    activation, gated = hf.choose("feed_forward_proj", FEED_FORWARDS, default)
    # transformers derives the next two keys from feed_forward_proj, and writes them, too.
    hf.only("dense_act_fn", *(name for name, ours in ACTIVATIONS.items() if ours == activation))
    hf.only("is_gated_act", gated)
    return {"activation": activation, "gated_ff": gated}


def write_t5(config: TransformerConfig) -> dict[str, Any]:
    # Before transformers 5, tie_word_embeddings scales the logits.
    is_scaled = config.logit_scale != 1
    return write_mt5(config) | {"scale_decoder_outputs": is_scaled, "tie_word_embeddings": is_scaled}


def write_mt5(config: TransformerConfig) -> dict[str, Any]:
    feed_forward = FEED_FORWARD_NAMES.get((config.activation, config.gated_ff), "gated-gelu")
    activation, gated = FEED_FORWARDS[feed_forward]
    return {
        "d_kv": config.attention_widths(config.head_stack).d_head,
        "num_decoder_layers": config.head_stack.n_layers,
        "feed_forward_proj": feed_forward,
        "is_gated_act": gated,
        "dense_act_fn": ACTIVATION_NAMES[activation],
        "tie_word_embeddings": config.tie_output,
    }


def table_t5(config: TransformerConfig) -> list[Rule]:
    table = [rule("encoder.embeddings.tokens", "shared"), rule("output.proj", "lm_head")]
    for half in config.stacks:
        # Sublayers in the order of their numbers
        block = attention("0.SelfAttention.{}", "qkvo") | {"self_attn_norm": "0.layer_norm"}
        last = "1"
        if half == "decoder":
            block |= attention("1.EncDecAttention.{}", "qkvo", ours="cross_attn")
            block["cross_attn_norm"] = "1.layer_norm"
            last = "2"
        dense = f"{last}.DenseReluDense."
        block |= {"ff_norm": f"{last}.layer_norm", "ff.gate_proj": f"{dense}wi_0", "ff.down_proj": f"{dense}wo"}
        block["ff.up_proj"] = f"{dense}wi_1" if config.gated_ff else f"{dense}wi"
        table += lines(f"{half}.blocks.{{i}}.", f"{half}.block.{{i}}.layer.", block)
        # The rest of the stack
        bias = "block.0.layer.0.SelfAttention.relative_attention_bias"
        table += lines(f"{half}.", f"{half}.", {"final_norm": "final_layer_norm", "score_bias.table": bias})
    return table


T5 = Family(
    name="T5",
    model_type="t5",
    heads={"T5ForConditionalGeneration": TokenHead(), "T5WithLMHeadModel": TokenHead()},  # its old name
    settings=BOTH,
    table=table_t5,
    always=ALWAYS | {"share_embeddings": True},
    others=(Converter(read_encoder, write_t5), Converter(read_decoder)),
    recast=with_norm_scales,
    repeats={"encoder.embed_tokens.weight": SHARED, "decoder.embed_tokens.weight": SHARED, HEAD: SHARED},
    derived=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),  # never used
    builder=byte_tokens,
    vocabulary=(TOKENIZER_CONFIG,),
    roles={"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
)
T5_ENCODER = replace(
    T5,
    name="T5 encoder",
    heads={"T5EncoderModel": VectorHead(pooling="mean")},
    settings=ENCODER,
    always=ALWAYS,
    unused="num_decoder_layers",
    others=(Converter(read_encoder, write_t5),),
    other_heads={"vectors": ("decoder.*", HEAD)},
)
MT5 = replace(
    T5,
    name="mT5",
    model_type="mt5",
    heads={"MT5ForConditionalGeneration": TokenHead()},
    others=(Converter(read_mt5, write_mt5), Converter(read_decoder)),
)
