"""ELECTRA (Clark 2020): BERT's blocks, with other heads. A discriminator is read without its head, as vectors."""

from dataclasses import replace

from glassformer.config import transformer as c
from glassformer.interop.equivalent import Recast, Weights, with_zero_biases
from glassformer.interop.families import bert
from glassformer.interop.family import Rule, lines, rule
from glassformer.interop.hf_config import Fields, HFConfig

HEADS: dict[str, c.Head] = {
    "ElectraForMaskedLM": c.TokenHead(transform=True, bias="learned"),
    "ElectraForSequenceClassification": c.SequenceHead(pooling="first", pooler="gelu"),
    "ElectraForTokenClassification": c.PositionHead(),
    "ElectraModel": c.VectorHead(pooling="mean"),
    "ElectraForPreTraining": c.VectorHead(pooling="mean"),
}


def read_electra(hf: HFConfig, fields: Fields) -> Fields:
    read: Fields = {"d_embedding": hf.take("embedding_size", int, 128), "embedding_bias": True}
    if isinstance(fields["head"], c.TokenHead):  # its transform always has GELU
        read["activation"] = hf.choose("hidden_act", {"gelu": "gelu"}, "gelu")
    return read


def recast_electra(config: c.TransformerConfig, weights: Weights) -> Recast:
    """Add every bias that ELECTRA and ALBERT have."""
    return with_zero_biases(*bert.recast_bert(config, weights), "embedding_bias")


def table_electra(config: c.TransformerConfig) -> list[Rule]:
    projections = {"tokens": "generator_lm_head", "sequence": "classifier.out_proj"}
    return [
        *bert.encoder_lines("electra."),
        rule("encoder.embeddings.projection", "electra.embeddings_project"),
        *lines("output.transform.", "generator_predictions.", {"dense": "dense", "norm": "LayerNorm"}),
        rule("output.pooler", "classifier.dense"),
        rule("output.proj", projections.get(config.head.kind, "classifier")),
        rule("output.bias", "generator_lm_head.bias"),
    ]


ELECTRA = replace(
    bert.BERT,
    name="ELECTRA",
    model_type="electra",
    heads=HEADS,
    table=table_electra,
    unused="summary_type summary_use_proj summary_activation summary_last_dropout",
    read_others=read_electra,
    write_others=lambda config: bert.write_bert(config) | {"embedding_size": config.table_width},
    prefix="electra.",
    drawn=(),
    recast=recast_electra,
    repeats={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    unread={},
    other_heads={"vectors": ("discriminator_predictions.*",)},
    derived=("electra.embeddings.position_ids",),
)
