"""Marian in and out: one vocabulary and two, and the original Transformer of ours as Marian."""

from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from interop.checkpoints import VOCAB, imported  # noqa: E402

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd": {"d_model": 30, "encoder_attention_heads": 3, "decoder_attention_heads": 5, "encoder_ffn_dim": 17},
    "uneven": {"encoder_layers": 3, "decoder_layers": 1, "decoder_ffn_dim": 9, "max_position_embeddings": 13},
    "relu_unscaled": {"scale_embedding": False, "activation_function": "relu"},
    "two_tables": {"share_encoder_decoder_embeddings": False},
    "two_vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCAB + 7},
    "untied": {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": VOCAB + 7,
        "tie_word_embeddings": False,
    },
}


def marian(**changes: Any) -> Any:
    sizes = {"vocab_size": VOCAB, "d_model": 16, "max_position_embeddings": 24}
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_layers": 2, f"{stack}_attention_heads": 4, f"{stack}_ffn_dim": 24}
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 0}
    special |= {"forced_eos_token_id": None}
    words = {"activation_function": "swish", "scale_embedding": True}
    return transformers.MarianMTModel(transformers.MarianConfig(**sizes | special | words | changes))


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_same_and_back(tmp_path: Path, case: str, seed: int, mask: bool) -> None:
    theirs = marian(**CASES[case])
    both = imported(theirs, tmp_path)
    both.assert_same(mask, seed)
    both.assert_comes_back(tmp_path / "back")
