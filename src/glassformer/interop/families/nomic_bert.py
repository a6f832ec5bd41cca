"""Nomic BERT (Nussbaum 2024): a post-norm encoder as BERT, with rotary positions, with gates and without biases.

The tensors have the names of the published files, which transformers 5 renames when it loads them.
"""

from dataclasses import replace
from typing import Any

from glassformer.config import transformer as c
from glassformer.interop.equivalent import Recast, Weights, with_relu2_as_gate, with_scales_and_biases
from glassformer.interop.families import bert
from glassformer.interop.families.rotary import read_rotary, write_rotary
from glassformer.interop.family import Rule, lines, rule
from glassformer.interop.hf_config import Fields, HFConfig, settings

HEADS: dict[str, c.Head] = {"NomicBertForMaskedLM": c.TokenHead(transform=True, bias="learned")}
HEADS |= {"NomicBertModel": c.VectorHead(pooling="mean")}
DEFAULTS = settings(str, "silu", activation="hidden_act")
DEFAULTS |= settings(float, 0.0, embedding_dropout="hidden_dropout_prob", residual_dropout="hidden_dropout_prob")
DEFAULTS |= settings(float, 0.0, attention_dropout="attention_probs_dropout_prob")
"""Settings of BERT with other defaults."""
OLD_KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
    "rotary_emb_base": "rope_theta",
}
OFF = "rotary_emb_interleaved parallel_block parallel_block_tied_norm prenorm use_rms_norm causal qkv_proj_bias "
OFF += "mlp_fc1_bias mlp_fc2_bias"
"""Keys of the published files that must be false."""


def read_nomic(hf: HFConfig, fields: Fields) -> Fields:
    hf.only("rotary_emb_scale_base")
    hf.only("rotary_scaling_factor")
    d_head = fields["d_model"] // max(fields["encoder.n_heads"], 1)
    return {
        "encoder.d_head": hf.take("head_dim", int, d_head),
        "positions": read_rotary(hf, fields["max_len"], base=1000.0),
    }


def write_nomic(config: c.TransformerConfig) -> dict[str, Any]:
    return {"head_dim": config.attention_widths(config.head_stack).d_head} | write_rotary(config.positions)


def table_nomic(config: c.TransformerConfig) -> list[Rule]:
    ours, theirs = "encoder.blocks.{i}.", "nomic_bert.encoder.layers.{i}."
    embeddings = {"tokens": "embeddings.word_embeddings", "token_types": "embeddings.token_type_embeddings"}
    block = {"self_attn.out_proj": "attn.out_proj", "self_attn_norm": "norm1", "ff_norm": "norm2"}
    block |= {"ff.up_proj": "mlp.fc11", "ff.gate_proj": "mlp.fc12", "ff.down_proj": "mlp.fc2"}
    transform = "cls.predictions.transform."
    return [
        *lines("encoder.embeddings.", "nomic_bert.", embeddings | {"norm": "emb_ln"}),
        rule(tuple(f"{ours}self_attn.{name}_proj" for name in "qkv"), f"{theirs}attn.Wqkv"),
        *lines(ours, theirs, block),
        *lines("output.transform.", transform, {"dense": "dense", "norm": "layer_norm"}),
        rule("output.proj", "cls.predictions.decoder"),
        bert.bias_line("cls.predictions", config),
    ]


def recast_nomic(config: c.TransformerConfig, weights: Weights) -> Recast:
    return with_relu2_as_gate(*with_scales_and_biases(config, weights, "norm_bias", logits=True))


NOMIC_BERT = replace(
    bert.BERT,
    name="Nomic BERT",
    model_type="nomic_bert",
    heads=HEADS,
    settings=bert.SETTINGS | DEFAULTS,
    table=table_nomic,
    always={
        **bert.ALWAYS,
        "gated_ff": True,
        "fused_qkv": True,
        "qkv_bias": False,
        "attn_out_bias": False,
        "ff_bias": False,
    },
    only={"activation_function": "swiglu", "rotary_emb_fraction": 1.0, **dict.fromkeys(OFF.split(), False)},
    unused="dense_seq_output embd_pdrop fused_bias_fc fused_dropout_add_ln max_trained_positions use_xentropy "
    "pad_vocab_size_multiple use_flash_attn type_vocab_size summary_activation summary_first_dropout "
    "summary_proj_to_labels summary_type summary_use_proj",
    read_others=read_nomic,
    write_others=write_nomic,
    prefix="nomic_bert.",
    drawn=(),
    recast=recast_nomic,
    repeats={
        "cls.predictions.decoder.weight": "nomic_bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    other_heads={"vectors": ("cls.*",)},
    derived=("nomic_bert.embeddings.position_ids",),
    old_names={},
    old_keys=OLD_KEYS,
)
