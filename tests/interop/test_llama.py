"""Llama, Mistral, Qwen2 and Qwen3 in and out: odd shapes, windows, biases and rotary scalings, against transformers."""

from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from interop.checkpoints import VOCAB, imported  # noqa: E402

MAX_LEN = 64
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 24.0, "beta_slow": 2.0}
ORIGINAL = {"original_max_position_embeddings": 16}
HALF = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
TURNS = ["sliding_attention", "full_attention", "sliding_attention"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama_odd": ("Llama", {"hidden_size": 20, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6}),
    "llama_tied": ("Llama", {"tie_word_embeddings": True, "num_hidden_layers": 1, "hidden_act": "gelu"}),
    "llama_biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": None}),
    "llama_linear": ("Llama", {"rope_parameters": LINEAR}),
    "llama_llama3": ("Llama", {"rope_parameters": LLAMA3 | ORIGINAL}),
    "llama_yarn": ("Llama", {"rope_parameters": YARN | ORIGINAL}),
    "mistral": ("Mistral", {"sliding_window": 4}),
    "mistral_everywhere": ("Mistral", {"sliding_window": None, "hidden_size": 18}),
    "qwen2": ("Qwen2", {}),
    "qwen2_half": ("Qwen2", HALF | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"attention_bias": True}),
    "qwen3_turns": ("Qwen3", HALF | {"num_hidden_layers": 3, "layer_types": TURNS, "max_window_layers": 0}),
}


def llama(kind: str = "Llama", **changes: Any) -> Any:
    sizes = {"hidden_size": 16, "intermediate_size": 22, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": MAX_LEN, "rms_norm_eps": 1e-5}
    if kind == "Qwen3":
        sizes["head_dim"] = 6
    special = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    rope = {"rope_theta": 50.0, "rope_type": "default"} | changes.pop("rope_parameters", {})
    config = getattr(transformers, f"{kind}Config")
    config = config(vocab_size=VOCAB, rope_parameters=rope, **sizes | special | changes)
    return getattr(transformers, f"{kind}ForCausalLM")(config)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_same_and_back(tmp_path: Path, case: str, mask: bool) -> None:
    kind, changes = CASES[case]
    both = imported(llama(kind, **changes), tmp_path)
    both.assert_same(mask)
    both.assert_same(mask, seed=1)
    both.assert_comes_back(tmp_path / "back")
