"""Multi-label classes, pairs of texts, texts read twice and vectors of decoders, compared with transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
import late
from glassformer.apps.interop.export import export
from glassformer.apps.interop.importing import import_model
from glassformer.common.errors import UserError
from glassformer.config.transformer import VectorHead
from glassformer.model import Model
from interop.checkpoints import imported, save
from interop.test_every_class import drawn
from tolerances import NETWORK, assert_close, near

transformers = late.optional("transformers")


@pytest.mark.parametrize("n_labels", [1, 3])
def test_labels_that_do_not_exclude_each_other(tmp_path: Path, n_labels: int) -> None:
    theirs = drawn("bert", "BertForSequenceClassification", True)
    config = replace_config(theirs.config, num_labels=n_labels, problem_type="multi_label_classification")
    both = imported(type(theirs)(config), tmp_path)
    assert both.ours.is_multi_label and len(both.ours.classes) == n_labels
    ids = torch.tensor([both.ours.text_ids("to be")])
    with torch.no_grad():
        expected = both.theirs(ids).logits.sigmoid()[0]
    assert list(both.ours.classify("to be").values()) == near(expected.tolist(), terms=NETWORK)
    both.assert_comes_back(tmp_path / "back")


def framed(theirs: Any, place: Path, second_type: int) -> Model:
    """Import a random model with a tokenizer that puts special tokens around texts and pairs."""
    hf = save(theirs, place / "hf")
    file = json.loads((hf / "tokenizer.json").read_text())
    begin, end = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("[BOS]", "[EOS]"))
    single = [begin, {"Sequence": {"id": "A", "type_id": 0}}, end]
    last = {"SpecialToken": {"id": "[EOS]", "type_id": second_type}}
    pair = [*single, {"Sequence": {"id": "B", "type_id": second_type}}, last]
    file["added_tokens"][-1]["lstrip"] = True  # as in published files, and unlike a tokenizer of glassformer
    special = {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in (("[BOS]", 2), ("[EOS]", 3))}
    file["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
    (hf / "tokenizer.json").write_text(json.dumps(file))
    import_model(hf, place / "ours", log=lambda text: None)
    return glassformer.load(place / "ours", device="cpu")


@pytest.mark.parametrize("family", ["Bert", "Roberta", "DistilBert", "Bart"])
def test_pairs_are_read_with_and_without_token_types(family: str, tmp_path: Path) -> None:
    second_type = int(family == "Bert")
    theirs = drawn(family.lower(), f"{family}ForSequenceClassification", True).eval()
    ours = framed(theirs, tmp_path / "pairs", second_type)
    frame, (first, second) = ours.tokenizer.frames.pair, map(ours.tokenizer.encode, ("to be", "that is"))
    ids, types = map(torch.tensor, frame.around_pair(first, second))
    with torch.no_grad():
        logits = theirs(ids[None], **({"token_type_ids": types[None]} if second_type else {})).logits
    (found,) = ours.classify([("to be", "that is")])
    assert list(found.values()) == near(logits.softmax(dim=-1)[0].tolist(), terms=NETWORK)


def replace_config(config: Any, **changes: Any) -> Any:
    return type(config)(**config.to_dict() | {"id2label": None, "label2id": None} | changes)


def test_a_text_read_twice_is_classified(tmp_path: Path) -> None:
    """Each text of a padded batch gets the classes that transformers gives it alone."""
    both = imported(drawn("bart", "BartForSequenceClassification", True), tmp_path)
    texts = ["to be [EOS]", "that is the question [EOS]"]
    rows = [both.ours.tokenizer.encode(text, allow_special=["[EOS]"]) for text in texts]
    ids, mask = both.ours.tokenizer.pad(rows)
    found = both.network(torch.from_numpy(ids), torch.from_numpy(mask))
    for row, logits in zip(rows, found, strict=True):
        with torch.no_grad():
            assert_close(logits, both.theirs(torch.tensor([row])).logits[0], terms=NETWORK)
    assert len(both.ours.classify("to be")) == 3
    with pytest.raises(UserError, match="is an encoder-decoder, which has no text vectors"):
        both.ours.embed("to be")


def test_a_decoder_tags_words_from_the_text_before_them(tmp_path: Path) -> None:
    """The tag of a word is that of its first token, which reads no later one."""
    both = imported(drawn("gpt2", "GPT2ForTokenClassification", True), tmp_path)
    words = ["to", "be", "question"]
    parts = [both.ours.tokenizer.encode(" " * (i > 0) + word) for i, word in enumerate(words)]
    firsts = [sum(map(len, parts[:i])) for i in range(len(words))]
    with torch.no_grad():
        logits = both.theirs(torch.tensor([[i for part in parts for i in part]])).logits[0, firsts]
    best, found = logits.softmax(dim=-1).max(dim=-1), both.ours.tag([words])[0]
    assert [tag for tag, _ in found] == [f"LABEL_{i}" for i in best.indices.tolist()]
    assert [p for _, p in found] == near(best.values.tolist(), terms=NETWORK)
    assert both.ours.tag([words[:2]])[0] == [(tag, pytest.approx(p)) for tag, p in found[:2]]


def test_a_decoder_is_a_sentence_encoder(tmp_path: Path) -> None:
    """The folder of a causal model with modules of sentence-transformers: the normalised vector of the last token."""
    theirs = drawn("qwen3", "Qwen3ForCausalLM", True).eval()
    hf = save(theirs, tmp_path / "hf")
    modules = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(modules)
    ]
    (hf / "modules.json").write_text(json.dumps(listed))
    (hf / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 16, "pooling_mode_lasttoken": True}
    (hf / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    import_model(hf, tmp_path / "ours", log=lambda text: None)
    model = glassformer.load(tmp_path / "ours", device="cpu")
    assert model.config.head == VectorHead("last", normalize=True)  # type: ignore[union-attr]
    found = model.embed(["to be", "that is the question"])
    for text, vector in zip(("to be", "that is the question"), found, strict=True):
        with torch.no_grad():
            last = theirs.model(torch.tensor([model.text_ids(text)])).last_hidden_state[0, -1]
        assert_close(vector, (last / last.norm()).numpy(), terms=NETWORK)
    export(tmp_path / "ours", tmp_path / "back")
    again = import_model(tmp_path / "back", tmp_path / "again", log=lambda text: None)
    assert again.architecture == "Qwen3Model" and again.run.model == model.config
