"""GPT-2 in and out: odd shapes, tied and untied, against transformers."""

from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from interop.checkpoints import VOCAB, imported  # noqa: E402

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


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_same_and_back(tmp_path: Path, case: str, seed: int, mask: bool) -> None:
    both = imported(gpt2(**CASES[case]), tmp_path)
    both.assert_same(mask, seed)
    both.assert_comes_back(tmp_path / "back")


def test_shards(tmp_path: Path) -> None:
    both = imported(gpt2(), tmp_path, max_shard_size="4KB")
    assert len(list(both.hf.glob("model-*.safetensors"))) > 2
    both.assert_same()
