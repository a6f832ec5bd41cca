"""EuroBERT (Boizard 2025): Llama's blocks as an encoder, for masked language modelling, tagging, classification."""

from dataclasses import replace
from typing import Any

import torch

from glassformer.apps.interop.equivalent import Recast, Weights, with_zero_biases
from glassformer.apps.interop.families import llama
from glassformer.apps.interop.family import Family, Rule, rule
from glassformer.apps.interop.hf_config import Fields, HFConfig
from glassformer.config.transformer import Head, PositionHead, SequenceHead, TokenHead, TransformerConfig

HEADS: dict[str, Head] = {
    "EuroBertForMaskedLM": TokenHead(),
    "EuroBertForSequenceClassification": SequenceHead(pooler="gelu"),
    "EuroBertForTokenClassification": PositionHead(),
}
POOLINGS: dict[str, Any] = {"bos": "first", "mean": "mean"}
POOLING_NAMES = {ours: theirs for theirs, ours in POOLINGS.items()}


def read_eurobert(hf: HFConfig, fields: Fields) -> Fields:
    head = fields["head"]
    if isinstance(head, TokenHead) and fields["ff_bias"]:
        head = TokenHead(bias="learned")
    elif isinstance(head, SequenceHead):
        head = replace(head, pooling=hf.choose("classifier_pooling", POOLINGS, "late"))
    return llama.read_common(hf, fields, side="encoder") | {"head": head}


def write_eurobert(config: TransformerConfig) -> dict[str, Any]:
    keys = llama.write_common(config)
    if isinstance(config.head, SequenceHead):
        keys["classifier_pooling"] = POOLING_NAMES.get(config.head.pooling, "mean")
    if config.mask_id is not None:
        keys["mask_token_id"] = config.mask_id
    return keys


def limits_eurobert(config: TransformerConfig) -> dict[str, bool]:
    n_labels, pooler = getattr(config.head, "n_labels", 0), getattr(config.head, "pooler", "gelu")
    too_many = f"model.head.n_labels: expected at most d_model / 2 without a pooler, got {n_labels}"
    return llama.limits_llama(config) | {too_many: pooler == "none"}  # see `with_gelu_pooler`


def recast_eurobert(config: TransformerConfig, weights: Weights) -> Recast:
    """Add a pooler to a classifier; if only one of feed-forward and logits has biases, add zero biases to the other."""
    config, weights = with_gelu_pooler(*llama.recast_llama(config, weights))
    if config.ff_bias or (isinstance(config.head, TokenHead) and config.head.bias != "none"):
        return with_zero_biases(config, weights, "ff_bias", logits=True)
    return config, weights


def with_gelu_pooler(config: TransformerConfig, weights: Weights) -> Recast:
    """Rewrite a linear classifier as a pooler with a GELU and a classifier after it: gelu(z) - gelu(-z) = z.

    The pooler (D, D) gives z, -z and zeros, which needs D ≥ 2 · n_labels.
    """
    head = config.head
    if not isinstance(head, SequenceHead) or head.pooler != "none" or 2 * head.n_labels > config.d_model:
        return config, weights
    proj, n = weights["output.proj.weight"], head.n_labels
    pooler = torch.cat([proj, -proj, proj.new_zeros(config.d_model - 2 * n, config.d_model)])
    signs = torch.cat([torch.eye(n), -torch.eye(n), torch.zeros(n, config.d_model - 2 * n)], dim=1)
    others = {"output.pooler.weight": pooler, "output.pooler.bias": proj.new_zeros(config.d_model)}
    return replace(config, head=replace(head, pooler="gelu")), weights | others | {"output.proj.weight": signs.to(proj)}


def table_eurobert(config: TransformerConfig) -> list[Rule]:
    if isinstance(config.head, TokenHead):
        return [*llama.table_llama(config), rule("output.bias", "lm_head.bias")]
    network = [entry for entry in llama.table_llama(config) if entry.ours != ("output.proj",)]
    return [*network, rule("output.pooler", "dense"), rule("output.proj", "classifier")]


EUROBERT = Family(
    name="EuroBERT",
    model_type="eurobert",
    heads=HEADS,
    settings=llama.settings_of("encoder", norm_eps=1e-5) | llama.BIASES | llama.FF_BIAS,
    table=table_eurobert,
    always=llama.ALWAYS,
    unused="classifier_pooling clf_pooling hidden_dropout",  # only a classifier, or training, reads them
    read_others=read_eurobert,
    write_others=write_eurobert,
    limits=limits_eurobert,
    recast=recast_eurobert,
    repeats=llama.REPEATS,
    derived=llama.DERIVED,
)
