"""BART (Lewis 2020): a post-norm encoder-decoder with learned positions from row 2 on, and a norm on the embeddings.

Marian has other positions and no such norm. This file also contains the functions that the two share.
"""

from dataclasses import replace
from typing import Any

from glassformer.config.transformer import (
    Head,
    LearnedPositions,
    SequenceHead,
    SpanHead,
    Stack,
    TokenHead,
    TransformerConfig,
)
from glassformer.interop.compatibility import Compatibility
from glassformer.interop.equivalent import SCALES_AND_BIASES, Recast, Weights, with_scales_and_biases
from glassformer.interop.families.bert import ROBERTA_ROLES, SPAN
from glassformer.interop.family import Family, Rule, attention_lines, rule
from glassformer.interop.hf_config import HFConfig, Settings, settings, written
from glassformer.interop.vocabulary_files import framed_byte_level

HEADS: dict[str, Head] = {
    "BartForConditionalGeneration": TokenHead(bias="constant"),
    "BartForSequenceClassification": SequenceHead(pooling="last", pooler="tanh"),
    "BartForQuestionAnswering": SpanHead(),
}
BARE = "BartModel"
PROJECTIONS = {"tokens": "lm_head", "sequence": "classification_head.out_proj", "span": SPAN}
"""Kind of head → name of its projection."""
SHARED = "model.shared.weight"
REPEATS = {
    "lm_head.weight": "model.decoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight": SHARED,
    "model.encoder.embed_tokens.weight": SHARED,
}
SETTINGS = settings(int, d_model="d_model") | settings(int, 1024, max_len="max_position_embeddings")
SETTINGS |= settings(float, 0.1, embedding_dropout="dropout", residual_dropout="dropout")
SETTINGS |= settings(float, 0.0, attention_dropout="attention_dropout", ff_dropout="activation_dropout")
SETTINGS |= settings(bool, False, scale_embeddings="scale_embedding")
SETTINGS |= settings(str, "gelu", activation="activation_function")
DERIVED = ("model.encoder.version", "model.decoder.version")


def read_bart(hf: HFConfig, architecture: str) -> TransformerConfig:
    hf.only("extra_pos_embeddings", 2)
    hf.only("static_position_embeddings", False)
    hf.only("normalize_embedding", True)
    tied = hf.take("tie_word_embeddings", bool, True)
    if architecture == BARE and not tied:
        hf.problem(f"tie_word_embeddings: expected true for {BARE}, which has no head, got false")
    return replace(
        read_common(hf),
        vocab_size=hf.take("vocab_size", int),
        share_embeddings=tied,
        tie_output=tied,
        positions=LearnedPositions(offset=2),
        embedding_norm=True,
        head=HEADS.get(architecture, TokenHead()),
    )


def read_common(hf: HFConfig) -> TransformerConfig:
    """Read the keys that BART and Marian share."""
    hf.only("normalize_before", False)
    hf.only("add_final_layer_norm", False)
    hf.only("add_bias_logits", False)
    # Keys of training, of distillation, and of generation (forced tokens are in its own file); duplicate sizes.
    hf.pass_over("encoder_layerdrop", "decoder_layerdrop", "classif_dropout", "num_hidden_layers", "_num_labels")
    hf.pass_over("save_step", "replacing_rate", "student_encoder_layers", "student_decoder_layers")
    hf.pass_over("force_bos_token_to_be_generated")
    return TransformerConfig(
        encoder=Stack(**hf.fields(_sizes("encoder"))),
        decoder=Stack(**hf.fields(_sizes("decoder"))),
        norm_order="post",
        final_norm=False,
        **hf.fields(SETTINGS),
    )


def _sizes(name: str) -> Settings:
    """Return the settings of a stack."""
    return settings(int, n_layers=f"{name}_layers", n_heads=f"{name}_attention_heads", d_ff=f"{name}_ffn_dim")


def fit_bart(config: TransformerConfig) -> list[str]:
    fit = fit_common(config)
    fit.heads(HEADS.values())
    fit.needs(positions=LearnedPositions(offset=2), embedding_norm=True)
    fit.need("source_max_len", 0, config.max_len)
    fit.needs(source_vocab_size=0, share_embeddings=config.tie_output)
    return fit.done()


