"""Import and export of BERT, RoBERTa and DistilBERT: odd shapes, every head, tied and untied."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import late
from configs import CONFIGS
from glassformer.apps.interop.export import export
from glassformer.apps.interop.hf import choose_family
from glassformer.common.errors import UserError
from glassformer.config.transformer import (
    LearnedPositions,
    PositionHead,
    SequenceHead,
    TokenHead,
    TransformerConfig,
    VectorHead,
)
from interop.checkpoints import VOCAB, imported, model_directory, one_bias

transformers = late.optional("transformers")

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


@pytest.mark.parametrize("case", CASES)
def test_import_equals_transformers_and_exports_back(tmp_path: Path, case: str) -> None:
    both = imported(theirs(*CASES[case]), tmp_path, after=one_bias)
    both.assert_same()
    both.assert_same(mask=True, seed=1)
    both.assert_comes_back(tmp_path / "back")


def test_shards(tmp_path: Path) -> None:
    both = imported(theirs("BertForMaskedLM", {}), tmp_path, max_shard_size="4KB")
    assert len(list(both.hf.glob("model-*.safetensors"))) > 2
    both.assert_same()


OURS = replace(CONFIGS["bert"], embedding_dropout=0.1)
RELU = SequenceHead(3, "first", "relu")
GOES_OUT = {
    "BertForMaskedLM": OURS,
    "BertForSequenceClassification": replace(OURS, head=SequenceHead(3, "first", "tanh"), fused_qkv=True),
    "BertForTokenClassification": replace(OURS, head=PositionHead(5)),
    "BertModel": replace(OURS, head=VectorHead("first", "tanh"), fused_qkv=True),
    "RobertaForMaskedLM": replace(OURS, positions=LearnedPositions(offset=1), n_token_types=1),
    "DistilBertForMaskedLM": replace(OURS, n_token_types=0, norm_eps=1e-12, fused_qkv=True),
    "DistilBertForSequenceClassification": replace(OURS, n_token_types=0, norm_eps=1e-12, head=RELU),
    "DistilBertModel": replace(OURS, n_token_types=0, norm_eps=1e-12, head=VectorHead()),
}


@pytest.mark.parametrize("architecture", GOES_OUT)
def test_export_of_every_head(tmp_path: Path, architecture: str, capfd: pytest.CaptureFixture[str]) -> None:
    """`export` compares with transformers, which finds every tensor; automatic classes load it without warnings."""
    folder = model_directory(GOES_OUT[architecture], tmp_path / "ours")
    messages = export(folder, tmp_path / "hf").said
    assert architecture in messages[0] and " differ by " in messages[-1]
    capfd.readouterr()
    transformers.utils.logging.disable_progress_bar()
    auto = getattr(transformers, "AutoModel" + architecture.partition("For")[1] + architecture.partition("For")[2])
    assert type(auto.from_pretrained(tmp_path / "hf")).__name__ == architecture
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")("to be")["input_ids"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            replace(OURS, head=TokenHead()),
            "BERT.*head.transform: expected true, got false",
        ),
        (replace(OURS, head=RELU), "BERT.*model.head.pooler: expected tanh, got relu"),
        (replace(OURS, head=SequenceHead(3, "mean", "tanh")), "BERT.*model.head.pooling: expected first, got mean"),
        (replace(OURS, head=SequenceHead(1, "first", "tanh", 2.5, 1.5)), r"mean: .*got 2\.5; .*std: .*got 1\.5"),
        (replace(OURS, head=VectorHead("mean", "tanh")), "BERT.*model.head.pooling: expected first, got mean"),
        (replace(OURS, head=VectorHead("first", "relu")), "BERT.*model.head.pooler: expected tanh, got relu"),
        (
            replace(OURS, head=VectorHead("first", "tanh", normalize=True)),
            "BERT.*model.head.normalize: expected false, got true",
        ),
        (replace(OURS, n_token_types=0), "BERT.*model.n_token_types: expected at least 1, got 0"),
        (
            replace(OURS, positions=LearnedPositions(2)),
            r"positions.offset: expected 0, got 2",
        ),
        (
            replace(OURS, n_token_types=0, norm_eps=1e-12, head=VectorHead("mean", "tanh")),
            "DistilBERT.*pooler: .*got tanh",
        ),
    ],
)
def test_a_refusal_names_the_nearest_change(config: TransformerConfig, words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose_family(replace(config, pad_id=0))
