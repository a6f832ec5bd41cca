"""An imported checkpoint is exported as its original class, with equal tensors and no additions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import late
from glassformer.apps.interop.export import export
from glassformer.apps.interop.families import FAMILIES
from glassformer.apps.interop.hf import choose_family
from interop.checkpoints import VOCAB, Both, config_of, imported
from interop.decoding import drawn_prompts, ours_greedy, theirs_written
from interop.family_configs import FAMILY_CONFIGS
from tolerances import assert_close, near

transformers = late.optional("transformers")

SIZES = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {
    "intermediate_size": 24,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
HALF = {"layers": 1, "attention_heads": 2, "ffn_dim": 20}
BART = {f"{half}_{name}": value for half in ("encoder", "decoder") for name, value in HALF.items()}
BART |= {"vocab_size": VOCAB, "d_model": 16, "max_position_embeddings": 24, "decoder_start_token_id": 3}
BART |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "forced_eos_token_id": None}


def made(name: str) -> Any:
    if name == "Mistral without a window":
        config = transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=None, head_dim=4)
        return transformers.MistralForCausalLM(config)
    if name == "BART without a head":
        return transformers.BartModel(transformers.BartConfig(**BART))
    family, n_types = name.split(" with ")[0].split(" without ")[0], 1 if "one type" in name else 2
    config = getattr(transformers, f"{family}Config")(**SIZES, type_vocab_size=n_types)
    return getattr(transformers, f"{family}Model")(config, add_pooling_layer="without a pooler" not in name)


CASES = (
    "Mistral without a window",
    "BART without a head",
    "Bert with two types",
    "Bert without a pooler",
    "Bert without a pooler, one type",
    "Roberta with one type",
    "Roberta without a pooler",
    "Roberta without a pooler, one type",
)


@pytest.mark.parametrize("name", CASES)
def test_export_of_an_import_equals_the_original(name: str, tmp_path: Path) -> None:
    both = imported(made(name), tmp_path)
    assert_same_hidden(both)
    both.assert_comes_back(tmp_path / "back")


NAMES = {"id2label": {0: "no", 1: "yes", 2: "maybe"}, "label2id": {"no": 0, "yes": 1, "maybe": 2}}
ONE = {"id2label": {0: "score"}, "label2id": {"score": 0}}
NAMED = {
    "BertModel": NAMES,
    "BertForMaskedLM": NAMES,
    "BertForSequenceClassification": NAMES,
    "BertForTokenClassification": NAMES,
    "one number": ONE,
}


@pytest.mark.parametrize("kind", NAMED)
def test_names_of_labels_are_kept(kind: str, tmp_path: Path) -> None:
    name = kind if kind != "one number" else "BertForSequenceClassification"
    config = transformers.BertConfig(**SIZES, **NAMED[kind])
    both = imported(getattr(transformers, name)(config), tmp_path)
    export(both.folder, tmp_path / "back")
    after = config_of(tmp_path / "back")
    assert {int(i): name for i, name in after["id2label"].items()} == NAMED[kind]["id2label"]
    assert after["label2id"] == NAMED[kind]["label2id"]
    assert both.ours.classes == (("no", "yes", "maybe") if kind.endswith("Classification") else ())


def test_an_imported_regression_model_returns_its_number(tmp_path: Path) -> None:
    """With a named single label, a softmax would return that label with probability 1 for every text."""
    config = transformers.BertConfig(**SIZES, **ONE)
    both = imported(transformers.BertForSequenceClassification(config), tmp_path)
    texts = ["to be", "or not"]
    tokenizer = both.ours.tokenizer
    for text, found in zip(texts, both.ours.classify(texts), strict=True):
        ids = torch.tensor([tokenizer.frames.text.around(tokenizer.encode(text))])
        with torch.inference_mode():
            expected = float(both.theirs(ids)["logits"])
        assert found == {"number": near(expected)}


def assert_same_hidden(both: Both) -> None:
    """Check that the last hidden states equal those of transformers."""
    ids = torch.randint(7, 280, (3, 9), generator=torch.Generator().manual_seed(0))
    is_seq2seq = both.network.config.decoder is not None and both.network.config.encoder is not None
    mine, other = ({"source_ids": ids}, {"decoder_input_ids": ids}) if is_seq2seq else ({}, {})
    with torch.inference_mode():
        found = both.network.hidden(token_ids=ids, **mine)
        theirs = both.theirs(ids, output_hidden_states=True, **other)
    expected = theirs["last_hidden_state"] if "last_hidden_state" in theirs else theirs["hidden_states"][-1]
    assert_close(found, expected)


def test_a_window_of_one_token_equals_transformers_without_cache(tmp_path: Path) -> None:
    """The documented exception: transformers' cache gives other ids than its own forward pass."""
    window = transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=1, head_dim=4)
    both = imported(transformers.MistralForCausalLM(window), tmp_path)
    prompts = drawn_prompts(both, n=20)
    assert ours_greedy(both, prompts, None) == theirs_written(both, prompts, None, num_beams=1, use_cache=False)


def test_left_padding_needs_position_ids(tmp_path: Path) -> None:
    """The documented difference: without them, transformers counts learned positions from the padding."""
    sizes = {"vocab_size": VOCAB, "n_positions": 24, "n_embd": 16, "n_layer": 1, "n_head": 4, "n_inner": 24}
    special = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    both = imported(transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **special)), tmp_path)
    ids = torch.tensor([[0, 0, 7, 8, 9]])
    keep = ids != 0
    positions = (keep.cumsum(dim=1) - 1).clamp(min=0)
    with torch.inference_mode():
        ours = both.network(token_ids=ids[:, 2:])
        alone, given = (
            both.theirs(ids, attention_mask=keep.long(), **more)["logits"][:, 2:]
            for more in ({}, {"position_ids": positions})
        )
    assert_close(given, ours)
    assert float((alone - ours).abs().max()) > 1e-3


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_a_recorded_architecture_is_used_only_if_it_fits(name: str) -> None:
    """The recorded architecture is preferred if it fits, and ignored if not."""
    config = replace(FAMILY_CONFIGS[name], pad_id=0)
    first = choose_family(config)
    for family in FAMILIES:
        chosen = choose_family(config, next(iter(family.heads)))
        assert chosen is (first if family.misfits(config) else family)
