"""T5 1.0 and 1.1 in and out: odd shapes, every way of tying and scaling, against transformers."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

transformers = pytest.importorskip("transformers")

from interop.checkpoints import VOCAB, imported  # noqa: E402

GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
CASES: dict[str, dict[str, Any]] = {
    "v1.0": {},
    "odd": {"d_model": 15, "d_kv": 7, "num_heads": 3, "num_layers": 3, "num_decoder_layers": 1, "d_ff": 17},
    "v1.1_tied": GATED | {"num_decoder_layers": 3},
    "silu": GATED | {"feed_forward_proj": "gated-silu"},
    "gelu": {"feed_forward_proj": "gelu", "layer_norm_epsilon": 1e-4},
}


def t5(untied: bool = False, **changes: Any) -> Any:
    sizes = {"vocab_size": VOCAB, "d_model": 16, "d_kv": 6, "d_ff": 22, "num_layers": 2, "num_heads": 4}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "n_positions": 48}
    config = transformers.T5Config(**sizes | buckets | changes, decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config)
    if untied:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone() + 0.1)
    return model


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_same_and_back(tmp_path: Path, case: str, mask: bool) -> None:
    both = imported(t5(**CASES[case]), tmp_path)
    both.assert_same(mask)
    both.assert_same(mask, seed=1)
    both.assert_comes_back(tmp_path / "back")


@pytest.mark.parametrize("scaled", [False, True])
def test_a_head_that_is_not_tied(tmp_path: Path, scaled: bool) -> None:
    both = imported(t5(untied=True, **({} if scaled else GATED)), tmp_path)
    assert both.network.config.scale_logits is scaled and not both.network.config.tie_output
    both.assert_same(mask=True)
    both.assert_comes_back(tmp_path / "back")
