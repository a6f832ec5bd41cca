"""GPT-Neo (Black 2021): GPT-2 with unscaled scores, without biases of queries, keys and values, and with windows."""

from dataclasses import replace
from typing import Any

from glassformer.apps.interop.equivalent import with_scales_and_biases
from glassformer.apps.interop.families.gpt2 import GPT2
from glassformer.apps.interop.families.windows import shortest, windows_of
from glassformer.apps.interop.family import QKV_OUT, Rule, attention, decoder_heads, lines, output_name, rule
from glassformer.apps.interop.hf_config import Fields, HFConfig, inside, settings
from glassformer.config.transformer import (
    MAX_LAYERS,
    LearnedPositions,
    NormalInit,
    TransformerConfig,
)

SETTINGS = inside("decoder", settings(int, n_layers="num_layers", n_heads="num_heads"))
SETTINGS |= settings(int, d_model="hidden_size", vocab_size="vocab_size", max_len="max_position_embeddings")
SETTINGS |= settings(float, 0.0, embedding_dropout="embed_dropout", residual_dropout="resid_dropout")
SETTINGS |= settings(float, 0.0, attention_dropout="attention_dropout")
SETTINGS |= settings(float, 1e-5, norm_eps="layer_norm_epsilon")
SETTINGS |= settings(bool, True, tie_output="tie_word_embeddings")
SETTINGS |= settings(str, "gelu_new", activation="activation_function")
GLOBAL, LOCAL = "global", "local"


def read_neo(hf: HFConfig, fields: Fields) -> Fields:
    return {
        "decoder.d_ff": hf.take("intermediate_size", int, 4 * fields["d_model"]),
        "decoder.window_pattern": _windows(hf, fields["decoder.n_layers"]),
    }


def _windows(hf: HFConfig, n_layers: int) -> tuple[int, ...]:
    """Read the window of each layer from `attention_types`: pairs of kinds and their number of repetitions."""
    window = hf.take("window_size", int, 256)
    types = hf.maybe("attention_types", list) or [[[GLOBAL, LOCAL], 12]]
    hf.pass_over("attention_layers")  # transformers derives it from attention_types
    try:
        kinds = [kind for kinds, n in types for _ in range(min(n, MAX_LAYERS)) for kind in kinds]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != n_layers or any(kind not in (GLOBAL, LOCAL) for kind in kinds):
        hf.problem(f"attention_types must name {n_layers} layers, each {GLOBAL} or {LOCAL}, as [[[KIND, …], TIMES], …]")
    if window < 1:
        hf.problem(f"window_size: expected at least 1, got {window}")
    return shortest([window if kind == LOCAL else 0 for kind in kinds])


def write_neo(config: TransformerConfig) -> dict[str, Any]:
    windows = windows_of(config)
    kinds = [LOCAL if window else GLOBAL for window in windows]
    n = len(kinds)
    period = next((k for k in range(1, n) if n % k == 0 and kinds == kinds[:k] * (n // k)), n)
    return {
        "intermediate_size": config.head_stack.d_ff,
        "attention_types": [[kinds[:period], n // max(period, 1)]],
        "attention_layers": kinds,
        "window_size": max(windows, default=0) or 256,
    }


def table_neo(config: TransformerConfig) -> list[Rule]:
    block = attention("attn.attention.{}_proj", QKV_OUT) | {"self_attn_norm": "ln_1", "ff_norm": "ln_2"}
    block |= {"ff.up_proj": "mlp.c_fc", "ff.down_proj": "mlp.c_proj"}
    return [
        *lines("decoder.embeddings.", "transformer.", {"tokens": "wte", "positions.table": "wpe"}),
        *lines("decoder.blocks.{i}.", "transformer.h.{i}.", block),
        rule("decoder.final_norm", "transformer.ln_f"),
        rule("output.proj", output_name(config)),
    ]


GPT_NEO = replace(
    GPT2,
    name="GPT-Neo",
    model_type="gpt_neo",
    heads=decoder_heads("GPTNeo"),
    settings=SETTINGS,
    table=table_neo,
    always={"positions": LearnedPositions(), "attention_scale": 1.0, "qkv_bias": False, "init": NormalInit(0.02)},
    only={},
    unused=GPT2.unused,
    read_others=read_neo,
    write_others=write_neo,
    recast=lambda config, weights: with_scales_and_biases(config, weights, "norm_bias", "attn_out_bias", "ff_bias"),
    derived=("transformer.h.*.attn.attention.bias", "transformer.h.*.attn.attention.masked_bias"),
)
