"""ModernBERT (Warner 2024) and EuroBERT (Boizard 2025): pre-norm encoders with rotary positions and gates.

ModernBERT has windows and hardly any biases. Its first attention has no norm of its own: it reads the embeddings, which
are normalised. EuroBERT has Llama's blocks, for masked language modelling, tagging and classification.
"""

from dataclasses import replace
from typing import Any

import torch

from glassformer.apps.interop import equivalent
from glassformer.apps.interop.families import bert, llama, rotary
from glassformer.apps.interop.family import Family, Rule, lines, rule
from glassformer.apps.interop.hf_config import (
    ACTIVATION_NAMES,
    ACTIVATIONS,
    SIZES,
    STACK,
    Converter,
    Fields,
    HFConfig,
    inside,
    settings,
)
from glassformer.config import transformer as c

HEADS: dict[str, c.Head] = {
    "ModernBertForMaskedLM": c.TokenHead(transform=True, bias="learned"),
    "ModernBertForSequenceClassification": c.SequenceHead(pooler="gelu", pooler_norm=True),
    "ModernBertForTokenClassification": c.PositionHead(transform=True),
    "ModernBertModel": c.VectorHead(pooling="mean"),
}
BASES = {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
"""The keys of the rotary base for layers without a window, and for layers with a window, with their defaults."""
POOLINGS: dict[str, Any] = {"cls": "first", "mean": "mean"}
POOLING_NAMES = {ours: theirs for theirs, ours in POOLINGS.items()}
POOLERS: dict[str, Any] = {name: name for name in ("gelu", "tanh", "relu")}
SETTINGS = inside("encoder", STACK) | SIZES | settings(int, 8192, max_len="max_position_embeddings")
SETTINGS |= settings(float, 1e-5, norm_eps="norm_eps")
SETTINGS |= settings(float, 0.0, embedding_dropout="embedding_dropout", ff_dropout="mlp_dropout")
SETTINGS |= settings(float, 0.0, attention_dropout="attention_dropout")
SETTINGS |= settings(bool, True, tie_output="tie_word_embeddings")
SETTINGS |= settings(bool, False, norm_bias="norm_bias", ff_bias="mlp_bias", head_bias="classifier_bias")
SETTINGS |= settings(bool, False, qkv_bias="attention_bias", attn_out_bias="attention_bias")
SETTINGS |= settings(str, "gelu", activation="hidden_activation")


def read_modernbert(hf: HFConfig, fields: Fields) -> Fields:
    every, local = max(hf.take("global_attn_every_n_layers", int, 3), 1), hf.take("local_attention", int, 128)
    if local < 0:
        hf.problem(f"local_attention: expected at least 0, got {local}")
    hf.only("rope_scaling")  # transformers adds it to the layers of both kinds
    sliding = rotary.sliding_layers(hf, lambda i: i % every != 0)
    return {
        "encoder.window_pattern": rotary.pattern_of(hf, sliding, max(local, 0) // 2 + 1),
        "positions": rotary.read_bases(hf, fields["max_len"], sliding, BASES),
        "head": _read_head(hf, fields),
    }


def _read_head(hf: HFConfig, fields: Fields) -> c.Head:
    head: c.Head = fields["head"]
    hf.pass_over("decoder_bias", "classifier_activation", "classifier_pooling")
    match head:
        case c.VectorHead():
            return head
        case c.SequenceHead():
            pooling = hf.choose("classifier_pooling", POOLINGS, "cls")
            return replace(head, pooling=pooling, pooler=hf.choose("classifier_activation", POOLERS, "gelu"))
    activation = hf.choose("classifier_activation", ACTIVATIONS, "gelu")
    if activation != fields["activation"]:
        hf.problem(f"classifier_activation: expected that of hidden_activation, got {activation}")
    if isinstance(head, c.TokenHead) and not hf.take("decoder_bias", bool, True):
        return replace(head, bias="none")
    return head


def write_modernbert(config: c.TransformerConfig) -> dict[str, Any]:
    windows, bases = rotary.windows_of(config), rotary.write_bases(config, BASES)
    keys: dict[str, Any] = {"layer_types": rotary.layer_types(config)}
    keys |= {key: bases[key] for key in ("rope_parameters", *BASES)}
    keys |= {"cls_token_id": config.bos_id, "sep_token_id": config.eos_id}
    keys["local_attention"] = 2 * (max(windows, default=0) - 1) if any(windows) else 128
    match config.head:
        case c.SequenceHead(pooler=pooler, pooling=pooling):
            keys["classifier_activation"] = POOLERS.get(pooler, "gelu")
            keys["classifier_pooling"] = POOLING_NAMES.get(pooling, "cls")
        case c.PositionHead():
            keys["classifier_activation"] = ACTIVATION_NAMES[config.activation]
        case c.TokenHead(bias=bias):
            keys["classifier_activation"] = ACTIVATION_NAMES[config.activation]
            keys["decoder_bias"] = bias != "none"
    return keys


def table_modernbert(config: c.TransformerConfig) -> list[Rule]:
    ours, theirs = "encoder.blocks.{i}.", "model.layers.{i}."
    block = {"self_attn.out_proj": "attn.Wo", "self_attn_norm": "attn_norm", "ff_norm": "mlp_norm"}
    return [
        *lines("encoder.embeddings.", "model.embeddings.", {"tokens": "tok_embeddings", "norm": "norm"}),
        rule(tuple(f"{ours}self_attn.{name}_proj" for name in "qkv"), f"{theirs}attn.Wqkv"),
        rule((f"{ours}ff.gate_proj", f"{ours}ff.up_proj"), f"{theirs}mlp.Wi"),
        *lines(ours, theirs, block | {"ff.down_proj": "mlp.Wo"}),
        rule("encoder.final_norm", "model.final_norm"),
        *lines("output.", "head.", {"pooler": "dense", "pooler_norm": "norm"}),
        *lines("output.transform.", "head.", {"dense": "dense", "norm": "norm"}),
        rule("output.proj", "decoder" if config.head.kind == "tokens" else "classifier"),
        rule("output", "decoder"),  # the bias
    ]


def recast_modernbert(config: c.TransformerConfig, weights: equivalent.Weights) -> equivalent.Recast:
    config, weights = equivalent.with_norm_scales(*equivalent.with_relu2_as_gate(config, weights))
    return equivalent.with_equal_biases(config, weights, "qkv_bias", "attn_out_bias")


MODERNBERT = Family(
    name="ModernBERT",
    model_type="modernbert",
    heads=HEADS,
    settings=SETTINGS,
    table=table_modernbert,
    always={
        "embedding_norm": True,
        "first_norm": False,
        "gated_ff": True,
        "fused_qkv": True,
        "init": c.NormalInit(0.02),
    },
    unused="cls_token_id deterministic_flash_attn initializer_cutoff_factor layer_norm_eps position_embedding_type "
    "reference_compile repad_logits_with_grad sparse_pred_ignore_index sparse_prediction",
    others=(Converter(read_modernbert, write_modernbert),),
    prefix="model.",
    recast=recast_modernbert,
    repeats={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    other_heads={"vectors": ("head.*", "decoder.*")},
    roles=bert.ROLES,
)

# EuroBERT

EURO_POOLINGS: dict[str, Any] = {"bos": "first", "mean": "mean"}
EURO_POOLING_NAMES = {ours: theirs for theirs, ours in EURO_POOLINGS.items()}


def read_eurobert(hf: HFConfig, fields: Fields) -> Fields:
    head = fields["head"]
    if isinstance(head, c.TokenHead) and fields["ff_bias"]:
        head = c.TokenHead(bias="learned")
    elif isinstance(head, c.SequenceHead):
        head = replace(head, pooling=hf.choose("classifier_pooling", EURO_POOLINGS, "late"))
    return {"head": head}


def write_eurobert(config: c.TransformerConfig) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if isinstance(config.head, c.SequenceHead):
        keys["classifier_pooling"] = EURO_POOLING_NAMES.get(config.head.pooling, "mean")
    if config.mask_id is not None:
        keys["mask_token_id"] = config.mask_id
    return keys


def limits_eurobert(config: c.TransformerConfig) -> dict[str, bool]:
    n_labels, pooler = getattr(config.head, "n_labels", 0), getattr(config.head, "pooler", "gelu")
    too_many = f"model.head.n_labels: expected at most d_model / 2 without a pooler, got {n_labels}"
    return llama.limits_llama(config) | {too_many: pooler == "none"}  # see `with_gelu_pooler`


def recast_eurobert(config: c.TransformerConfig, weights: equivalent.Weights) -> equivalent.Recast:
    """Add a pooler to a classifier; if only one of feed-forward and logits has biases, add zero biases to the other."""
    config, weights = with_gelu_pooler(*llama.recast_llama(config, weights))
    if config.ff_bias or (isinstance(config.head, c.TokenHead) and config.head.bias != "none"):
        return equivalent.with_zero_biases(config, weights, "ff_bias", logits=True)
    return config, weights


def with_gelu_pooler(config: c.TransformerConfig, weights: equivalent.Weights) -> equivalent.Recast:
    """Rewrite a linear classifier as a pooler with a GELU and a classifier after it: gelu(z) - gelu(-z) = z.

    The pooler (D, D) gives z, -z and zeros, which needs D ≥ 2 · n_labels.
    """
    head = config.head
    if not isinstance(head, c.SequenceHead) or head.pooler != "none" or 2 * head.n_labels > config.d_model:
        return config, weights
    proj, n = weights["output.proj.weight"], head.n_labels
    pooler = torch.cat([proj, -proj, proj.new_zeros(config.d_model - 2 * n, config.d_model)])
    signs = torch.cat([torch.eye(n), -torch.eye(n), torch.zeros(n, config.d_model - 2 * n)], dim=1)
    others = {"output.pooler.weight": pooler, "output.pooler.bias": proj.new_zeros(config.d_model)}
    return replace(config, head=replace(head, pooler="gelu")), weights | others | {"output.proj.weight": signs.to(proj)}


def table_eurobert(config: c.TransformerConfig) -> list[Rule]:
    if isinstance(config.head, c.TokenHead):
        return [*llama.table_llama(config), rule("output.bias", "lm_head.bias")]
    network = [entry for entry in llama.table_llama(config) if entry.ours != ("output.proj",)]
    return [*network, rule("output.pooler", "dense"), rule("output.proj", "classifier")]


EUROBERT = Family(
    name="EuroBERT",
    model_type="eurobert",
    heads={
        "EuroBertForMaskedLM": c.TokenHead(),
        "EuroBertForSequenceClassification": c.SequenceHead(pooler="gelu"),
        "EuroBertForTokenClassification": c.PositionHead(),
    },
    settings=llama.settings_of("encoder", norm_eps=1e-5) | llama.BIASES | llama.FF_BIAS,
    table=table_eurobert,
    always=llama.ALWAYS,
    unused="classifier_pooling clf_pooling hidden_dropout",  # only a classifier or training uses them
    others=(llama.common(side="encoder"), Converter(read_eurobert, write_eurobert)),
    limits=limits_eurobert,
    recast=recast_eurobert,
    repeats=llama.REPEATS,
    derived=llama.DERIVED,
)
