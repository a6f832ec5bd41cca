"""Falcon with ALiBi: its heads, positions that are rounded to bfloat16, and programs that lack them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import late
from configs import CONFIGS
from glassformer.config.transformer import AlibiPositions, TransformerConfig
from glassformer.errors import UserError
from glassformer.interop.export import export
from glassformer.interop.families.falcon import ALIBI, FALCON
from glassformer.models.build import build_model
from interop.checkpoints import VOCAB, Both, imported, model_directory
from interop.decoding import assert_same_greedy

transformers = late.optional("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,  # no power of two: its slopes are no powers of two
    "max_position_embeddings": 1024,
    "alibi": True,
    "bias": True,
    "multi_query": False,
    "parallel_attn": False,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
"""The settings of falcon-rw-1b, with small sizes."""
PARALLEL, ONE_KEY = {"parallel_attn": True}, {"multi_query": True, "num_kv_heads": 1}
CONFIG = CONFIGS["alibi_rounded"]


def imported_class(name: str, place: Path, **keys: Any) -> Both:
    cls = getattr(transformers, f"Falcon{name}")
    return imported(cls(transformers.FalconConfig(**SIZES | keys)), place)


@pytest.mark.parametrize("name", ["ForCausalLM", "ForSequenceClassification", "Model"])
def test_every_class_with_alibi_comes_back(name: str, tmp_path: Path) -> None:
    both = imported_class(name, tmp_path)
    assert both.network.config.positions == ALIBI
    both.assert_same()
    both.assert_same(mask=True)
    both.assert_comes_back(tmp_path / "back")


@pytest.mark.parametrize("keys", [PARALLEL, ONE_KEY, PARALLEL | {"new_decoder_architecture": True}])
def test_alibi_is_read_with_every_block(keys: dict[str, Any], tmp_path: Path) -> None:
    both = imported_class("ForCausalLM", tmp_path, **keys)
    both.assert_same(mask=True)
    both.assert_comes_back(tmp_path / "back")


def test_generated_ids_equal_those_of_transformers(tmp_path: Path) -> None:
    """Prompts of unequal length: transformers pads them on the left, and counts positions from the first real token."""
    assert_same_greedy(imported_class("ForCausalLM", tmp_path), must_vary=False)


def test_a_long_text_needs_the_rounded_positions(tmp_path: Path) -> None:
    """Positions above 256 are no longer exact in bfloat16; with exact slopes and positions the logits are others."""
    both = imported_class("ForCausalLM", tmp_path)
    exact = build_model(replace(both.network.config, positions=AlibiPositions(scaled=True))).eval()
    exact.load_state_dict(both.network.state_dict())
    ids = torch.randint(4, VOCAB, (1, 600), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, rounded, unrounded = both.theirs(ids).logits, both.network(ids), exact(ids)
    bound = 1e-4 * max(1.0, float(expected.abs().max()))
    assert float((rounded - expected).abs().max()) < bound
    assert float((unrounded - expected).abs().max()) > 10 * bound


@pytest.mark.parametrize(
    ("positions", "words"),
    [
        (AlibiPositions(), "model.positions.scaled: expected true, got false"),
        (AlibiPositions(scaled=True), "model.positions.rounded: expected true, got false"),
        (AlibiPositions(rounded=True), "model.positions.scaled: expected true, got false"),
    ],
)
def test_another_alibi_is_no_falcon(positions: AlibiPositions, words: str) -> None:
    assert words in FALCON.misfits(falcon(positions))


def test_a_model_of_glassformer_is_a_falcon() -> None:
    assert FALCON.misfits(falcon(ALIBI)) == []


def falcon(positions: AlibiPositions) -> TransformerConfig:
    return replace(CONFIGS["gpt"], positions=positions)


@pytest.mark.parametrize("target", ["gguf", "web"])
def test_a_program_without_these_positions_refuses_the_model(target: Any, tmp_path: Path) -> None:
    words = {"gguf": "positions", "web": "positions.scaled"}
    with pytest.raises(UserError, match=words[target]):
        export(model_directory(CONFIG, tmp_path / "ours"), tmp_path / "out.html", target)
