"""DistilBERT (Sanh 2019): BERT's blocks under other names, without token types and without a pooler."""

from typing import Any

from glassformer.config import transformer as c
from glassformer.interop.families.bert import OLD_NAMES, ROLES, SPAN, fit_encoder, recast_bert
from glassformer.interop.family import Family, Rule, attention_lines, rule
from glassformer.interop.hf_config import HFConfig, settings, written
from glassformer.interop.vocabulary_files import WORDS, word_piece

HEADS: dict[str, c.Head] = {
    "DistilBertForMaskedLM": c.TokenHead(transform=True, bias="learned"),
    "DistilBertForSequenceClassification": c.SequenceHead(pooling="first", pooler="relu"),
    "DistilBertForTokenClassification": c.PositionHead(),
    "DistilBertForQuestionAnswering": c.SpanHead(),
    "DistilBertModel": c.VectorHead(pooling="mean"),
}
NORM_EPS = 1e-12
SIZES = settings(int, n_layers="n_layers", n_heads="n_heads", d_ff="hidden_dim")
SETTINGS = settings(int, d_model="dim", vocab_size="vocab_size", max_len="max_position_embeddings")
SETTINGS |= settings(float, 0.1, embedding_dropout="dropout", residual_dropout="dropout")
SETTINGS |= settings(float, 0.1, attention_dropout="attention_dropout")
SETTINGS |= settings(bool, True, tie_output="tie_word_embeddings")
SETTINGS |= settings(str, "gelu", activation="activation")


def read_distilbert(hf: HFConfig, architecture: str) -> c.TransformerConfig:
    # Sinusoids are stored as an ordinary table; the key only freezes them in training.
    hf.pass_over("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_")
    return c.TransformerConfig(
        encoder=c.Stack(**hf.fields(SIZES)),
        positions=c.LearnedPositions(),
        norm_eps=NORM_EPS,
        norm_order="post",
        final_norm=False,
        embedding_norm=True,
        head=HEADS[architecture],
        init=c.NormalInit(0.02),
        **hf.fields(SETTINGS),
    )


def fit_distilbert(config: c.TransformerConfig) -> list[str]:
    fit = fit_encoder(config)
    fit.needs(positions=c.LearnedPositions(), norm_eps=NORM_EPS)
    fit.heads(HEADS.values(), "none")
    return fit.done()


def write_distilbert(config: c.TransformerConfig) -> dict[str, Any]:
    return written(SETTINGS, config) | written(SIZES, config.head_stack) | {"sinusoidal_pos_embds": False}


def table_distilbert(config: c.TransformerConfig) -> list[Rule]:
    ours, theirs = "encoder.blocks.{i}.", "distilbert.transformer.layer.{i}."
    q, k, v, out = (f"{theirs}attention.{name}_lin" for name in ("q", "k", "v", "out"))
    return [
        rule("encoder.embeddings.tokens", "distilbert.embeddings.word_embeddings"),
        rule("encoder.embeddings.positions.table", "distilbert.embeddings.position_embeddings"),
        rule("encoder.embeddings.norm", "distilbert.embeddings.LayerNorm"),
        *attention_lines(config, f"{ours}self_attn", q, k, v, out),
        rule(f"{ours}self_attn_norm", f"{theirs}sa_layer_norm"),
        rule(f"{ours}ff.up_proj", f"{theirs}ffn.lin1"),
        rule(f"{ours}ff.down_proj", f"{theirs}ffn.lin2"),
        rule(f"{ours}ff_norm", f"{theirs}output_layer_norm"),
        rule("output.transform.dense", "vocab_transform"),
        rule("output.transform.norm", "vocab_layer_norm"),
        rule("output.pooler", "pre_classifier"),
        rule("output.proj", {"tokens": "vocab_projector", "span": SPAN}.get(config.head.kind, "classifier")),
        rule("output.bias", "vocab_projector.bias"),
    ]


DISTILBERT = Family(
    name="DistilBERT",
    model_type="distilbert",
    heads=HEADS,
    read=read_distilbert,
    fit=fit_distilbert,
    write=write_distilbert,
    table=table_distilbert,
    prefix="distilbert.",
    bare=frozenset({"DistilBertModel"}),
    recast=recast_bert,
    repeats={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    derived=("distilbert.embeddings.position_ids",),
    old_names=OLD_NAMES,
    builder=word_piece,
    vocabulary=(WORDS,),
    roles=ROLES,
)
