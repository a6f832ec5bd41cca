"""OPT (Zhang 2022): a decoder with learned positions from row 2 on and ReLUs; its norms are pre or post."""

from typing import Any

from glassformer.apps.interop.equivalent import Recast, Weights, with_equal_biases, with_zero_biases
from glassformer.apps.interop.family import QKV_OUT, Family, Rule, attention, decoder_heads, lines, output_name, rule
from glassformer.apps.interop.hf_config import Fields, HFConfig, inside, settings
from glassformer.apps.interop.vocabulary_files import byte_level
from glassformer.config.transformer import LearnedPositions, NormalInit, TransformerConfig

SETTINGS = settings(int, n_layers="num_hidden_layers", n_heads="num_attention_heads", d_ff="ffn_dim")
SETTINGS = inside("decoder", SETTINGS)
SETTINGS |= settings(int, d_model="hidden_size", vocab_size="vocab_size", max_len="max_position_embeddings")
SETTINGS |= settings(float, 0.1, residual_dropout="dropout") | settings(
    float, 0.0, attention_dropout="attention_dropout"
)
SETTINGS |= settings(bool, True, tie_output="tie_word_embeddings", norm_weight="layer_norm_elementwise_affine")
SETTINGS |= settings(bool, True, qkv_bias="enable_bias", attn_out_bias="enable_bias", ff_bias="enable_bias")
SETTINGS |= settings(str, "relu", activation="activation_function")


def read_opt(hf: HFConfig, fields: Fields) -> Fields:
    width, d_model = hf.take("word_embed_proj_dim", int, fields["d_model"]), fields["d_model"]
    if width != d_model:
        hf.problem(
            f"word_embed_proj_dim {width} differs from hidden_size {d_model}: positions are added after the projection "
            "between them, and in glassformer before it"
        )
    if hf.take("do_layer_norm_before", bool, True):
        return {"norm_order": "pre", "final_norm": True}
    return {"norm_order": "post", "final_norm": False}


def write_opt(config: TransformerConfig) -> dict[str, Any]:
    return {"do_layer_norm_before": config.norm_order != "post", "word_embed_proj_dim": config.d_model}


BLOCK = attention("self_attn.{}_proj", QKV_OUT) | {"self_attn_norm": "self_attn_layer_norm"}
BLOCK |= {"ff.up_proj": "fc1", "ff.down_proj": "fc2", "ff_norm": "final_layer_norm"}


def table_opt(config: TransformerConfig) -> list[Rule]:
    stack = {"embeddings.tokens": "embed_tokens", "embeddings.positions.table": "embed_positions"}
    return [
        *lines("decoder.", "model.decoder.", stack | {"final_norm": "final_layer_norm"}),
        *lines("decoder.blocks.{i}.", "model.decoder.layers.{i}.", BLOCK),
        rule("output.proj", output_name(config)),
    ]


def recast_opt(config: TransformerConfig, weights: Weights) -> Recast:
    if config.norm_weight:
        config, weights = with_zero_biases(config, weights, "norm_bias")
    return with_equal_biases(config, weights, "qkv_bias", "attn_out_bias", "ff_bias")


OPT = Family(
    name="OPT",
    model_type="opt",
    heads=decoder_heads("OPT", has_tags=False),
    settings=SETTINGS,
    table=table_opt,
    always={"positions": LearnedPositions(offset=2), "norm_eps": 1e-5, "init": NormalInit(0.02)},
    only={"_remove_final_layer_norm": False},
    unused="layerdrop activation_dropout",
    read_others=read_opt,
    write_others=write_opt,
    prefix="model.",
    recast=recast_opt,
    repeats={"lm_head.weight": "model.decoder.embed_tokens.weight"},
    builder=byte_level,
    roles={"bos": "</s>", "eos": "</s>", "unk": "</s>", "pad": "<pad>"},
)
