"""DistilBERT (Sanh 2019): BERT's blocks under other names, without token types and without a pooler."""

from glassformer.apps.interop.families.bert import ALWAYS, EMBEDDINGS, OLD_NAMES, ROLES, recast_bert
from glassformer.apps.interop.family import QKV_OUT, Family, Rule, attention, lines, rule
from glassformer.apps.interop.hf_config import inside, settings
from glassformer.apps.interop.vocabulary_files import WORDS, word_piece
from glassformer.config import transformer as c

HEADS: dict[str, c.Head] = {
    "DistilBertForMaskedLM": c.TokenHead(transform=True, bias="learned"),
    "DistilBertForSequenceClassification": c.SequenceHead(pooling="first", pooler="relu"),
    "DistilBertForTokenClassification": c.PositionHead(),
    "DistilBertModel": c.VectorHead(pooling="mean"),
}
SETTINGS = inside("encoder", settings(int, n_layers="n_layers", n_heads="n_heads", d_ff="hidden_dim"))
SETTINGS |= settings(int, d_model="dim", vocab_size="vocab_size", max_len="max_position_embeddings")
SETTINGS |= settings(float, 0.1, embedding_dropout="dropout", residual_dropout="dropout")
SETTINGS |= settings(float, 0.1, attention_dropout="attention_dropout")
SETTINGS |= settings(bool, True, tie_output="tie_word_embeddings")
SETTINGS |= settings(str, "gelu", activation="activation")


BLOCK = attention("attention.{}_lin", QKV_OUT)
BLOCK |= {"self_attn_norm": "sa_layer_norm", "ff_norm": "output_layer_norm"}
BLOCK |= {"ff.up_proj": "ffn.lin1", "ff.down_proj": "ffn.lin2"}


def table_distilbert(config: c.TransformerConfig) -> list[Rule]:
    return [
        *lines("encoder.embeddings.", "distilbert.embeddings.", EMBEDDINGS),
        *lines("encoder.blocks.{i}.", "distilbert.transformer.layer.{i}.", BLOCK),
        *lines("output.transform.", "vocab_", {"dense": "transform", "norm": "layer_norm"}),
        rule("output.pooler", "pre_classifier"),
        rule("output.proj", "vocab_projector" if config.head.kind == "tokens" else "classifier"),
        rule("output.bias", "vocab_projector.bias"),
    ]


DISTILBERT = Family(
    name="DistilBERT",
    model_type="distilbert",
    heads=HEADS,
    settings=SETTINGS,
    table=table_distilbert,
    always=ALWAYS | {"positions": c.LearnedPositions(), "norm_eps": 1e-12},
    # Sinusoids are stored as an ordinary table; the key only freezes them in training.
    unused="sinusoidal_pos_embds qa_dropout seq_classif_dropout tie_weights_",
    write_others=lambda config: {"sinusoidal_pos_embds": False},
    prefix="distilbert.",
    recast=recast_bert,
    repeats={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    derived=("distilbert.embeddings.position_ids",),
    old_names=OLD_NAMES,
    builder=word_piece,
    vocabulary=(WORDS,),
    roles=ROLES,
)
