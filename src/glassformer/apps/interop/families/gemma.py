"""Gemma 1, 2 and 3 (text): decoders with scaled embeddings, whose RMSNorm multiplies by 1 + weight.

Glassformer stores the sum 1 + weight as the scale of the norm. The sum is exact for weights in bfloat16. Gemma 2 and 3
also normalise the outputs of sublayers, and many of their layers have a window. Gemma 2 bounds scores and logits. Gemma
3 normalises queries and keys, and its layers with a window have another base of the rotary positions.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from glassformer.apps.interop.families import llama, rotary
from glassformer.apps.interop.family import Rule, decoder_heads, lines
from glassformer.apps.interop.hf_config import ACTIVATION_NAMES, ACTIVATIONS, Converter, Fields, HFConfig, settings
from glassformer.config.transformer import TransformerConfig

SETTINGS = {name: setting for name, setting in llama.settings_of("decoder").items() if name != "activation"}
SETTINGS |= llama.BIASES | settings(bool, True, tie_output="tie_word_embeddings")
BASES = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
"""The keys of the rotary base for layers without a window, and for layers with a window, with their defaults."""
NAMES = ACTIVATION_NAMES | {"gelu_tanh": "gelu_pytorch_tanh"}


def read_gemma(hf: HFConfig, fields: Fields) -> Fields:
    """Read the keys of Gemma 1, for which transformers replaces "gelu" by the tanh approximation of GELU."""
    hf.only("hidden_activation", "gelu_pytorch_tanh")
    return {"activation": hf.choose("hidden_act", ACTIVATIONS | {"gelu": "gelu_tanh"}, "gelu_pytorch_tanh")}


def _read_cap(hf: HFConfig, key: str, default: float) -> float:
    """Return a bound of scores or logits. Null gives 0, no bound; a missing key gives the default."""
    cap = hf.maybe(key, float)
    if key not in hf.table:
        return default
    return cap or 0.0


def _read_layers(hf: HFConfig, every: int) -> tuple[Fields, list[bool]]:
    """Read what Gemma 2 and 3 share, and which layers have a window: by default, `every` - 1 of `every` layers."""
    window, sliding = rotary.read_window(hf, 4096), rotary.sliding_layers(hf, lambda i: (i + 1) % every != 0)
    d_head, scalar = hf.take("head_dim", int, 256), hf.take("query_pre_attn_scalar", int, 256)
    if scalar < 1:
        hf.problem(f"query_pre_attn_scalar: expected at least 1, got {scalar}")
    fields = {
        "decoder.n_kv_heads": hf.take("num_key_value_heads", int, 4),
        "decoder.d_head": d_head,
        "decoder.window_pattern": rotary.pattern_of(hf, sliding, window),
        "attention_scale": None if scalar == d_head else max(scalar, 1) ** -0.5,
        "activation": hf.choose("hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh"),
    }
    return fields, sliding


def _write_layers(config: TransformerConfig) -> dict[str, Any]:
    widths, windows = config.attention_widths(config.head_stack), rotary.windows_of(config)
    return {
        "num_key_value_heads": widths.n_kv_heads,
        "head_dim": widths.d_head,
        "query_pre_attn_scalar": round(config.attention_scale**-2) if config.attention_scale else widths.d_head,
        "sliding_window": max(windows, default=0) or 4096,
        "layer_types": rotary.layer_types(config),
        "hidden_activation": NAMES[config.activation],
        "final_logit_softcapping": config.logit_cap or None,
    }


def read_gemma2(hf: HFConfig, fields: Fields) -> Fields:
    read, _ = _read_layers(hf, every=2)
    read["score_cap"] = _read_cap(hf, "attn_logit_softcapping", 50.0)
    read["logit_cap"] = _read_cap(hf, "final_logit_softcapping", 30.0)
    hf.only("hidden_act", "gelu_pytorch_tanh")
    return read | {"positions": rotary.read_rotary(hf, fields["max_len"])}


def write_gemma2(config: TransformerConfig) -> dict[str, Any]:
    cap = {"attn_logit_softcapping": config.score_cap or None}
    return _write_layers(config) | cap | rotary.write_rotary(config.positions)


def read_gemma3(hf: HFConfig, fields: Fields) -> Fields:
    every = max(hf.take("sliding_window_pattern", int, 6), 1)
    hf.pass_over("_sliding_window_pattern")
    read, sliding = _read_layers(hf, every)
    read["logit_cap"] = _read_cap(hf, "final_logit_softcapping", 0.0)
    return read | {"positions": rotary.read_bases(hf, fields["max_len"], sliding, BASES)}


BOTH_SIDES = {"self_attn_out_norm": "post_attention_layernorm", "ff_norm": "pre_feedforward_layernorm"}
BOTH_SIDES |= {"ff_out_norm": "post_feedforward_layernorm"}


def table_gemma(config: TransformerConfig) -> list[Rule]:
    """Return Llama's table with norms that multiply by 1 + weight, in Gemma 2 and 3 before and after each sublayer."""
    table = llama.table_llama(config)
    if config.norm_order == "sandwich":
        table = [line for line in table if not line.ours[0].endswith(".ff_norm")]
        table += lines("decoder.blocks.{i}.", "model.layers.{i}.", BOTH_SIDES)
    return [replace(line, offset=float("norm" in line.ours[0])) for line in table]  # 1 for norms


family = partial(
    llama.family,
    table=table_gemma,
    roles={"bos": "<bos>", "eos": "<eos>", "unk": "<unk>", "pad": "<pad>"},
)
ALWAYS: Fields = llama.ALWAYS | {"embedding_scale": 0.0}
GEMMA = family(
    "Gemma",
    SETTINGS,
    always=ALWAYS,
    only={"use_bidirectional_attention": False},
    others=(
        llama.common(n_kv_heads=16, d_head=256),
        Converter(read_gemma, lambda config: {"hidden_act": NAMES[config.activation]}),
    ),
)
OUTPUT_NORMS: Fields = ALWAYS | {"norm_order": "sandwich"}
GEMMA2 = family(
    "Gemma2",
    SETTINGS,
    name="Gemma 2",
    always=OUTPUT_NORMS,
    only={"use_bidirectional_attention": False},
    unused="cache_implementation sliding_window_size",
    others=(Converter(read_gemma2, write_gemma2),),
    limits=llama.limits_llama,
)
GEMMA3 = family(
    "Gemma3",
    SETTINGS,
    name="Gemma 3",
    model_type="gemma3_text",
    heads={
        name.replace("TextForCausal", "ForCausal"): head
        for name, head in decoder_heads("Gemma3Text", has_tags=False).items()
    },
    always=OUTPUT_NORMS | {"qk_norm": True},
    only={"use_bidirectional_attention": False, "attn_logit_softcapping": None},
    unused="cache_implementation",
    others=(Converter(read_gemma3, lambda config: _write_layers(config) | rotary.write_bases(config, BASES)),),
    limits=llama.limits_llama,
)
