"""Llama (Touvron 2023), Mistral, Qwen2, Qwen3: pre-norm decoders with rotary positions, RMSNorm, gated feed-forward.

They differ in biases, attention windows and query/key norms. Some other parts fit after a rewrite
(`equivalent.py`): norms without a scale fit all four, and so do squared ReLUs without a gate. Other layers without a
gate fit Llama only, also with biases. Mixtral (Jiang 2024) and Qwen3-MoE have experts as feed-forward layers.
"""

from functools import partial
from typing import Any

from glassformer.apps.interop.equivalent import Recast, Weights, with_gates_of_one, with_norm_scales, with_relu2_as_gate
from glassformer.apps.interop.families.rotary import (
    layer_types,
    pattern_of,
    read_rotary,
    read_window,
    sliding_layers,
    window,
    windows_of,
    write_rotary,
)
from glassformer.apps.interop.family import Family, Rule, attention, decoder_heads, lines, output_name, rule
from glassformer.apps.interop.hf_config import SIZES, STACK, Converter, Fields, HFConfig, Settings, inside, settings
from glassformer.apps.interop.vocabulary_files import qwen_byte_level
from glassformer.config.transformer import Balance, BalanceLoss, Experts, NoBalance, NormalInit, TransformerConfig

SETTINGS = SIZES | settings(float, 0.0, attention_dropout="attention_dropout")
SETTINGS |= settings(bool, False, tie_output="tie_word_embeddings")
SETTINGS |= settings(str, "silu", activation="hidden_act")
REPEATS = {"lm_head.weight": "model.embed_tokens.weight"}
DERIVED = ("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")
BIASES = settings(bool, False, qkv_bias="attention_bias", attn_out_bias="attention_bias")
FF_BIAS = settings(bool, False, ff_bias="mlp_bias")
ALWAYS: Fields = {"norm": "rmsnorm", "gated_ff": True, "init": NormalInit(0.02)}
ALWAYS |= {"qkv_bias": False, "attn_out_bias": False, "ff_bias": False}


def settings_of(side: str, norm_eps: float = 1e-6) -> Settings:
    """Return the settings of a stack with Llama's blocks; `norm_eps` is the default of the key of epsilon."""
    return SETTINGS | settings(float, norm_eps, norm_eps="rms_norm_eps") | inside(side, STACK)


def common(n_kv_heads: int = 0, d_head: int = 0, side: str = "decoder", **rotary: Any) -> Converter:
    """Return the converter of heads and positions; `rotary` has the defaults of `read_rotary`.

    `n_kv_heads` and `d_head` are the defaults of their keys; 0 means n_heads and D / n_heads.
    """

    def read(hf: HFConfig, fields: Fields) -> Fields:
        n_heads = fields[f"{side}.n_heads"]
        kv_heads = hf.maybe("num_key_value_heads", int)
        if kv_heads is None:  # null means n_heads; a missing key means the family's default
            kv_heads = n_heads if "num_key_value_heads" in hf.table else n_kv_heads or n_heads
        return {
            f"{side}.n_kv_heads": kv_heads,
            f"{side}.d_head": hf.take("head_dim", int, d_head or fields["d_model"] // max(n_heads, 1)),
            "positions": read_rotary(hf, fields["max_len"], **rotary),
        }

    def write(config: TransformerConfig) -> dict[str, Any]:
        widths = config.attention_widths(config.head_stack)
        heads = {"num_key_value_heads": widths.n_kv_heads, "head_dim": widths.d_head}
        return heads | write_rotary(config.positions, with_fraction="fraction" in rotary)

    return Converter(read, write)


def read_qwen(hf: HFConfig, fields: Fields) -> Fields:
    """Read the windows: `layer_types` names their layers; without it, they begin at layer `max_window_layers`."""
    first = hf.take("max_window_layers", int, 28)
    length = read_window(hf, 4096) if hf.take("use_sliding_window", bool, False) else None
    hf.pass_over("sliding_window")
    sliding = sliding_layers(hf, lambda i: length is not None and i >= first)
    return {"decoder.window_pattern": pattern_of(hf, sliding, length)}


def write_qwen(config: TransformerConfig) -> dict[str, Any]:
    windows = windows_of(config)
    if not any(windows):
        return {"use_sliding_window": False}
    return {
        "use_sliding_window": True,
        "sliding_window": max(windows),
        "max_window_layers": next(i for i, window in enumerate(windows) if window),
        "layer_types": layer_types(config),
    }


def limits_llama(config: TransformerConfig) -> dict[str, bool]:
    """Return a limit of the width of a head, which the configuration classes of Llama and EuroBERT check."""
    return {"model.d_model must be divisible by n_heads": config.d_model % config.head_stack.n_heads != 0}


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
    """Return a family with Llama's blocks. Its class names begin with `prefix`; `others` replaces any fields."""
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
    others=(common(),),
    limits=limits_llama,
    recast=recast_llama,
)
MISTRAL = family("Mistral", settings_of("decoder"), others=(common(n_kv_heads=8), window(4096)))
QWEN: dict[str, Any] = {"builder": qwen_byte_level, "roles": dict.fromkeys(("eos", "pad"), "<|endoftext|>")}
QWEN2 = family(
    "Qwen2",
    settings_of("decoder"),
    always=ALWAYS | {"qkv_bias": True},
    others=(common(32), Converter(read_qwen, write_qwen)),
    **QWEN,
)
QWEN3 = family(
    "Qwen3",
    settings_of("decoder") | BIASES,
    always=ALWAYS | {"qk_norm": True},
    others=(common(32, d_head=128), Converter(read_qwen, write_qwen)),
    **QWEN,
)


