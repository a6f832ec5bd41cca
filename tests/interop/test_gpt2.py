"""Import and export of GPT-2: odd shapes, tied and untied, against transformers."""

import json
from pathlib import Path
from typing import Any

import pytest

import late
from glassformer import load
from glassformer.apps.interop.importing import import_model
from interop.checkpoints import VOCAB, imported
from interop.decoding import assert_same_greedy

transformers = late.optional("transformers")

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd": {"n_embd": 15, "n_head": 3, "n_layer": 3, "n_inner": 17, "n_positions": 13},
    "untied": {"tie_word_embeddings": False},
    "relu_unscaled": {"activation_function": "relu", "scale_attn_weights": False, "layer_norm_epsilon": 1e-3},
    "one_layer": {"n_layer": 1, "n_head": 1},
}


def gpt2(**changes: Any) -> Any:
    sizes = {"vocab_size": VOCAB, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 24}
    special = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes | special | changes))


@pytest.mark.parametrize("case", CASES)
def test_import_equals_transformers_and_exports_back(tmp_path: Path, case: str) -> None:
    both = imported(gpt2(**CASES[case]), tmp_path)
    both.assert_same()
    both.assert_same(mask=True, seed=1)
    both.assert_comes_back(tmp_path / "back")


def test_shards(tmp_path: Path) -> None:
    both = imported(gpt2(), tmp_path, max_shard_size="4KB")
    assert len(list(both.hf.glob("model-*.safetensors"))) > 2
    both.assert_same()


def test_a_single_file_takes_precedence_over_an_index(tmp_path: Path) -> None:
    """transformers reads a folder with both in the same way."""
    both = imported(gpt2(), tmp_path)
    (both.hf / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "old.safetensors"}}))
    import_model(both.hf, tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (both.folder / "model.safetensors").read_bytes()


def test_the_end_token_comes_from_the_model(tmp_path: Path) -> None:
    """The model's `eos_token_id` counts, even if its tokenizer has another end token."""
    both = imported(gpt2(), tmp_path)
    start = both.ours.tokenizer.encode("to be")
    written = both.ours.generate("to be", temperature=0.0, max_new_tokens=5)
    end = both.ours.tokenizer.encode("to be" + written)[len(start)]
    for path in (both.hf / "config.json", both.hf / "generation_config.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": end}))
    import_model(both.hf, tmp_path / "again", log=lambda text: None)
    ours = load(tmp_path / "again", device="cpu")
    assert ours.tokenizer.eos_id == 3 and ours.network.config.eos_id == end
    assert written and ours.generate("to be", temperature=0.0, max_new_tokens=5) == ""


@pytest.mark.parametrize("case", ["plain", "untied"])
def test_greedy_equals_transformers(tmp_path: Path, case: str) -> None:
    assert_same_greedy(imported(gpt2(**CASES[case]), tmp_path))
