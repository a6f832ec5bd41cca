"""ALBERT (Lan 2020): BERT with narrow token embeddings, whose layers all have the same weights."""

from dataclasses import replace

from glassformer.config import transformer as c
from glassformer.interop.families import bert
from glassformer.interop.families.electra import recast_electra
from glassformer.interop.family import Rule, attention, lines, rule
from glassformer.interop.hf_config import Fields, HFConfig, settings

SETTINGS = bert.SETTINGS | settings(int, 128, d_embedding="embedding_size")
SETTINGS |= settings(str, "gelu_new", activation="hidden_act")
SETTINGS |= settings(float, 0.0, embedding_dropout="hidden_dropout_prob", residual_dropout="hidden_dropout_prob")
SETTINGS |= settings(float, 0.0, attention_dropout="attention_probs_dropout_prob")
BLOCK = attention("attention.{}", ("query", "key", "value", "dense")) | {"self_attn_norm": "attention.LayerNorm"}
BLOCK |= {"ff.up_proj": "ffn", "ff.down_proj": "ffn_output", "ff_norm": "full_layer_layer_norm"}


def read_albert(hf: HFConfig, fields: Fields) -> Fields:
    if fields["d_embedding"] == fields["d_model"]:
        hf.problem(f"embedding_size: expected another width than hidden_size, got {fields['d_model']}")
    head = fields["head"]
    if isinstance(head, c.VectorHead) and not hf.holds("pooler.weight"):
        head = c.VectorHead(pooling="mean")
    return {"head": head, "encoder.shared_layers": True}


def limits_albert(config: c.TransformerConfig) -> dict[str, bool]:
    return bert.limits_bert(config) | {"model.d_embedding: expected another width than d_model": not config.d_embedding}


def table_albert(config: c.TransformerConfig) -> list[Rule]:
    projections = {"tokens": "predictions.decoder"}
    return [
        *lines("encoder.embeddings.", "albert.embeddings.", bert.EMBEDDINGS),
        rule("encoder.embeddings.projection", "albert.encoder.embedding_hidden_mapping_in"),
        *lines("encoder.blocks.{i}.", "albert.encoder.albert_layer_groups.{i}.albert_layers.0.", BLOCK),
        *lines("output.transform.", "predictions.", {"dense": "dense", "norm": "LayerNorm"}),
        rule("output.pooler", "albert.pooler"),
        rule("output.proj", projections.get(config.head.kind, "classifier")),
        bert.bias_line("predictions", config),
    ]


ALBERT = replace(
    bert.BERT,
    name="ALBERT",
    model_type="albert",
    heads={f"Albert{kind}": head for kind, head in bert.HEADS.items()}
    | {"AlbertForPreTraining": bert.HEADS["ForMaskedLM"]},
    settings=SETTINGS,
    table=table_albert,
    always=bert.ALWAYS | {"positions": c.LearnedPositions(), "embedding_bias": True},
    only={
        "position_embedding_type": "absolute",
        **dict.fromkeys(("num_hidden_groups", "inner_group_num", "down_scale_factor"), 1),
        **dict.fromkeys(("net_structure_type", "gap_size", "num_memory_blocks"), 0),
        "layers_to_keep": [],
    },
    unused="classifier_dropout_prob",
    read_others=read_albert,
    write_others=lambda config: bert.write_bert(config) | {"num_hidden_groups": 1, "inner_group_num": 1},
    limits=limits_albert,
    prefix="albert.",
    drawn=("pooler.*",),
    recast=recast_electra,
    repeats={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    unread={"predictions.bias": "predictions.decoder.bias"},
    other_heads={"tokens": ("albert.pooler.*", "sop_classifier.*"), "vectors": ("predictions.*", "sop_classifier.*")},
    derived=("albert.embeddings.position_ids",),
    builder=None,
)
