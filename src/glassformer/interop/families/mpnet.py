"""MPNet (Song 2020): BERT with learned positions and a bias of the attention scores by distance, without token types.

The modules of transformers fix the padding id (1), the buckets (32) and the largest distance (128) as constants.
"""

from dataclasses import replace
from typing import Any

from glassformer.config import transformer as c
from glassformer.interop.families import bert
from glassformer.interop.family import Rule, attention, lines, rule
from glassformer.interop.hf_config import Fields, HFConfig

PADDING = 1
BIAS = c.RelativePositions(n_buckets=32, max_distance=128)
BLOCK = bert.BLOCK | attention("attention.attn.{}", "qkvo") | {"self_attn_norm": "attention.LayerNorm"}
SETTINGS = {name: setting for name, setting in bert.SETTINGS.items() if name != "n_token_types"}


def read_mpnet(hf: HFConfig, fields: Fields) -> Fields:
    hf.only("pad_token_id", PADDING)
    others: Fields = {"max_len": fields["max_len"] - PADDING - 1}
    if isinstance(fields["head"], c.TokenHead):  # its transform always has GELU
        others["activation"] = hf.choose("hidden_act", {"gelu": "gelu"}, "gelu")
    return bert.read_bert(hf, fields) | others


def write_mpnet(config: c.TransformerConfig) -> dict[str, Any]:
    rows = config.max_len + PADDING + 1
    return {"max_position_embeddings": rows, "relative_attention_num_buckets": BIAS.n_buckets}


def table_mpnet(config: c.TransformerConfig) -> list[Rule]:
    return [
        *lines("encoder.embeddings.", "mpnet.embeddings.", bert.EMBEDDINGS),
        rule("encoder.score_bias.table", "mpnet.encoder.relative_attention_bias"),
        *lines("encoder.blocks.{i}.", "mpnet.encoder.layer.{i}.", BLOCK),
        *bert.head_lines("mpnet.", config),
    ]


MPNET = replace(
    bert.ROBERTA,
    name="MPNet",
    model_type="mpnet",
    heads={f"MPNet{kind}": head for kind, head in bert.HEADS.items()},
    settings=SETTINGS,
    table=table_mpnet,
    always=bert.ALWAYS | {"positions": c.LearnedPositions(PADDING + 1), "relative_bias": BIAS},
    only={"relative_attention_num_buckets": BIAS.n_buckets},
    read_others=read_mpnet,
    write_others=write_mpnet,
    limits=lambda config: {f"model.pad_id: expected {PADDING}, got {config.pad_id}": config.pad_id != PADDING},
    prefix="mpnet.",
    repeats={
        "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    other_heads={"tokens": ("mpnet.pooler.*",), "vectors": ("lm_head.*",)},
    derived=("mpnet.embeddings.position_ids",),
    builder=None,
)
