"""BART in and out: odd shapes, tied and untied, against transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from glassformer import api  # noqa: E402
from glassformer.run_config import InitConfig, TokenizerConfig  # noqa: E402
from interop.checkpoints import VOCAB, imported, tensors  # noqa: E402
from runs import pair_run  # noqa: E402

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


def test_training_goes_on_from_its_own_start(tmp_path: Path) -> None:
    both = imported(bart(max_position_embeddings=40), tmp_path)
    run = pair_run(tmp_path, model=both.network.config, max_steps=2, eval_every=2)
    run = replace(run, tokenizer=TokenizerConfig(), init=InitConfig(path=str(both.folder)))
    outcome = api.train(run, tmp_path / "run")
    after = api.load(outcome.folder)
    assert after.network.config.decoder_start_id == both.network.config.decoder_start_id == 3
    assert after.tokenizer.bos_id == 2, "a new model would start from it"
