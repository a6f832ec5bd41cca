"""DistilBERT (Sanh 2019): BERT's blocks under other names, without token types and without a pooler."""

from typing import Any

from glassformer.config import transformer as c
from glassformer.interop.families.bert import OLD_NAMES, ROLES, SPAN, fit_encoder, recast_bert
from glassformer.interop.family import Family, Rule, attention_lines, rule
from glassformer.interop.hf_config import ACTIVATION_NAMES, ACTIVATIONS, HFConfig
from glassformer.interop.vocabulary_files import WORDS, word_piece

HEADS: dict[str, c.Head] = {
    "DistilBertForMaskedLM": c.TokenHead(transform=True, bias="learned"),
    "DistilBertForSequenceClassification": c.SequenceHead(pooling="first", pooler="relu"),
    "DistilBertForTokenClassification": c.PositionHead(),
    "DistilBertForQuestionAnswering": c.SpanHead(),
    "DistilBertModel": c.VectorHead(pooling="mean"),
}
NORM_EPS = 1e-12


def read_distilbert(hf: HFConfig, architecture: str) -> c.TransformerConfig:
    # Sinusoids are stored as an ordinary table; the key only freezes them in training.
    hf.pass_over("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_")
    dropout = hf.take("dropout", float, 0.1)
    return c.TransformerConfig(
        encoder=c.Stack(hf.take("n_layers", int), hf.take("n_heads", int), d_ff=hf.take("hidden_dim", int)),
        d_model=hf.take("dim", int),
        vocab_size=hf.take("vocab_size", int),
        max_len=hf.take("max_position_embeddings", int),
        tie_output=hf.take("tie_word_embeddings", bool, True),
        positions=c.LearnedPositions(),
        norm_eps=NORM_EPS,
        norm_order="post",
        final_norm=False,
        embedding_norm=True,
        activation=hf.choose("activation", ACTIVATIONS, "gelu"),
        embedding_dropout=dropout,
        residual_dropout=dropout,
        attention_dropout=hf.take("attention_dropout", float, 0.1),
        head=HEADS[architecture],
        init=c.NormalInit(0.02),
    )


def fit_distilbert(config: c.TransformerConfig) -> list[str]:
    fit = fit_encoder(config)
    fit.needs(positions=c.LearnedPositions(), norm_eps=NORM_EPS)
    fit.heads(HEADS.values(), "none")
    return fit.done()


def write_distilbert(config: c.TransformerConfig) -> dict[str, Any]:
    stack = config.head_stack
    return {
        "vocab_size": config.vocab_size,
        "dim": config.d_model,
        "n_layers": stack.n_layers,
        "n_heads": stack.n_heads,
        "hidden_dim": stack.d_ff,
        "activation": ACTIVATION_NAMES[config.activation],
        "max_position_embeddings": config.max_len,
        "sinusoidal_pos_embds": False,
        "dropout": config.residual_dropout,
        "attention_dropout": config.attention_dropout,
        "tie_word_embeddings": config.tie_output,
    }


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
