"""Llama (Touvron 2023), Mistral, Qwen2, Qwen3: pre-norm decoders with rotary positions, RMSNorm, gated feed-forward.

They differ in biases, attention windows and query/key norms. A norm without a scale also fits. A feed-forward without
a gate fits Llama, where it may have biases; with squared ReLUs it fits all four (`equivalent.py`).
"""

from functools import partial
from typing import Any

from glassformer.apps.interop.equivalent import Recast, Weights, with_gates_of_one, with_norm_scales, with_relu2_as_gate
from glassformer.apps.interop.families.rotary import read_rotary, write_rotary
from glassformer.apps.interop.families.windows import (
    layer_types,
    pattern_of,
    read_window,
    sliding_layers,
    windows_of,
    with_window,
    write_window,
)
from glassformer.apps.interop.family import Family, Rule, attention, decoder_heads, lines, output_name, rule
from glassformer.apps.interop.hf_config import Fields, HFConfig, Settings, inside, settings
from glassformer.apps.interop.vocabulary_files import qwen_byte_level
from glassformer.config.transformer import NormalInit, TransformerConfig

SIZES = settings(int, n_layers="num_hidden_layers", n_heads="num_attention_heads", d_ff="intermediate_size")
SETTINGS = settings(int, d_model="hidden_size", vocab_size="vocab_size", max_len="max_position_embeddings")
SETTINGS |= settings(float, 0.0, attention_dropout="attention_dropout")
SETTINGS |= settings(bool, False, tie_output="tie_word_embeddings")
SETTINGS |= settings(str, "silu", activation="hidden_act")
REPEATS = {"lm_head.weight": "model.embed_tokens.weight"}
DERIVED = ("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")
BIASES = settings(bool, False, qkv_bias="attention_bias", attn_out_bias="attention_bias")
FF_BIAS = settings(bool, False, ff_bias="mlp_bias")
ALWAYS: Fields = {"norm": "rmsnorm", "gated_ff": True, "init": NormalInit(0.02)}
ALWAYS |= {"qkv_bias": False, "attn_out_bias": False, "ff_bias": False}


def settings_of(side: str, norm_eps: float = 1e-6) -> Settings:
    """Return the settings of a stack with Llama's blocks; `norm_eps` is the default of the key."""
    return SETTINGS | settings(float, norm_eps, norm_eps="rms_norm_eps") | inside(side, SIZES)