def fit_common(config: TransformerConfig) -> Compatibility:
    """Check the fields that BART and Marian share, except the head."""
    fit = Compatibility(config)
    fit.stack("encoder", present=True)
    fit.stack("decoder", present=True)
    fit.needs(norm_order="post", final_norm=False)
    fit.check("decoder_start_id", config.decoder_start_id is not None, "model.decoder_start_id is missing")
    fit.holds("d_model", "tie_output", "activation", "fused_qkv", "scale_embeddings", *SCALES_AND_BIASES)
    return fit


def write_bart(config: TransformerConfig) -> dict[str, Any]:
    return write_common(config) | {
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_output,
    }


def write_common(config: TransformerConfig) -> dict[str, Any]:
    """Return the keys that BART and Marian share."""
    assert config.is_encoder_decoder  # the configuration fits
    keys = written(SETTINGS, config) | {"forced_eos_token_id": None}
    for name, stack in config.stacks.items():
        keys |= written(_sizes(name), stack)
    return keys


def table_bart(config: TransformerConfig) -> list[Rule]:
    lines = table_common(config)
    for stack in ("encoder", "decoder"):
        lines.append(rule(f"{stack}.embeddings.positions.table", f"model.{stack}.embed_positions"))
        lines.append(rule(f"{stack}.embeddings.norm", f"model.{stack}.layernorm_embedding"))
    return lines


def table_common(config: TransformerConfig) -> list[Rule]:
    """Return the table of names that BART and Marian share."""
    lines = [
        rule("output.bias", "final_logits_bias", is_row=True),
        rule("output.pooler", "classification_head.dense"),
        rule("output.proj", PROJECTIONS[config.head.kind]),
    ]
    if config.share_embeddings:
        lines.append(rule("encoder.embeddings.tokens", "model.shared"))
    for stack in ("encoder", "decoder"):
        if not config.share_embeddings:
            lines.append(rule(f"{stack}.embeddings.tokens", f"model.{stack}.embed_tokens"))
        ours, theirs = f"{stack}.blocks.{{i}}.", f"model.{stack}.layers.{{i}}."
        for mine, other in (("self_attn", "self_attn"), ("cross_attn", "encoder_attn")):
            parts = (f"{theirs}{other}.{part}_proj" for part in ("q", "k", "v", "out"))
            lines += attention_lines(config, f"{ours}{mine}", *parts)
            lines.append(rule(f"{ours}{mine}_norm", f"{theirs}{other}_layer_norm"))
        lines.append(rule(f"{ours}ff.up_proj", f"{theirs}fc1"))
        lines.append(rule(f"{ours}ff.down_proj", f"{theirs}fc2"))
        lines.append(rule(f"{ours}ff_norm", f"{theirs}final_layer_norm"))
    return lines


def recast_bart(config: TransformerConfig, weights: Weights) -> Recast:
    """Add missing scales and biases, including the bias of logits over tokens, which transformers always stores."""
    config, weights = with_scales_and_biases(config, weights)
    if not isinstance(config.head, TokenHead):
        return config, weights
    bias = weights.get("output.bias", next(iter(weights.values())).new_zeros(config.vocab_size))
    return replace(config, head=TokenHead(bias="constant")), weights | {"output.bias": bias}


def fit_without_head(config: TransformerConfig) -> list[str]:
    """Return the misfits for BART without a head: its logits must use only the tied table, and no other tensor."""
    misfits = fit_bart(config)
    if config.head != TokenHead() or not config.tie_output:
        misfits.append("model.head: expected tokens without a bias, tied to the embeddings")
    return misfits


BART = Family(
    name="BART",
    model_type="bart",
    heads=HEADS,
    read=read_bart,
    fit=fit_bart,
    write=write_bart,
    table=table_bart,
    prefix="model.",
    recast=recast_bart,
    repeats=REPEATS,
    unread=lambda config: {} if config.share_embeddings else {SHARED: "model.encoder.embed_tokens.weight"},
    derived=DERIVED,
    builder=framed_byte_level,
    roles=ROBERTA_ROLES,  # its tokenizer is RoBERTa's
)
BART_WITHOUT_HEAD = replace(
    BART,
    name="BART without a head",
    heads={BARE: TokenHead()},
    fit=fit_without_head,
    bare=frozenset({BARE}),
    recast=with_scales_and_biases,
)
