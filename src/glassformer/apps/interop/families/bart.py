"""BART (Lewis 2020): a post-norm encoder-decoder with learned positions from row 2 on, and a norm on the embeddings.

Marian (Junczys-Dowmunt 2018), as in OPUS-MT, is the encoder-decoder of Vaswani (2017) with sinusoids in halves and
no norm on the embeddings. So an export permutes the residual channels of that Transformer, and writes a Marian.

mBART (Liu 2020), Pegasus (Zhang 2020) and M2M-100 (Fan 2020) are BART and Marian with a norm before each sublayer.
M2M-100 and NLLB (2022) count the positions of their sinusoids from the id of the padding token + 1.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glassformer.apps.interop.equivalent import Recast, Weights, with_halves, with_scales_and_biases
from glassformer.apps.interop.families.bert import ROBERTA_ROLES
from glassformer.apps.interop.family import QKV_OUT, Family, Rule, attention, lines, rule
from glassformer.apps.interop.hf_config import Converter, Fields, HFConfig, Settings, inside, settings
from glassformer.apps.interop.vocabulary_files import Parts, framed_byte_level
from glassformer.common.errors import UserError
from glassformer.config import transformer as c

TOKENS = c.TokenHead(bias="constant")
BARE = "BartModel"
PROJECTIONS = {"tokens": "lm_head", "sequence": "classification_head.out_proj"}
"""For each kind of head, the name of its projection."""
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
"""Settings of BART and Marian. The next three tables belong to both families, too."""
ALWAYS: Fields = {"norm_order": "post", "final_norm": False}
ONLY = dict.fromkeys(("normalize_before", "add_final_layer_norm", "add_bias_logits"), False)
UNUSED = (  # keys for training, distillation and generation (whose file has the forced tokens), and duplicates of sizes
    "encoder_layerdrop decoder_layerdrop classif_dropout num_hidden_layers _num_labels save_step replacing_rate "
    "student_encoder_layers student_decoder_layers force_bos_token_to_be_generated"
)


def read_scale(hf: HFConfig, *, is_scaled: bool = False) -> Fields:
    return {"embedding_scale": 0.0 if hf.take("scale_embedding", bool, is_scaled) else 1.0}


def read_bart(hf: HFConfig, fields: Fields) -> Fields:
    return {"share_embeddings": fields["tie_output"]} | read_scale(hf)


def write_bart(config: c.TransformerConfig) -> dict[str, Any]:
    return {"forced_eos_token_id": None, "scale_embedding": config.embedding_scale != 1}


def read_bare(hf: HFConfig, fields: Fields) -> Fields:
    if not fields["tie_output"]:
        hf.problem(f"tie_word_embeddings: expected true for {BARE}, which has no head, got false")
    return read_bart(hf, fields)


def limits_bart(config: c.TransformerConfig) -> dict[str, bool]:
    return {"model.decoder_start_id is missing": config.decoder_start_id is None}


BLOCK = attention("self_attn.{}_proj", QKV_OUT)
BLOCK |= attention("encoder_attn.{}_proj", QKV_OUT, ours="cross_attn")
BLOCK |= {"self_attn_norm": "self_attn_layer_norm", "cross_attn_norm": "encoder_attn_layer_norm"}
BLOCK |= {"ff.up_proj": "fc1", "ff.down_proj": "fc2", "ff_norm": "final_layer_norm"}


def table_bart(config: c.TransformerConfig) -> list[Rule]:
    """Return the table of names of BART and its relatives, some of which have no tables of positions or final norms."""
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


def recast_bart(config: c.TransformerConfig, weights: Weights) -> Recast:
    """Add missing scales and biases, including the bias of logits over tokens, which transformers always stores."""
    config, weights = with_scales_and_biases(config, weights)
    if not isinstance(config.head, c.TokenHead):
        return config, weights
    bias = weights.get("output.bias", next(iter(weights.values())).new_zeros(config.vocab_size))
    return replace(config, head=replace(config.head, bias="constant")), weights | {"output.bias": bias}


BART = Family(
    name="BART",
    model_type="bart",
    heads={
        "BartForConditionalGeneration": TOKENS,
        "BartForSequenceClassification": c.SequenceHead(pooling="last", pooler="tanh"),
    },
    settings=SETTINGS | settings(int, vocab_size="vocab_size"),
    table=table_bart,
    always=ALWAYS | {"positions": c.LearnedPositions(offset=2), "embedding_norm": True},
    only=ONLY | {"extra_pos_embeddings": 2, "static_position_embeddings": False, "normalize_embedding": True},
    unused=UNUSED,
    others=(Converter(read_bart, write_bart),),
    limits=limits_bart,
    prefix="model.",
    recast=recast_bart,
    repeats=REPEATS,
    unread={SHARED: "model.encoder.embed_tokens.weight"},
    derived=DERIVED,
    builder=framed_byte_level,
    roles=ROBERTA_ROLES,  # BART has the tokenizer of RoBERTa
)
BART_WITHOUT_HEAD = replace(
    BART,
    name="BART without a head",
    heads={BARE: c.TokenHead()},
    others=(Converter(read_bare, write_bart),),
    recast=with_scales_and_biases,
)

# Marian

STATIC = {"static_position_embeddings": True, "normalize_embedding": False}


def read_marian(hf: HFConfig, fields: Fields) -> Fields:
    share = hf.take("share_encoder_decoder_embeddings", bool, True)
    n_source = hf.take("vocab_size", int)
    n_target = hf.take("decoder_vocab_size", int, n_source)
    if share and n_target != n_source:
        hf.problem(f"decoder_vocab_size: expected vocab_size ({n_source}) for a shared table, got {n_target}")
    return {
        "vocab_size": n_target,
        "source_vocab_size": 0 if share or n_source == n_target else n_source,
        "share_embeddings": share and fields["tie_output"],
        **read_scale(hf),
    }


def write_marian(config: c.TransformerConfig) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "vocab_size": config.encoder_vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": config.share_embeddings,
        "max_position_embeddings": max(config.max_len, config.source_max_len),
        **write_bart(config),
        **STATIC,
    }
    if config.activation == "silu":
        keys["activation_function"] = "swish"
    return keys


def limits_marian(config: c.TransformerConfig) -> dict[str, bool]:
    in_one = config.pad_id is not None and config.pad_id >= min(config.vocab_size, config.encoder_vocab_size)
    return limits_bart(config) | {"model.pad_id: expected an id that is in both vocabularies": in_one}


def sinusoids(config: c.TransformerConfig) -> dict[str, Tensor]:
    """Return the tables of sinusoids, which older files contain, with the precision of transformers."""
    place, width = (torch.arange(n, dtype=torch.float64) for n in (config.max_len, config.d_model // 2))
    angle = place[:, None] / 10000 ** (2 * width / config.d_model)
    table = torch.cat((angle.sin(), angle.cos()), dim=-1).float()
    return {f"model.{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")}


MARIAN = Family(
    name="Marian",
    model_type="marian",
    heads={"MarianMTModel": TOKENS},
    settings=SETTINGS,
    table=table_bart,
    always=ALWAYS | {"positions": c.SinusoidalPositions("halves")},
    only=ONLY | STATIC,
    unused=f"{UNUSED} extra_pos_embeddings",  # sinusoids have no rows to skip
    others=(Converter(read_marian, write_marian),),
    limits=limits_marian,
    prefix="model.",
    recast=lambda config, weights: recast_bart(*with_halves(config, weights)),
    repeats=REPEATS,
    fixed=sinusoids,
    derived=(*DERIVED, SHARED),  # the shared table is not used if the tables are not tied
)

# mBART, Pegasus and M2M-100

PRE_NORM: Fields = {"norm_order": "pre", "final_norm": True}
PRE_NORM_KEYS = {"normalize_before": True, "add_final_layer_norm": True}
STARTS_WITH_THE_LAST_TOKEN = "its decoder starts with the last token of the text, and not with decoder_start_token_id"

MBART = replace(
    BART,
    name="mBART",
    model_type="mbart",
    heads={"MBartForConditionalGeneration": TOKENS},
    refused=dict.fromkeys(("MBartForSequenceClassification", "MBartModel"), STARTS_WITH_THE_LAST_TOKEN),
    always={**BART.always, **PRE_NORM},
    only={**BART.only, **PRE_NORM_KEYS},
    builder=None,
)
PEGASUS = replace(
    MARIAN,
    name="Pegasus",
    model_type="pegasus",
    heads={"PegasusForConditionalGeneration": TOKENS},
    settings=BART.settings,
    always={**MARIAN.always, **PRE_NORM},
    only={**MARIAN.only, **PRE_NORM_KEYS},
    others=BART.others,
    limits=BART.limits,
    unread=BART.unread,
    derived=BART.derived,
    stores_fixed=True,
    roles={"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
)


def read_m2m100(hf: HFConfig, fields: Fields) -> Fields:
    pad, start = hf.take("pad_token_id", int, 1), hf.take("decoder_start_token_id", int, 2)
    if pad == start:
        hf.problem(f"decoder_start_token_id: expected another id than pad_token_id, got {start}")
    positions = c.SinusoidalPositions("halves", pad + 1, ends_at_base=True)
    return read_bart(hf, fields) | read_scale(hf, is_scaled=True) | {"positions": positions}


def limits_m2m100(config: c.TransformerConfig) -> dict[str, bool]:
    return limits_bart(config) | {"model.pad_id is missing: positions start after it": config.pad_id is None}


def no_fast_tokenizer(parts: Parts) -> None:
    """Raise `UserError`: the only tokenizer of M2M-100 in transformers writes no `tokenizer.json` (NLLB's does)."""
    raise UserError(
        f"{parts.folder} has no tokenizer.json, and transformers has no fast tokenizer for M2M-100 that writes one: "
        f"build it from {' and '.join(PIECES)} with the package tokenizers, or import an NLLB model"
    )


PIECES = ("vocab.json", "sentencepiece.bpe.model")
M2M100 = replace(
    BART,
    name="M2M-100",
    model_type="m2m_100",
    heads={"M2M100ForConditionalGeneration": c.TokenHead()},
    refused={},
    settings=BART.settings
    | settings(str, "relu", activation="activation_function")
    | settings(float, 0.1, attention_dropout="attention_dropout"),
    always={**BART.always, **PRE_NORM, "embedding_norm": False},
    only={**MARIAN.only, **PRE_NORM_KEYS},
    others=(Converter(read_m2m100, write_bart),),
    limits=limits_m2m100,
    recast=lambda config, weights: with_scales_and_biases(*with_halves(config, weights)),
    derived=(*BART.derived, "model.encoder.embed_positions.weights", "model.decoder.embed_positions.weights"),
    builder=no_fast_tokenizer,
    vocabulary=PIECES,
)
