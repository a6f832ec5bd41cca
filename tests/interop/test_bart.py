"""BART in and out: odd shapes, tied and untied, against transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from glassformer.errors import UserError  # noqa: E402
from glassformer.interop.importing import import_model  # noqa: E402
from interop.checkpoints import VOCAB, imported, randomise, save, tensors  # noqa: E402

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd": {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 5, "encoder_ffn_dim": 17},
    "uneven": {"encoder_layers": 3, "decoder_layers": 1, "decoder_ffn_dim": 9, "max_position_embeddings": 13},
    "scaled_relu": {"scale_embedding": True, "activation_function": "relu"},
    "untied": {"tie_word_embeddings": False},
}


def bart(kind: str = "BartForConditionalGeneration", **changes: Any) -> Any:
    sizes = {"vocab_size": VOCAB, "d_model": 16, "max_position_embeddings": 24}
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_layers": 2, f"{stack}_attention_heads": 4, f"{stack}_ffn_dim": 24}
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
    given = sizes | special | {"forced_eos_token_id": None} | changes
    return getattr(transformers, kind)(transformers.BartConfig(**given))


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_same_and_back(tmp_path: Path, case: str, seed: int, mask: bool) -> None:
    both = imported(bart(**CASES[case]), tmp_path)
    both.assert_same(mask, seed)
    if case == "untied":  # a shared table that is never read comes back as the encoder's
        stored = tensors(both.hf)
        stored["model.shared.weight"] = stored["model.encoder.embed_tokens.weight"].clone()
        both.theirs.save_pretrained(both.hf, state_dict=stored)
    both.assert_comes_back(tmp_path / "back")
