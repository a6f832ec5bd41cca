"""BART (Lewis 2020): a post-norm encoder-decoder with learned positions from row 2 on, and a norm on the embeddings.

Marian has other positions and no such norm. This file also contains the functions that the two share.
"""

from dataclasses import replace
from typing import Any

from glassformer.apps.interop.equivalent import Recast, Weights, with_scales_and_biases
from glassformer.apps.interop.families.bert import ROBERTA_ROLES
from glassformer.apps.interop.family import QKV_OUT, Family, Rule, attention, lines, rule
from glassformer.apps.interop.hf_config import Fields, HFConfig, Settings, inside, settings
from glassformer.apps.interop.vocabulary_files import framed_byte_level
from glassformer.config.transformer import Head, LearnedPositions, SequenceHead, TokenHead, TransformerConfig

HEADS: dict[str, Head] = {
    "BartForConditionalGeneration": TokenHead(bias="constant"),
    "BartForSequenceClassification": SequenceHead(pooling="last", pooler="tanh"),
}
BARE = "BartModel"
PROJECTIONS = {"tokens": "lm_head", "sequence": "classification_head.out_proj"}
"""Kind of head → name of its projection."""
SHARED = "model.shared.weight"
REPEATS = {
    "lm_head.weight": "model.decoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight": SHARED,
    "model.encoder.embed_tokens.weight": SHARED,
}
DERIVED = ("model.encoder.version", "model.decoder.version")


def _sizes(name: str) -> Settings:
    sizes = settings(int, n_layers=f"{name}_layers", n_heads=f"{name}_attention_heads", d_ff=f"{name}_ffn_dim")
    return inside(name, sizes)


SETTINGS = _sizes("encoder") | _sizes("decoder")
SETTINGS |= settings(int, d_model="d_model") | settings(int, 1024, max_len="max_position_embeddings")
SETTINGS |= settings(float, 0.1, embedding_dropout="dropout", residual_dropout="dropout")
SETTINGS |= settings(float, 0.0, attention_dropout="attention_dropout", ff_dropout="activation_dropout")
SETTINGS |= settings(bool, True, tie_output="tie_word_embeddings")
SETTINGS |= settings(str, "gelu", activation="activation_function")
"""Settings of BART and Marian, as the next three tables."""
ALWAYS: Fields = {"norm_order": "post", "final_norm": False}
ONLY = dict.fromkeys(("normalize_before", "add_final_layer_norm", "add_bias_logits"), False)
UNUSED = (  # keys of training, of distillation, and of generation (forced tokens are in its own file); duplicate sizes
    "encoder_layerdrop decoder_layerdrop classif_dropout num_hidden_layers _num_labels save_step replacing_rate "
    "student_encoder_layers student_decoder_layers force_bos_token_to_be_generated"
)


def read_scale(hf: HFConfig, *, is_scaled: bool = False) -> Fields:
    return {"embedding_scale": 0.0 if hf.take("scale_embedding", bool, is_scaled) else 1.0}


def write_scale(config: TransformerConfig) -> dict[str, Any]:
    return {"scale_embedding": config.embedding_scale != 1}


def read_bart(hf: HFConfig, fields: Fields) -> Fields:
    return {"share_embeddings": fields["tie_output"]} | read_scale(hf)


def read_bare(hf: HFConfig, fields: Fields) -> Fields:
    if not fields["tie_output"]:
        hf.problem(f"tie_word_embeddings: expected true for {BARE}, which has no head, got false")
    return read_bart(hf, fields)


def limits_bart(config: TransformerConfig) -> dict[str, bool]:
    return {"model.decoder_start_id is missing": config.decoder_start_id is None}


BLOCK = attention("self_attn.{}_proj", QKV_OUT)
BLOCK |= attention("encoder_attn.{}_proj", QKV_OUT, ours="cross_attn")
BLOCK |= {"self_attn_norm": "self_attn_layer_norm", "cross_attn_norm": "encoder_attn_layer_norm"}
BLOCK |= {"ff.up_proj": "fc1", "ff.down_proj": "fc2", "ff_norm": "final_layer_norm"}


def table_bart(config: TransformerConfig) -> list[Rule]:
    """Return the table of names of BART and its relatives, which may lack positions and norms of the stacks."""
    table = [
        rule("output.bias", "final_logits_bias", is_row=True),
        rule("output.pooler", "classification_head.dense"),
        rule("output.proj", PROJECTIONS[config.head.kind]),
    ]
    if config.share_embeddings:
        table.append(rule("encoder.embeddings.tokens", "model.shared"))
    for stack in ("encoder", "decoder"):
        theirs = f"model.{stack}."
        if not config.share_embeddings:
            table.append(rule(f"{stack}.embeddings.tokens", f"{theirs}embed_tokens"))
        rest = {"embeddings.positions.table": "embed_positions", "embeddings.norm": "layernorm_embedding"}
        table += lines(f"{stack}.", theirs, rest | {"final_norm": "layer_norm"})
        table += lines(f"{stack}.blocks.{{i}}.", f"{theirs}layers.{{i}}.", BLOCK)
    return table


def recast_bart(config: TransformerConfig, weights: Weights) -> Recast:
    """Add missing scales and biases, including the bias of logits over tokens, which transformers always stores."""
    config, weights = with_scales_and_biases(config, weights)
    if not isinstance(config.head, TokenHead):
        return config, weights
    bias = weights.get("output.bias", next(iter(weights.values())).new_zeros(config.vocab_size))
    return replace(config, head=replace(config.head, bias="constant")), weights | {"output.bias": bias}


BART = Family(
    name="BART",
    model_type="bart",
    heads=HEADS,
    settings=SETTINGS | settings(int, vocab_size="vocab_size"),
    table=table_bart,
    always=ALWAYS | {"positions": LearnedPositions(offset=2), "embedding_norm": True},
    only=ONLY | {"extra_pos_embeddings": 2, "static_position_embeddings": False, "normalize_embedding": True},
    unused=UNUSED,
    read_others=read_bart,
    write_others=lambda config: {"forced_eos_token_id": None} | write_scale(config),
    limits=limits_bart,
    prefix="model.",
    recast=recast_bart,
    repeats=REPEATS,
    unread={SHARED: "model.encoder.embed_tokens.weight"},
    derived=DERIVED,
    builder=framed_byte_level,
    roles=ROBERTA_ROLES,  # its tokenizer is RoBERTa's
)
BART_WITHOUT_HEAD = replace(
    BART,
    name="BART without a head",
    heads={BARE: TokenHead()},
    read_others=read_bare,
    recast=with_scales_and_biases,
)
