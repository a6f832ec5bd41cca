"""`generate` of transformers with ordinary arguments, on exported models of every family."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import late
from glassformer.apps.interop.export import export
from glassformer.config.run import BeamConfig
from interop.checkpoints import config_of, model_directory, tiny_tokenizer
from interop.family_configs import FAMILY_CONFIGS

transformers = late.optional("transformers")

WRITERS = [name for name, config in FAMILY_CONFIGS.items() if config.decoder is not None]
"""Families with text generation."""
TOKENIZER = tiny_tokenizer()


def exported(name: str, folder: Path, **changes: Any) -> Any:
    """Export a random model of a family and load it with transformers; it cannot generate its end token."""
    if FAMILY_CONFIGS[name].encoder is not None:
        changes = {"generation": BeamConfig(beam=2)} | changes
    export(model_directory(FAMILY_CONFIGS[name], folder / "ours", **changes), folder / "hf")
    architecture = config_of(folder / "hf")["architectures"][0]
    theirs = getattr(transformers, architecture).from_pretrained(folder / "hf")
    theirs.generation_config.suppress_tokens = [*(theirs.generation_config.suppress_tokens or []), TOKENIZER.eos_id]
    return theirs


@pytest.mark.parametrize("name", WRITERS)
def test_generate_stays_in_the_context_and_follows_its_arguments(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A decoder gets the 20 new tokens that transformers generates by default, within the context.

    A `max_new_tokens` gives a warning only for an encoder-decoder, whose file has a length.
    """
    is_seq2seq, context = FAMILY_CONFIGS[name].encoder is not None, FAMILY_CONFIGS[name].max_len
    theirs = exported(name, tmp_path)
    ids = torch.tensor([TOKENIZER.encode("to be")])
    n_before = 1 if is_seq2seq else ids.shape[1]
    with nullcontext() if is_seq2seq else pytest.warns(UserWarning, match="model-agnostic default"):
        assert theirs.generate(ids).shape[1] == (context if is_seq2seq else min(context, n_before + 20))
    assert theirs.generate(ids, max_length=9).shape[1] == 9
    caplog.clear()
    assert theirs.generate(ids, max_new_tokens=3).shape[1] == n_before + 3
    assert ("seem to have been set" in caplog.text) == is_seq2seq


@pytest.mark.parametrize("name", ["Marian", "T5", "BART"])
def test_generate_has_the_target_length_of_glassformer(name: str, tmp_path: Path) -> None:
    theirs = exported(name, tmp_path, generation=BeamConfig(beam=1, max_new_tokens=5))
    assert theirs.generate(torch.tensor([TOKENIZER.encode("to be")])).shape[1] == 1 + 5