def read_common(
    hf: HFConfig,
    fields: Fields,
    n_kv_heads: int = 0,
    d_head: int = 0,
    side: str = "decoder",
    **rotary: Any,
) -> Fields:
    """Read heads and positions; the defaults are `n_kv_heads` (0 = n_heads) and `d_head` (0 = D / n_heads).

    `rotary` has the defaults of `read_rotary`.
    """
    n_heads = fields[f"{side}.n_heads"]
    kv_heads = hf.maybe("num_key_value_heads", int)
    if kv_heads is None:  # null means n_heads; a missing key means the family's default
        kv_heads = n_heads if "num_key_value_heads" in hf.table else n_kv_heads or n_heads
    return {
        f"{side}.n_kv_heads": kv_heads,
        f"{side}.d_head": hf.take("head_dim", int, d_head or fields["d_model"] // max(n_heads, 1)),
        "positions": read_rotary(hf, fields["max_len"], **rotary),
    }


def read_qwen(hf: HFConfig, fields: Fields, d_head: int = 0) -> Fields:
    return read_common(hf, fields, 32, d_head) | {"decoder.window_pattern": _windows(hf)}


def _windows(hf: HFConfig) -> tuple[int, ...]:
    """Return `window_pattern`: windows in the layers from `max_window_layers` on, or in those of `layer_types`."""
    first = hf.take("max_window_layers", int, 28)
    window = read_window(hf, 4096) if hf.take("use_sliding_window", bool, False) else None
    hf.pass_over("sliding_window")
    return pattern_of(hf, sliding_layers(hf, lambda i: window is not None and i >= first), window)


def limits_llama(config: TransformerConfig) -> dict[str, bool]:
    """Return a limit for every head_dim: the configuration classes of Llama and EuroBERT check it."""
    return {"model.d_model must be divisible by n_heads": config.d_model % config.head_stack.n_heads != 0}


def write_common(config: TransformerConfig, with_fraction: bool = False) -> dict[str, Any]:
    """Return the keys of heads and positions; `with_fraction` is that of `write_rotary`."""
    widths = config.attention_widths(config.head_stack)
    heads = {"num_key_value_heads": widths.n_kv_heads, "head_dim": widths.d_head}
    return heads | write_rotary(config.positions, with_fraction)


def write_qwen(config: TransformerConfig) -> dict[str, Any]:
    windows = windows_of(config)
    if not any(windows):
        return write_common(config) | {"use_sliding_window": False}
    return write_common(config) | {
        "use_sliding_window": True,
        "sliding_window": max(windows),
        "max_window_layers": next(i for i, window in enumerate(windows) if window),
        "layer_types": layer_types(config),
    }


BLOCK = attention("self_attn.{}_proj", "qkvo")
BLOCK |= {f"self_attn.{name}_norm": f"self_attn.{name}_norm" for name in "qk"}
BLOCK |= {f"ff.{name}_proj": f"mlp.{name}_proj" for name in ("gate", "up", "down")}
BLOCK |= {"self_attn_norm": "input_layernorm", "ff_norm": "post_attention_layernorm"}


def table_llama(config: TransformerConfig) -> list[Rule]:
    (side,) = config.stacks
    return [
        *lines(f"{side}.", "model.", {"embeddings.tokens": "embed_tokens", "final_norm": "norm"}),
        *lines(f"{side}.blocks.{{i}}.", "model.layers.{i}.", BLOCK),
        rule("output.proj", output_name(config, of_tags="score")),
    ]


def recast_common(config: TransformerConfig, weights: Weights) -> Recast:
    return with_relu2_as_gate(*with_norm_scales(config, weights))


def recast_llama(config: TransformerConfig, weights: Weights) -> Recast:
    return with_gates_of_one(*recast_common(config, weights))


def family(prefix: str, settings: Settings, **others: Any) -> Family:
    """Return a family with Llama's blocks; `prefix` is that of its classes, and `others` replace any field."""
    fields: dict[str, Any] = {
        "name": prefix,
        "model_type": prefix.lower(),
        "heads": decoder_heads(prefix),
        "settings": settings,
        "table": table_llama,
        "always": ALWAYS,
        "recast": recast_common,
        "repeats": REPEATS,
        "derived": DERIVED,
        "prefix": "model.",
        "other_heads": {"vectors": ("lm_head.weight",)},
    }
    return Family(**(fields | others))


LLAMA = family(
    "Llama",
    settings_of("decoder") | BIASES | FF_BIAS,
    read_others=read_common,
    write_others=write_common,
    limits=limits_llama,
    recast=recast_llama,
)
MISTRAL = family(
    "Mistral",
    settings_of("decoder"),
    read_others=lambda hf, fields: with_window(hf, read_common(hf, fields, n_kv_heads=8), default=4096),
    write_others=lambda config: write_common(config) | write_window(config),
)
QWEN: dict[str, Any] = {"write_others": write_qwen, "builder": qwen_byte_level}
QWEN |= {"roles": {"eos": "<|endoftext|>", "pad": "<|endoftext|>"}}
QWEN2 = family("Qwen2", settings_of("decoder"), always=ALWAYS | {"qkv_bias": True}, read_others=read_qwen, **QWEN)
QWEN3 = family(
    "Qwen3",
    settings_of("decoder") | BIASES,
    always=ALWAYS | {"qk_norm": True},
    read_others=partial(read_qwen, d_head=128),
    **QWEN,
)
