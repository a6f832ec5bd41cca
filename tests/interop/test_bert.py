"""BERT, RoBERTa and DistilBERT in and out: odd shapes, every head, tied and untied, against transformers."""

from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from interop.checkpoints import VOCAB, imported  # noqa: E402

BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
DISTIL = {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24}
COMMON = {"vocab_size": VOCAB, "max_position_embeddings": 24, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
ODD = {"hidden_size": 15, "num_hidden_layers": 3, "num_attention_heads": 5, "intermediate_size": 17}
ODD |= {"type_vocab_size": 3, "layer_norm_eps": 1e-3, "hidden_act": "silu", "max_position_embeddings": 13}
ODD_DISTIL = {"dim": 15, "n_layers": 3, "n_heads": 5, "hidden_dim": 17, "activation": "relu"}
ODD_DISTIL |= {"max_position_embeddings": 13, "sinusoidal_pos_embds": False}
LABELS = {"num_labels": 3}
UNTIED = {"tie_word_embeddings": False}
ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", {}),
    "bert_odd": ("BertForMaskedLM", ODD),
    "bert_untied": ("BertForMaskedLM", UNTIED),
    "bert_classes": ("BertForSequenceClassification", LABELS),
    "bert_numbers": ("BertForSequenceClassification", {"num_labels": 1}),
    "bert_tags": ("BertForTokenClassification", LABELS),
    "bert_bare": ("BertModel", ODD),
    "roberta": ("RobertaForMaskedLM", ROBERTA),
    "roberta_odd": (
        "RobertaForMaskedLM",
        ODD | {"pad_token_id": 4, "hidden_act": "gelu", "max_position_embeddings": 19},
    ),
    "roberta_untied": ("RobertaForMaskedLM", ROBERTA | UNTIED),
    "roberta_classes": ("RobertaForSequenceClassification", ROBERTA | LABELS | {"hidden_act": "relu"}),
    "roberta_tags": ("RobertaForTokenClassification", ROBERTA | LABELS),
    "roberta_bare": ("RobertaModel", ROBERTA),
    "distilbert": ("DistilBertForMaskedLM", {}),
    "distilbert_odd": ("DistilBertForMaskedLM", ODD_DISTIL),
    "distilbert_untied": ("DistilBertForMaskedLM", UNTIED),
    "distilbert_classes": ("DistilBertForSequenceClassification", LABELS),
    "distilbert_tags": ("DistilBertForTokenClassification", LABELS),
    "distilbert_bare": ("DistilBertModel", {}),
}


def theirs(name: str, changes: dict[str, Any]) -> Any:
    cls = getattr(transformers, name)
    sizes = DISTIL if name.startswith("Distil") else BERT
    return cls(cls.config_class(**COMMON | sizes | changes))


def one_bias(theirs: Any) -> None:
    """An untied head adds its projection's own bias; transformers 5 stores another one too, which it never reads."""
    head = getattr(theirs, "lm_head", None) or getattr(getattr(theirs, "cls", None), "predictions", None)
    if head is not None:
        head.bias.copy_(head.decoder.bias)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_same_and_back(tmp_path: Path, case: str, mask: bool) -> None:
    both = imported(theirs(*CASES[case]), tmp_path, after=one_bias)
    both.assert_same(mask)
    both.assert_comes_back(tmp_path / "back")
