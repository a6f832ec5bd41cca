"""Falcon (Almazrouei 2023): decoders with parallel sublayers and few key-value heads.

The 7B model has one key-value head and one norm per block. The new architecture (40B, 180B) has groups and two norms.
The models trained on RefinedWeb alone (`falcon-rw`, Penedo 2023) have sublayers in sequence, biases and ALiBi.
"""

from typing import Any

from glassformer.config.transformer import AlibiPositions, NormalInit, Positions, TransformerConfig
from glassformer.interop.equivalent import Recast, Weights, with_equal_biases, with_scales_and_biases
from glassformer.interop.families import bloom
from glassformer.interop.families.rotary import read_rotary, write_rotary
from glassformer.interop.family import Family, Rule, decoder_heads, lines, output_name, rule
from glassformer.interop.hf_config import Fields, HFConfig, inside, settings

SETTINGS = inside("decoder", settings(int, n_layers="num_hidden_layers", n_heads="num_attention_heads"))
SETTINGS |= settings(int, d_model="hidden_size", vocab_size="vocab_size")
SETTINGS |= settings(int, 2048, max_len="max_position_embeddings")
SETTINGS |= settings(float, 0.0, residual_dropout="hidden_dropout", attention_dropout="attention_dropout")
SETTINGS |= settings(float, 1e-5, norm_eps="layer_norm_epsilon") | settings(str, "gelu", activation="activation")
SETTINGS |= settings(bool, True, tie_output="tie_word_embeddings")
SETTINGS |= settings(bool, False, qkv_bias="bias", attn_out_bias="bias", ff_bias="bias")
ALIBI = AlibiPositions(scaled=True, rounded=True)
"""transformers computes the bias of a key in bfloat16, and adds it to the score before the division by √head_dim."""


def read_falcon(hf: HFConfig, fields: Fields) -> Fields:
    n_heads = fields["decoder.n_heads"]
    is_new, is_parallel = hf.take("new_decoder_architecture", bool, False), hf.take("parallel_attn", bool, True)
    has_one_key = hf.take("multi_query", bool, True)
    n_kv_heads, n_norms = hf.take("num_kv_heads", int, n_heads), hf.take("num_ln_in_parallel_attn", int, 1 + is_new)
    if not is_new:
        n_kv_heads, n_norms = 1 if has_one_key else n_heads, 1
    blocks: Fields = {"norm_order": "pre"}
    if is_new or is_parallel:
        blocks = {"norm_order": "parallel", "shared_norm": n_norms == 1}
    d_ff = hf.take("ffn_hidden_size", int, 4 * fields["d_model"])
    positions: Positions = ALIBI
    if hf.take("alibi", bool, False):
        hf.pass_over("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor")
    else:
        positions = read_rotary(hf, fields["max_len"])
    return {"decoder.n_kv_heads": n_kv_heads, "decoder.d_ff": d_ff, "positions": positions} | blocks


def write_falcon(config: TransformerConfig) -> dict[str, Any]:
    stack = config.head_stack
    n_kv_heads = config.attention_widths(stack).n_kv_heads
    is_new = config.norm_order == "parallel" and (not config.shared_norm or n_kv_heads not in (1, stack.n_heads))
    has_alibi = isinstance(config.positions, AlibiPositions)
    keys: dict[str, Any] = {"ffn_hidden_size": stack.d_ff, "alibi": has_alibi, "num_kv_heads": n_kv_heads}
    keys |= {"new_decoder_architecture": is_new, "parallel_attn": config.norm_order == "parallel"}
    keys |= {"multi_query": n_kv_heads == 1, "num_ln_in_parallel_attn": 2 - config.shared_norm if is_new else None}
    return keys | write_rotary(config.positions)


def table_falcon(config: TransformerConfig) -> list[Rule]:
    ours, theirs = "decoder.blocks.{i}.", "transformer.h.{i}."
    norms = {"self_attn_norm": "input_layernorm", "ff_norm": "post_attention_layernorm"}
    if config.norm_order == "parallel" and not config.shared_norm:
        norms = {"self_attn_norm": "ln_attn", "ff_norm": "ln_mlp"}
    return [
        *lines("decoder.", "transformer.", {"embeddings.tokens": "word_embeddings", "final_norm": "ln_f"}),
        *bloom.table_heads(f"{theirs}self_attention.", config),
        *lines(ours, theirs, bloom.BLOCK | norms),
        rule("output.proj", output_name(config)),
    ]


def recast_falcon(config: TransformerConfig, weights: Weights) -> Recast:
    config, weights = with_scales_and_biases(config, weights, "norm_bias")
    return with_equal_biases(config, weights, "qkv_bias", "attn_out_bias", "ff_bias")


FALCON = Family(
    name="Falcon",
    model_type="falcon",
    heads=decoder_heads("Falcon"),
    settings=SETTINGS,
    table=table_falcon,
    always={"fused_qkv": True, "init": NormalInit(0.02)},
    only={"apply_residual_connection_post_layernorm": False, "ff_factor": 4},
    read_others=read_falcon,
    write_others=write_falcon,
    prefix="transformer.",
    recast=recast_falcon,
    repeats={"lm_head.weight": "transformer.word_embeddings.weight"},
    derived=("transformer.h.*.self_attention.rotary_emb.inv_freq",),
    old_keys={"n_embed": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
    | {"n_head_kv": "num_kv_heads"},
    other_heads={"vectors": ("lm_head.weight",)},
    roles=dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>"),
)
