"""BERT (Devlin 2019) and its relatives: post-norm encoders with learned positions.

DistilBERT (Sanh 2019) has no token types and no pooler. In RoBERTa (Liu 2019), positions start after the id of the
padding token, and the heads have other names. XLM-RoBERTa and CamemBERT are RoBERTa with other tokenizers.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from glassformer.apps.interop.equivalent import with_scales_and_biases
from glassformer.apps.interop.family import QKV_OUT, Family, Rule, attention, lines, rule
from glassformer.apps.interop.hf_config import SIZES, STACK, Converter, Fields, HFConfig, inside, settings
from glassformer.apps.interop.vocabulary_files import MERGES, VOCAB, WORDS, framed_byte_level, word_piece
from glassformer.config import transformer as c

HEADS: dict[str, c.Head] = {
    "ForMaskedLM": c.TokenHead(transform=True, bias="learned"),
    "ForSequenceClassification": c.SequenceHead(pooling="first", pooler="tanh"),
    "ForTokenClassification": c.PositionHead(),
    "Model": c.VectorHead(pooling="first", pooler="tanh"),
}
"""For each class name without `Bert`, the head in glassformer."""
SETTINGS = inside("encoder", STACK) | SIZES | settings(int, 2, n_token_types="type_vocab_size")
SETTINGS |= settings(float, 0.1, embedding_dropout="hidden_dropout_prob", residual_dropout="hidden_dropout_prob")
SETTINGS |= settings(float, 0.1, attention_dropout="attention_probs_dropout_prob")
SETTINGS |= settings(float, 1e-12, norm_eps="layer_norm_eps")
SETTINGS |= settings(bool, True, tie_output="tie_word_embeddings")
SETTINGS |= settings(str, "gelu", activation="hidden_act")
ALWAYS: Fields = {"norm_order": "post", "final_norm": False, "embedding_norm": True, "init": c.NormalInit(0.02)}
"""Fields of BERT, RoBERTa and DistilBERT."""


def read_bert(hf: HFConfig, fields: Fields) -> Fields:
    head = fields["head"]
    has_pooler = not isinstance(head, c.VectorHead) or hf.holds("pooler.dense.weight")
    return {"head": head if has_pooler else c.VectorHead(pooling="mean")}


def read_roberta(hf: HFConfig, fields: Fields) -> Fields:
    offset = hf.take("pad_token_id", int, 1) + 1
    others = {"max_len": fields["max_len"] - offset, "positions": c.LearnedPositions(offset)}
    if isinstance(fields["head"], c.TokenHead):  # the transform of RoBERTa's head always has GELU
        others["activation"] = hf.choose("hidden_act", {"gelu": "gelu"}, "gelu")
    return read_bert(hf, fields) | others


def write_bert(config: c.TransformerConfig) -> dict[str, Any]:
    rows = config.max_len + getattr(config.positions, "offset", 0)
    return {"max_position_embeddings": rows, "position_embedding_type": "absolute"}


def limits_bert(config: c.TransformerConfig) -> dict[str, bool]:
    return {"model.n_token_types: expected at least 1, got 0": config.n_token_types == 0}


def limits_roberta(config: c.TransformerConfig) -> dict[str, bool]:
    return limits_bert(config) | {"model.pad_id is missing: positions start after it": config.pad_id is None}


recast_bert = partial(with_scales_and_biases, logits=True)
"""Function that adds every bias that BERT, RoBERTa and DistilBERT have."""


EMBEDDINGS = {"tokens": "word_embeddings", "positions.table": "position_embeddings", "norm": "LayerNorm"}
EMBEDDINGS["token_types"] = "token_type_embeddings"
BLOCK = attention("attention.{}", ("self.query", "self.key", "self.value", "output.dense"))
BLOCK |= {"self_attn_norm": "attention.output.LayerNorm", "ff_norm": "output.LayerNorm"}
BLOCK |= {"ff.up_proj": "intermediate.dense", "ff.down_proj": "output.dense"}


def encoder_lines(prefix: str) -> list[Rule]:
    blocks = lines("encoder.blocks.{i}.", f"{prefix}encoder.layer.{{i}}.", BLOCK)
    return lines("encoder.embeddings.", f"{prefix}embeddings.", EMBEDDINGS) + blocks


def table_bert(config: c.TransformerConfig) -> list[Rule]:
    transform = "cls.predictions.transform."
    return [
        *encoder_lines("bert."),
        *lines("output.transform.", transform, {"dense": "dense", "norm": "LayerNorm"}),
        rule("output.pooler", "bert.pooler.dense"),
        rule("output.proj", "cls.predictions.decoder" if config.head.kind == "tokens" else "classifier"),
        bias_line("cls.predictions", config),
    ]


def bias_line(head: str, config: c.TransformerConfig) -> Rule:
    """Return the rule for the bias of logits over tokens; `head` is the module with the projection `decoder`."""
    if config.tie_output:
        return rule("output.bias", f"{head}.bias")
    # transformers adds the projection's own bias; the other bias is stored but not used: see `Family.unread`
    return rule("output.bias", f"{head}.decoder.bias")


def table_roberta(config: c.TransformerConfig) -> list[Rule]:
    projections = {"tokens": "lm_head.decoder", "sequence": "classifier.out_proj"}
    return [
        *encoder_lines("roberta."),
        *lines("output.transform.", "lm_head.", {"dense": "dense", "norm": "layer_norm"}),
        rule("output.pooler", "classifier.dense" if config.head.kind == "sequence" else "roberta.pooler.dense"),
        rule("output.proj", projections.get(config.head.kind, "classifier")),
        bias_line("lm_head", config),
    ]


ROLES = {role: f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
ROBERTA_ROLES = {"bos": "<s>", "cls": "<s>", "eos": "</s>", "sep": "</s>"}
ROBERTA_ROLES |= {role: f"<{role}>" for role in ("unk", "pad", "mask")}
OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}

BERT = Family(
    name="BERT",
    model_type="bert",
    heads={f"Bert{kind}": head for kind, head in HEADS.items()} | {"BertForPreTraining": HEADS["ForMaskedLM"]},
    settings=SETTINGS,
    table=table_bert,
    always=ALWAYS | {"positions": c.LearnedPositions()},
    only={"position_embedding_type": "absolute"},
    # Keys of the original implementation for other heads. They do not change the pooler.
    unused="directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head "
    "pooler_type",
    others=(Converter(read_bert, write_bert),),
    limits=limits_bert,
    prefix="bert.",
    drawn=("pooler.dense.*",),
    recast=recast_bert,
    repeats={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    unread={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    other_heads={"tokens": ("bert.pooler.*", "cls.seq_relationship.*")},
    derived=("bert.embeddings.position_ids",),
    old_names=OLD_NAMES,
    builder=word_piece,
    vocabulary=(WORDS,),
    roles=ROLES,
)
ROBERTA = replace(
    BERT,
    name="RoBERTa",
    model_type="roberta",
    heads={f"Roberta{kind}": head for kind, head in HEADS.items()},
    table=table_roberta,
    unused="",
    others=(Converter(read_roberta, write_bert),),
    limits=limits_roberta,
    prefix="roberta.",
    repeats={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    unread={"lm_head.bias": "lm_head.decoder.bias"},
    other_heads={"tokens": ("roberta.pooler.*",)},
    derived=("roberta.embeddings.position_ids",),
    builder=framed_byte_level,
    vocabulary=(VOCAB, MERGES),
    roles=ROBERTA_ROLES,
)


def _with_pieces(name: str, model_type: str, prefix: str) -> Family:
    """Return RoBERTa under another name, with a SentencePiece tokenizer. Its class names begin with `prefix`."""
    heads = {f"{prefix}{kind}": head for kind, head in HEADS.items()}
    return replace(ROBERTA, name=name, model_type=model_type, heads=heads, builder=None)


XLM_ROBERTA = _with_pieces("XLM-RoBERTa", "xlm-roberta", "XLMRoberta")
CAMEMBERT = _with_pieces("CamemBERT", "camembert", "Camembert")

# DistilBERT

DISTILBERT_SETTINGS = inside("encoder", settings(int, n_layers="n_layers", n_heads="n_heads", d_ff="hidden_dim"))
DISTILBERT_SETTINGS |= settings(int, d_model="dim", vocab_size="vocab_size", max_len="max_position_embeddings")
DISTILBERT_SETTINGS |= settings(float, 0.1, embedding_dropout="dropout", residual_dropout="dropout")
DISTILBERT_SETTINGS |= settings(float, 0.1, attention_dropout="attention_dropout")
DISTILBERT_SETTINGS |= settings(bool, True, tie_output="tie_word_embeddings")
DISTILBERT_SETTINGS |= settings(str, "gelu", activation="activation")


DISTILBERT_BLOCK = attention("attention.{}_lin", QKV_OUT)
DISTILBERT_BLOCK |= {"self_attn_norm": "sa_layer_norm", "ff_norm": "output_layer_norm"}
DISTILBERT_BLOCK |= {"ff.up_proj": "ffn.lin1", "ff.down_proj": "ffn.lin2"}


def table_distilbert(config: c.TransformerConfig) -> list[Rule]:
    return [
        *lines("encoder.embeddings.", "distilbert.embeddings.", EMBEDDINGS),
        *lines("encoder.blocks.{i}.", "distilbert.transformer.layer.{i}.", DISTILBERT_BLOCK),
        *lines("output.transform.", "vocab_", {"dense": "transform", "norm": "layer_norm"}),
        rule("output.pooler", "pre_classifier"),
        rule("output.proj", "vocab_projector" if config.head.kind == "tokens" else "classifier"),
        rule("output.bias", "vocab_projector.bias"),
    ]


DISTILBERT = Family(
    name="DistilBERT",
    model_type="distilbert",
    heads={
        "DistilBertForMaskedLM": HEADS["ForMaskedLM"],
        "DistilBertForSequenceClassification": c.SequenceHead(pooling="first", pooler="relu"),
        "DistilBertForTokenClassification": HEADS["ForTokenClassification"],
        "DistilBertModel": c.VectorHead(pooling="mean"),
    },
    settings=DISTILBERT_SETTINGS,
    table=table_distilbert,
    always=ALWAYS | {"positions": c.LearnedPositions(), "norm_eps": 1e-12},
    # Sinusoids are stored as an ordinary table; the key only freezes them in training.
    unused="sinusoidal_pos_embds qa_dropout seq_classif_dropout tie_weights_",
    others=(Converter(write=lambda config: {"sinusoidal_pos_embds": False}),),
    prefix="distilbert.",
    recast=recast_bert,
    repeats={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    derived=("distilbert.embeddings.position_ids",),
    old_names=OLD_NAMES,
    builder=word_piece,
    vocabulary=(WORDS,),
    roles=ROLES,
)
