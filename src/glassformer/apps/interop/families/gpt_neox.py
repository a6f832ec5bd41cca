"""GPT-NeoX (Black 2022) and Pythia: a decoder with parallel sublayers that rotates a part of each head."""

from typing import Any

from glassformer.apps.interop.equivalent import Recast, Weights, with_equal_biases, with_scales_and_biases
from glassformer.apps.interop.families import bloom
from glassformer.apps.interop.families.rotary import read_rotary, write_rotary
from glassformer.apps.interop.family import Family, Rule, decoder_heads, lines, output_name, rule
from glassformer.apps.interop.hf_config import Fields, HFConfig, inside, settings
from glassformer.config.transformer import NormalInit, TransformerConfig

SIZES = settings(int, n_layers="num_hidden_layers", n_heads="num_attention_heads", d_ff="intermediate_size")
SETTINGS = settings(int, d_model="hidden_size", vocab_size="vocab_size", max_len="max_position_embeddings")
SETTINGS |= settings(float, 0.0, embedding_dropout="hidden_dropout", residual_dropout="hidden_dropout")
SETTINGS |= settings(float, 0.0, attention_dropout="attention_dropout") | settings(
    float, 1e-5, norm_eps="layer_norm_eps"
)
SETTINGS |= settings(bool, False, tie_output="tie_word_embeddings")
SETTINGS |= settings(bool, True, qkv_bias="attention_bias", attn_out_bias="attention_bias")
SETTINGS |= settings(str, "gelu", activation="hidden_act")
OLD_KEYS = {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
"""Former name of a key → its name today."""


def read_neox(hf: HFConfig, fields: Fields) -> Fields:
    is_parallel = hf.take("use_parallel_residual", bool, True)
    positions = read_rotary(hf, fields["max_len"], fraction=0.25)
    rope = hf.maybe("rope_scaling", dict) or hf.maybe("rope_parameters", dict) or {}
    read = {"rotary_pct": (positions.fraction, 0.25), "rotary_emb_base": (positions.base, 10000.0)}
    for old, (value, default) in read.items():
        current = OLD_KEYS[old]
        if current not in rope and hf.table.get(old) is None and value != default:
            hf.problem(f"{current}: transformers reads only rope_parameters or {old}, and uses {default}, not {value}")
    return {"norm_order": "parallel" if is_parallel else "pre", "positions": positions}


def write_neox(config: TransformerConfig) -> dict[str, Any]:
    keys = write_rotary(config.positions, with_fraction=True)
    old = {"rotary_emb_base": keys["rope_theta"], "rotary_pct": keys["partial_rotary_factor"]}
    return {"use_parallel_residual": config.norm_order == "parallel"} | keys | old


def table_neox(config: TransformerConfig) -> list[Rule]:
    return [
        *lines("decoder.", "gpt_neox.", {"embeddings.tokens": "embed_in", "final_norm": "final_layer_norm"}),
        *bloom.table_heads("gpt_neox.layers.{i}.attention.", config),
        *lines("decoder.blocks.{i}.", "gpt_neox.layers.{i}.", bloom.BLOCK),
        rule("output.proj", output_name(config, "embed_out")),
    ]


def recast_neox(config: TransformerConfig, weights: Weights) -> Recast:
    config, weights = with_scales_and_biases(config, weights, "norm_bias", "ff_bias")
    return with_equal_biases(config, weights, "qkv_bias", "attn_out_bias")


GPT_NEOX = Family(
    name="GPT-NeoX",
    model_type="gpt_neox",
    heads=decoder_heads("GPTNeoX"),
    settings=SETTINGS | inside("decoder", SIZES),
    table=table_neox,
    always={"fused_qkv": True, "init": NormalInit(0.02)},
    read_others=read_neox,
    write_others=write_neox,
    prefix="gpt_neox.",
    recast=recast_neox,
    repeats={"embed_out.weight": "gpt_neox.embed_in.weight"},
    derived=(
        "gpt_neox.layers.*.attention.bias",
        "gpt_neox.layers.*.attention.masked_bias",
        "gpt_neox.layers.*.attention.rotary_emb.inv_freq",
    ),
    old_names={"lm_head.weight": "embed_out.weight"},
    old_keys=OLD_KEYS,
    roles=dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>"),
)
