"""ModernBERT's heads except that over tokens, which `test_random_families.py` compares, and its refused settings."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import late
from configs import CONFIGS
from glassformer.apps.interop.export import export
from glassformer.apps.interop.families.modernbert import MODERNBERT
from glassformer.apps.interop.hf_config import HFConfig
from glassformer.common.errors import UserError
from glassformer.config.transformer import (
    PositionHead,
    SequenceHead,
    TransformerConfig,
    VectorHead,
)
from interop.checkpoints import VOCAB, Both, imported, model_directory, prepared

transformers = late.optional("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "max_position_embeddings": 40,
    "local_attention": 6,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
}
CONFIG = replace(CONFIGS["modernbert"], norm_eps=1e-5)


def imported_head(head: str, place: Path, **keys: Any) -> Both:
    theirs = getattr(transformers, f"ModernBert{head}")(transformers.ModernBertConfig(**SIZES | keys))
    return imported(theirs, place, after=prepared)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize(("activation", "bias"), [("gelu", False), ("tanh", True), ("relu", False)])
def test_a_classifier_equals_that_of_transformers(pooling: str, activation: str, bias: bool, tmp_path: Path) -> None:
    keys = {"classifier_pooling": pooling, "classifier_activation": activation, "classifier_bias": bias}
    both = imported_head("ForSequenceClassification", tmp_path, num_labels=3, norm_bias=bias, **keys)
    assert both.network.config.head == SequenceHead(
        3, "first" if pooling == "cls" else "mean", activation, pooler_norm=True
    )
    both.assert_same()
    both.assert_same(mask=True)
    both.assert_comes_back(tmp_path / "back")


@pytest.mark.parametrize("bias", [False, True])
def test_a_head_at_every_position_equals_that_of_transformers(bias: bool, tmp_path: Path) -> None:
    keys = {"num_labels": 5, "hidden_activation": "relu", "classifier_activation": "relu"}
    both = imported_head("ForTokenClassification", tmp_path, classifier_bias=bias, norm_bias=bias, **keys)
    assert both.network.config.head == PositionHead(5, transform=True)
    both.assert_same()
    both.assert_same(mask=True)
    both.assert_comes_back(tmp_path / "back")


def test_the_windows_of_a_published_file(tmp_path: Path) -> None:
    """Every third layer sees all tokens; the others see half of `local_attention` on each side, and turn faster."""
    both = imported_head("Model", tmp_path)
    config = both.network.config
    assert both.network.encoder is not None and both.network.encoder.windows == (0, 4, 4, 0)
    assert config.positions.base_pattern == (160000.0, 10000.0, 10000.0)  # type: ignore[union-attr]
    both.assert_same(mask=True)
    both.assert_comes_back(tmp_path / "back")


def test_a_vector_head_is_exported_with_its_pooling(tmp_path: Path) -> None:
    """The modules of sentence-transformers express it."""
    config = replace(CONFIG, head=VectorHead("first", normalize=True))
    export(model_directory(config, tmp_path / "ours"), tmp_path / "out")
    assert (tmp_path / "out" / "modules.json").exists()
    assert type(transformers.AutoModel.from_pretrained(tmp_path / "out")).__name__ == "ModernBertModel"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"local_attention": -2}, "local_attention: expected at least 0, got -2"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling .* is not supported"),
    ],
)
def test_a_setting_without_a_counterpart_is_refused(keys: dict[str, Any], words: str) -> None:
    hf = HFConfig(SIZES | keys, "config.json")
    MODERNBERT.read(hf, "ModernBertForMaskedLM")
    with pytest.raises(UserError, match=words):
        hf.done()


@pytest.mark.parametrize("name", ["ForMaskedLM", "ForTokenClassification"])
def test_a_transform_has_the_activation_of_the_blocks(name: str) -> None:
    hf = HFConfig(SIZES | {"classifier_activation": "silu"}, "config.json")
    MODERNBERT.read(hf, f"ModernBert{name}")
    with pytest.raises(UserError, match="classifier_activation: expected that of hidden_activation, got silu"):
        hf.done()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (replace(CONFIG, first_norm=True), "model.first_norm: expected false, got true"),
        (replace(CONFIG, embedding_norm=False), "model.embedding_norm: expected true, got false"),
        (replace(CONFIG, head=PositionHead(3)), "model.head.transform: expected true, got false"),
        (replace(CONFIG, gated_ff=False, activation="relu2"), "model.gated_ff: expected true, got false"),
        (replace(CONFIG, head=SequenceHead(3, "first", "gelu")), "model.head.pooler_norm: expected true, got false"),
        (replace(CONFIG, head=SequenceHead(3, "max", "gelu", pooler_norm=True)), "model.head.pooling: expected first"),
    ],
)
def test_another_model_is_no_modernbert(config: TransformerConfig, words: str) -> None:
    assert [misfit for misfit in MODERNBERT.misfits(config) if misfit.startswith(words)]


def test_a_model_of_glassformer_is_a_modernbert() -> None:
    assert MODERNBERT.misfits(CONFIG) == []
    assert MODERNBERT.misfits(replace(CONFIG, head=PositionHead(3, transform=True))) == []
    assert MODERNBERT.misfits(replace(CONFIG, head=SequenceHead(3, "mean", "tanh", pooler_norm=True))) == []
    assert MODERNBERT.misfits(replace(CONFIG, head=VectorHead(), gated_ff=False, activation="relu2")) == []


@pytest.mark.parametrize("target", ["gguf", "web"])
def test_a_program_without_these_settings_refuses_the_model(target: Any, tmp_path: Path) -> None:
    words = {"gguf": "has an encoder", "web": "model.first_norm"}
    config = replace(CONFIG, positions=CONFIGS["bert"].positions, head_bias=True)
    with pytest.raises(UserError, match=words[target]):
        export(model_directory(config, tmp_path / "ours"), tmp_path / "out.html", target)
