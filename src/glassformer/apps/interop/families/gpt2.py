"""GPT-2 (Radford 2019): a pre-norm decoder with learned positions; its matrices are stored (in, out)."""

from typing import Any

from glassformer.apps.interop.equivalent import with_scales_and_biases
from glassformer.apps.interop.family import Family, Rule, lines, output_name, rule
from glassformer.apps.interop.hf_config import Fields, HFConfig, inside, settings
from glassformer.apps.interop.vocabulary_files import byte_level
from glassformer.config.transformer import (
    Head,
    LearnedPositions,
    NormalInit,
    PositionHead,
    SequenceHead,
    TokenHead,
    TransformerConfig,
    VectorHead,
)

HEADS: dict[str, Head] = {
    "GPT2LMHeadModel": TokenHead(),
    "GPT2ForSequenceClassification": SequenceHead(pooling="last", bias=False),
    "GPT2ForTokenClassification": PositionHead(),
    "GPT2Model": VectorHead(pooling="mean"),
}
SETTINGS = inside("decoder", settings(int, n_layers="n_layer", n_heads="n_head"))
SETTINGS |= settings(int, d_model="n_embd", vocab_size="vocab_size", max_len="n_positions")
SETTINGS |= settings(float, 0.1, embedding_dropout="embd_pdrop", residual_dropout="resid_pdrop")
SETTINGS |= settings(float, 0.1, attention_dropout="attn_pdrop")
SETTINGS |= settings(float, 1e-5, norm_eps="layer_norm_epsilon")
SETTINGS |= settings(bool, True, tie_output="tie_word_embeddings")
SETTINGS |= settings(str, "gelu_new", activation="activation_function")


def read_others(hf: HFConfig, fields: Fields) -> Fields:
    max_len = fields["max_len"]
    if hf.take("n_ctx", int, max_len) != max_len:
        hf.problem(f"n_ctx {hf.table['n_ctx']} differs from n_positions {max_len}")
    attention_scale = None if hf.take("scale_attn_weights", bool, True) else 1.0
    return {"decoder.d_ff": hf.take("n_inner", int, 4 * fields["d_model"]), "attention_scale": attention_scale}


def write_others(config: TransformerConfig) -> dict[str, Any]:
    scale = config.attention_scale is None
    return {"n_ctx": config.max_len, "n_inner": config.head_stack.d_ff, "scale_attn_weights": scale}


def table_gpt2(config: TransformerConfig) -> list[Rule]:
    ours, theirs = "decoder.blocks.{i}.", "transformer.h.{i}."
    matrices = {"self_attn.out_proj": "attn.c_proj", "ff.up_proj": "mlp.c_fc", "ff.down_proj": "mlp.c_proj"}
    return [
        *lines("decoder.embeddings.", "transformer.", {"tokens": "wte", "positions.table": "wpe"}),
        *lines(ours, theirs, {"self_attn_norm": "ln_1", "ff_norm": "ln_2"}),
        rule(tuple(f"{ours}self_attn.{name}_proj" for name in "qkv"), f"{theirs}attn.c_attn", transposed=True),
        *lines(ours, theirs, matrices, transposed=True),
        rule("decoder.final_norm", "transformer.ln_f"),
        rule("output.proj", output_name(config)),
    ]


GPT2 = Family(
    name="GPT-2",
    model_type="gpt2",
    heads=HEADS,
    settings=SETTINGS,
    table=table_gpt2,
    always={"positions": LearnedPositions(), "fused_qkv": True, "init": NormalInit(0.02, residual="scaled")},
    only={"scale_attn_by_inverse_layer_idx": False, "n_special": 0},
    # Keys of a head that is not supported, and of scores in fp32
    unused="summary_type summary_use_proj summary_activation summary_first_dropout summary_proj_to_labels "
    "reorder_and_upcast_attn predict_special_tokens",
    read_others=read_others,
    write_others=write_others,
    prefix="transformer.",
    recast=with_scales_and_biases,
    repeats={"lm_head.weight": "transformer.wte.weight"},
    derived=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
    builder=byte_level,
    roles=dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>"),
)
