"""Phi-3 with longrope scaling, for texts of at most the original length; `test_rotary.py` has the other kinds."""

import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import late
from configs import CONFIGS, LLAMA
from glassformer.apps.interop.export import export
from glassformer.apps.interop.families import llama, llama_relatives
from glassformer.apps.interop.hf_config import HFConfig
from glassformer.apps.interop.importing import import_model
from glassformer.common.errors import UserError
from glassformer.config.transformer import LongRopeScaling, RotaryPositions
from interop.checkpoints import VOCAB, Both, imported, save
from interop.decoding import assert_same_greedy

transformers = late.optional("transformers")

ORIGINAL, MAX_LEN = 24, 96


def phi3(draw: Random, **keys: Any) -> Any:
    """Return a model of transformers with divisors for shorter and for longer texts."""
    heads, d_head = draw.choice((2, 4)), 8
    fraction = draw.choice((0.5, 0.75, 1.0))
    n = int(d_head * fraction) // 2
    rope = {"rope_type": "longrope", "rope_theta": draw.choice((50.0, 1e4)), "partial_rotary_factor": fraction}
    rope |= {f"{length}_factor": [draw.uniform(1.0, 4.0) for _ in range(n)] for length in ("short", "long")}
    sizes = {"hidden_size": heads * d_head, "num_attention_heads": heads, "num_key_value_heads": draw.choice((1, 2))}
    sizes |= {"num_hidden_layers": draw.randint(1, 3), "intermediate_size": draw.randint(9, 40), "vocab_size": VOCAB}
    sizes |= {"max_position_embeddings": MAX_LEN, "original_max_position_embeddings": ORIGINAL, "rope_parameters": rope}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "tie_word_embeddings": draw.random() < 0.5}
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**sizes | ids | keys))


@pytest.mark.parametrize("seed", [2, 4, 5])  # each fraction, and each value of the other sizes
def test_short_texts_equal_those_of_transformers(seed: int, tmp_path: Path) -> None:
    both = imported(phi3(Random(seed)), tmp_path)
    assert both.network.config.max_len == ORIGINAL
    scaling = both.network.config.positions.scaling  # type: ignore[union-attr]
    assert scaling.attention_factor == pytest.approx(math.sqrt(1 + math.log(MAX_LEN / ORIGINAL) / math.log(ORIGINAL)))
    both.assert_same()
    both.assert_same(mask=True)
    assert_same_greedy(both, must_vary=False)
    export(both.folder, tmp_path / "back")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    Both(again, both.ours, both.hf, both.folder).assert_same(mask=True, seed=1)
    imported_again = import_model(tmp_path / "back", tmp_path / "again", log=lambda text: None)
    assert imported_again.run.model == both.network.config


def test_the_import_reports_that_the_context_is_shorter(tmp_path: Path) -> None:
    messages: list[str] = []
    import_model(save(phi3(Random(0)), tmp_path / "hf"), tmp_path / "ours", log=messages.append)
    assert [text for text in messages if text.startswith("max_len is 24, not 96: with longrope scaling")]
    uncut = save(phi3(Random(0), max_position_embeddings=ORIGINAL), tmp_path / "short")
    import_model(uncut, tmp_path / "whole", log=messages.append)
    assert sum(text.startswith("max_len is") for text in messages) == 1


def test_other_families_do_not_read_it() -> None:
    """Their files have the same keys, but no version of them was compared."""
    config = replace(CONFIGS["rotary_longrope"], d_model=24)
    assert llama.LLAMA.misfits(config) == ["model.positions.scaling: expected none, got longrope"]


def test_the_divisors_must_be_numbers() -> None:
    keys = phi3(Random(0)).config.to_dict()
    keys["rope_parameters"] |= {"short_factor": [1.0, "2"]}
    hf = HFConfig(keys, "config.json")
    llama_relatives.PHI3.read(hf, "Phi3ForCausalLM")
    assert "rope_parameters: short_factor must be a list of numbers" in hf.problems()


@pytest.mark.parametrize("divisors", [(1.0, 2.0), (1.0, 2.0, 0.0)])
def test_each_frequency_needs_a_divisor(divisors: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match=f"divisors: expected 3 numbers above 0, .*, got {len(divisors)} numbers"):
        replace(LLAMA, positions=RotaryPositions(scaling=LongRopeScaling(divisors)))