# Experts


def experts(n_experts: int, n_active: int, key: str) -> Converter:
    """Return the converter of experts. Their number has the key `key`; the other arguments are defaults of keys."""

    def read(hf: HFConfig, fields: Fields) -> Fields:
        weight = hf.take("router_aux_loss_coef", float, 0.001)
        balance: Balance = BalanceLoss(weight) if weight > 0 else NoBalance()
        sizes = hf.take(key, int, n_experts), hf.take("num_experts_per_tok", int, n_active)
        return {"experts": Experts(*sizes, balance=balance)}

    def write(config: TransformerConfig) -> dict[str, Any]:
        experts = config.experts or Experts()
        weight = experts.balance.weight if isinstance(experts.balance, BalanceLoss) else 0.0
        return {key: experts.n_experts, "num_experts_per_tok": experts.n_active, "router_aux_loss_coef": weight}

    return Converter(read, write)


def table_experts(config: TransformerConfig, layer: str, projections: tuple[str, str, str]) -> list[Rule]:
    """Return the table for a layer of experts named `layer`, with the names of gate, up and down projections."""
    n_experts = (config.experts or Experts()).n_experts
    ours, theirs = "decoder.blocks.{i}.ff.", f"model.layers.{{i}}.{layer}."
    return [
        *(entry for entry in table_llama(config) if ".ff." not in entry.ours[0]),
        *lines(ours, theirs, {"router.proj": "gate"}),
        *(
            rule(f"{ours}{mine}_proj", tuple(f"{theirs}experts.{i}.{other}" for i in range(n_experts)))
            for mine, other in zip(("gate", "up", "down"), projections, strict=True)
        ),
    ]


MIXTRAL = family(
    "Mixtral",
    settings_of("decoder", norm_eps=1e-5),
    unused="output_router_logits router_jitter_noise",
    table=partial(table_experts, layer="block_sparse_moe", projections=("w1", "w3", "w2")),
    others=(common(n_kv_heads=8, base=1e6), window(), experts(8, 2, "num_local_experts")),
)


def read_qwen3_moe(hf: HFConfig, fields: Fields) -> Fields:
    windows: Fields = {}
    if hf.take("use_sliding_window", bool, False):
        windows = window().read(hf, fields)
    hf.pass_over("sliding_window")
    return windows | {"experts.normalize": hf.take("norm_topk_prob", bool, False)}


def write_qwen3_moe(config: TransformerConfig) -> dict[str, Any]:
    keys = {"use_sliding_window": any(windows_of(config))} | window().write(config)
    keys |= {"norm_topk_prob": (config.experts or Experts()).normalize}
    return keys | {"decoder_sparse_step": 1, "mlp_only_layers": [], "intermediate_size": config.head_stack.d_ff}


QWEN3_MOE = family(
    "Qwen3Moe",
    SETTINGS
    | settings(float, 1e-6, norm_eps="rms_norm_eps")
    | inside("decoder", STACK | settings(int, d_ff="moe_intermediate_size"))
    | BIASES,
    name="Qwen3-MoE",
    model_type="qwen3_moe",
    always=ALWAYS | {"qk_norm": True},
    only={"decoder_sparse_step": 1, "mlp_only_layers": []},
    unused="intermediate_size max_window_layers output_router_logits",
    old_keys={"num_local_experts": "num_experts"},
    table=partial(table_experts, layer="mlp", projections=("gate_proj", "up_proj", "down_proj")),
    others=(common(n_kv_heads=4), Converter(read_qwen3_moe, write_qwen3_moe), experts(128, 8, "num_experts")),
    **QWEN,
)
