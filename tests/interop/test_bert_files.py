"""Published files of BERT: old names, buffers, tensors of other heads, unused options."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import late
from glassformer import load
from glassformer.apps.interop.export import export
from glassformer.apps.interop.importing import import_model
from glassformer.common.errors import UserError
from glassformer.config.transformer import VectorHead
from interop.checkpoints import Both, randomise, save, tensors
from interop.test_bert import ROBERTA, UNTIED, theirs

transformers = late.optional("transformers")

Tensors = dict[str, Tensor]


def saved(model: Any, place: Path, change: Callable[[Tensors], Tensors] = lambda found: found, **keys: Any) -> Path:
    """Save a folder with other tensors and keys than transformers writes."""
    randomise(model.eval())
    folder = save(model, place / "hf")
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    return folder


def taken_over(model: Any, folder: Path, place: Path, ignore_tensors: tuple[str, ...] = ()) -> Both:
    import_model(folder, place / "ours", ignore_tensors, log=lambda text: None)
    return Both(model, load(place / "ours", device="cpu"), folder, place / "ours")


def as_in_2019(found: Tensors) -> Tensors:
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, name in old.items():
        found = {key.replace(new, name): x for key, x in found.items()}
    return found | {"bert.embeddings.position_ids": torch.arange(24)[None]}


LATER = {"_attn_implementation_autoset": True}  # written by transformers 4.46 to 4.51


def test_old_names_and_buffers(tmp_path: Path) -> None:
    model = theirs("BertForMaskedLM", {})
    folder = saved(model, tmp_path, as_in_2019, position_embedding_type="absolute", pooler_fc_size=768, **LATER)
    assert "bert.embeddings.LayerNorm.gamma" in tensors(folder)
    taken_over(model, folder, tmp_path).assert_same(mask=True)


def test_roles_of_tokens_without_an_entry_in_the_files(tmp_path: Path) -> None:
    """`bert-base-uncased` and `gpt2` were published so: their tokenizer classes define the special tokens."""
    folder = saved(theirs("BertForMaskedLM", {}), tmp_path)
    path = folder / "tokenizer_config.json"
    for settings, has_mask in (
        ({"do_lower_case": True}, True),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, False),
    ):
        path.write_text(json.dumps(settings))
        out = tmp_path / f"ours{has_mask}"
        import_model(folder, out)
        tokenizer = load(out, device="cpu").tokenizer
        assert (tokenizer.mask_id is not None) == (tokenizer.cls_id is not None) == has_mask
    path.write_text(json.dumps({"do_lower_case": True}))
    of_theirs = transformers.AutoTokenizer.from_pretrained(folder)
    found = load(tmp_path / "oursTrue", device="cpu").tokenizer
    for role in ("unk", "sep", "pad", "cls", "mask"):
        assert found.id_to_token(getattr(found, f"{role}_id")) == getattr(of_theirs, f"{role}_token")


@pytest.mark.parametrize("declared", ["BertForMaskedLM", "BertForPreTraining"])
def test_the_heads_of_pre_training(tmp_path: Path, declared: str) -> None:
    """`bert-base-uncased` is declared as a masked language model, but also has a pooler and a head for sentences."""
    model = theirs("BertForPreTraining", {})
    folder = saved(model, tmp_path, architectures=[declared])
    messages: list[str] = []
    import_model(folder, tmp_path / "ours", log=messages.append)
    (said,) = [message for message in messages if message.startswith("left out")]
    left = [f"{name}.{part}" for name in ("bert.pooler.dense", "cls.seq_relationship") for part in ("weight", "bias")]
    assert all(name in said for name in left)
    masked = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    both = Both(masked, load(tmp_path / "ours", device="cpu"), folder, tmp_path / "ours")
    both.assert_same(mask=True)
    export(both.folder, tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    assert tensors(tmp_path / "back").keys() == tensors(folder).keys() - set(left)


def test_a_pooler_may_be_missing(tmp_path: Path) -> None:
    model = theirs("BertModel", {})
    folder = saved(model, tmp_path, lambda found: {name: x for name, x in found.items() if "pooler" not in name})
    model.pooler = None
    both = taken_over(model, folder, tmp_path)
    assert both.network.config.head == VectorHead("mean")
    both.assert_same(mask=True)
    both.assert_comes_back(tmp_path / "back")


@pytest.mark.parametrize(
    ("name", "changes", "bias"),
    [
        ("BertForMaskedLM", UNTIED, "cls.predictions.{}bias"),
        ("RobertaForMaskedLM", UNTIED | ROBERTA, "lm_head.{}bias"),
    ],
)
def test_the_unused_bias_of_an_untied_head_is_ignored(
    tmp_path: Path, name: str, changes: dict[str, Any], bias: str
) -> None:
    """The import ignores its values; the export writes the used bias, as older versions use both as one."""
    unread, read = bias.format(""), bias.format("decoder.")
    model = theirs(name, changes)
    folder = saved(model, tmp_path)
    assert not torch.equal(tensors(folder)[unread], tensors(folder)[read])
    both = taken_over(model, folder, tmp_path)
    both.assert_same()
    export(both.folder, tmp_path / "back")
    back = tensors(tmp_path / "back")
    assert torch.equal(back[unread], tensors(folder)[read]) and torch.equal(back[read], tensors(folder)[read])


CANNOT: dict[str, tuple[str, dict[str, Any], str]] = {
    "positions": (
        "BertForMaskedLM",
        {"position_embedding_type": "relative_key"},
        "position_embedding_type relative_key is not supported",
    ),
    "decoder": ("BertForMaskedLM", {"is_decoder": True}, "is_decoder True is not supported"),
    "unknown": ("BertForMaskedLM", {"conv_kernel": 9}, "conv_kernel is not a known key"),
    "activation": ("BertForMaskedLM", {"hidden_act": "quick_gelu"}, "hidden_act quick_gelu is not supported"),
    "other_head": ("BertForMaskedLM", {"architectures": ["BertForMultipleChoice"]}, "BertForMultipleChoice"),
    "several_numbers": (
        "BertForSequenceClassification",
        {"problem_type": "regression", "id2label": {"0": "a", "1": "b"}},
        "problem_type regression is not supported for 2 labels",
    ),
    "gelu_head": ("RobertaForMaskedLM", {"hidden_act": "relu"}, r"hidden_act relu is not supported \(known: gelu\)"),
    "too_short": ("RobertaForMaskedLM", {"max_position_embeddings": 1}, "max_len is 0 and must be at least 1"),
    "missing": ("BertForTokenClassification", {"num_hidden_layers": 3}, "encoder.layer.2.* is missing"),
    "shape": ("DistilBertModel", {"hidden_dim": 20}, r"lin1.weight: expected shape \[20, 16\], got \[24, 16\]"),
    "same_labels": ("BertForTokenClassification", {"id2label": {"0": "a", "1": "a"}}, "id2label has a duplicate name"),
    "labels_in_words": (
        "BertForTokenClassification",
        {"id2label": None, "num_labels": "3"},
        "num_labels: expected 1 to .*, got 3",
    ),
    "no_labels": ("BertForTokenClassification", {"id2label": {"1": "a", "7": "b"}}, "must have the keys 0, 1, 2"),
}


@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_be_imported_is_refused(tmp_path: Path, case: str) -> None:
    name, keys, words = CANNOT[case]
    folder = saved(theirs(name, {}), tmp_path, **keys)
    with pytest.raises(UserError, match=words):
        import_model(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
