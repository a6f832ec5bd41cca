"""Import and export of EuroBERT, and modern encoders of glassformer as EuroBERT."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import glassformer
import late
from configs import LLAMA, random_inputs, random_model
from glassformer.apps.interop.export import export
from glassformer.apps.interop.families.modernbert import with_gelu_pooler
from glassformer.apps.interop.importing import import_model
from glassformer.common.errors import UserError
from glassformer.config.run import MaskedConfig
from glassformer.config.transformer import PositionHead, SequenceHead, Stack, TokenHead, TransformerConfig
from glassformer.inference.fill import masked_ids
from glassformer.models.build import build_model
from glassformer.store.model_directory import weights_of
from interop.checkpoints import VOCAB, imported, model_directory, save
from tolerances import assert_close

transformers = late.optional("transformers")

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd": {
        "hidden_size": 12,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 6,
        "intermediate_size": 17,
    },
    "tied": {"tie_word_embeddings": True, "attention_bias": True},
    "biases": {"mlp_bias": True, "hidden_act": "gelu"},
    "scaled": {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}},
}


def eurobert(head: str = "MaskedLM", **changes: Any) -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"vocab_size": VOCAB, "intermediate_size": 24, "max_position_embeddings": 24, "rms_norm_eps": 1e-5}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "mask_token_id": 6}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}
    config = transformers.EuroBertConfig(**sizes | ids | rope | changes)
    return getattr(transformers, f"EuroBertFor{head}")(config)


LABELS = {"id2label": {0: "noun", 1: "verb", 2: "other"}, "label2id": {"noun": 0, "verb": 1, "other": 2}}


@pytest.mark.parametrize(
    ("head", "changes"),
    [
        ("TokenClassification", {}),
        ("TokenClassification", {"mlp_bias": True, "attention_bias": True}),
        ("SequenceClassification", {"classifier_pooling": "mean"}),
        ("SequenceClassification", {"classifier_pooling": "bos", "mlp_bias": True}),
    ],
)
def test_classifiers_equal_transformers_and_export_back(tmp_path: Path, head: str, changes: dict[str, Any]) -> None:
    both = imported(eurobert(head, **LABELS, **changes), tmp_path)
    both.assert_same()
    both.assert_same(mask=True, seed=1)
    both.assert_comes_back(tmp_path / "back")
    assert both.ours.labels == ("noun", "verb", "other")


def test_late_pooling_is_refused(tmp_path: Path) -> None:
    hf = save(eurobert("SequenceClassification", classifier_pooling="late"), tmp_path / "hf")
    with pytest.raises(UserError, match="classifier_pooling late is not supported"):
        import_model(hf, tmp_path / "ours")


@pytest.mark.parametrize("case", CASES)
def test_import_equals_transformers_and_exports_back(tmp_path: Path, case: str) -> None:
    both = imported(eurobert(**CASES[case]), tmp_path)
    both.assert_same()
    both.assert_same(mask=True, seed=1)
    both.assert_comes_back(tmp_path / "back")


ENCODER = replace(LLAMA, decoder=None, encoder=Stack(2, 4, d_ff=24))
OURS: dict[str, TransformerConfig] = {
    "recipe mlm-python-docs": replace(ENCODER, gated_ff=False, activation="gelu", tie_output=True),
    "gated, with a bias of the logits": replace(ENCODER, head=TokenHead(bias="learned")),
    "biases": replace(ENCODER, ff_bias=True, qkv_bias=True, attn_out_bias=True, fused_qkv=True),
    "no scales": replace(ENCODER, norm_weight=False, gated_ff=False, activation="relu2"),
}


TAGS = replace(ENCODER, gated_ff=False, activation="gelu", head=PositionHead(5))
CLASSES = replace(TAGS, head=SequenceHead(8, "mean"))
LABELLED: dict[str, TransformerConfig] = {
    "recipe python-tokens": TAGS,
    "recipe docstrings": CLASSES,
    "recipe sst2-scratch": replace(CLASSES, ff_bias=True, qkv_bias=True, attn_out_bias=True),
    "the first token": replace(CLASSES, head=SequenceHead(3, "first")),
    "one number": replace(CLASSES, head=SequenceHead(1, "mean")),
    "with a pooler": replace(CLASSES, head=SequenceHead(11, "mean", "gelu")),
}


@pytest.mark.parametrize("name", LABELLED)
def test_export_of_models_of_labels(tmp_path: Path, name: str) -> None:
    """`export` compares the logits with transformers; `classify` and `tag` are equal after an import."""
    config = LABELLED[name]
    exported = export(model_directory(config, tmp_path / "ours"), tmp_path / "hf")
    kind = "Token" if isinstance(config.head, PositionHead) else "Sequence"
    assert exported.said[0].startswith(f"EuroBERT (EuroBertFor{kind}Classification)")
    import_model(tmp_path / "hf", tmp_path / "again", log=lambda text: None)
    networks = [glassformer.load(tmp_path / folder, device="cpu").network for folder in ("ours", "again")]
    ids = torch.randint(7, 280, (4, 9), generator=torch.Generator().manual_seed(0))
    keep = torch.arange(9) < torch.tensor([9, 1, 5, 8])[:, None]
    with torch.inference_mode():
        expected, found = (network(token_ids=ids, attention_mask=keep) for network in networks)
    rows = keep if kind == "Token" else slice(None)
    assert_close(found[rows], expected[rows])


@settings(max_examples=30)
@given(st.integers(1, 8), st.sampled_from(["mean", "first"]), st.integers(0, 2**31), st.floats(0.01, 100))
def test_a_linear_classifier_equals_one_with_a_gelu_pooler(
    n_labels: int, pooling: Any, seed: int, scale: float
) -> None:
    config = replace(CLASSES, vocab_size=19, head=SequenceHead(n_labels, pooling))
    network = random_model(config)
    weights = weights_of(network)
    draw = torch.Generator().manual_seed(seed)
    proj = torch.randn(n_labels, 16, generator=draw, dtype=torch.float64) * scale
    weights["output.proj.weight"].copy_(proj)
    other, found = with_gelu_pooler(config, weights)
    again = build_model(other).double().eval()
    for name, x in weights_of(again).items():
        x.copy_(found[name])
    inputs = random_inputs(network)
    with torch.inference_mode():
        logits = [one(inputs.token_ids, **inputs.others) for one in (network, again)]
    assert_close(logits[1], logits[0], amplification=max(1.0, scale))


def test_more_classes_than_half_the_width_are_refused(tmp_path: Path) -> None:
    folder = model_directory(replace(CLASSES, head=SequenceHead(9, "mean")), tmp_path / "ours")
    with pytest.raises(UserError, match=r"EuroBERT.*n_labels: expected at most d_model / 2 without a pooler, got 9"):
        export(folder, tmp_path / "hf")


@pytest.mark.parametrize("name", OURS)
def test_export_of_modern_encoders(tmp_path: Path, name: str) -> None:
    """`export` compares the logits with transformers."""
    exported = export(model_directory(OURS[name], tmp_path / "ours", objective=MaskedConfig()), tmp_path / "hf")
    assert exported.said[0].startswith("EuroBERT (EuroBertForMaskedLM)")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ids = tokenizer("to be [MASK]")["input_ids"]
    ours = glassformer.load(tmp_path / "ours", device="cpu").tokenizer
    assert ids == ours.frames.text.around(masked_ids(ours, "to be [MASK]"))


def test_what_eurobert_cannot_represent_is_refused(tmp_path: Path) -> None:
    folder = model_directory(replace(ENCODER, qk_norm=True), tmp_path / "ours", objective=MaskedConfig())
    with pytest.raises(UserError, match=r"nearest is EuroBERT.*: model\.qk_norm: expected false, got true$"):
        export(folder, tmp_path / "hf")
