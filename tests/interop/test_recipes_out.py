"""Every recipe and run of `papers`, untrained: its export family, or the reason why no family represents it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import late
import papers
from glassformer.apps.interop.export import export
from glassformer.apps.interop.families import FAMILIES
from glassformer.apps.interop.hf import example_inputs
from glassformer.apps.interop.importing import import_model
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config import recipes
from glassformer.config.transformer import PositionHead, SequenceHead, TransformerConfig
from glassformer.models.build import build_model
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import read_model, weights_of, write_model_files
from glassformer.tasks.preparation import with_vocabulary
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from interop.checkpoints import TEXT, randomise

transformers = late.optional("transformers")

FAMILY_OF = {
    "bart-denoise-small": "BART (BartForConditionalGeneration)",
    "characters": "Llama (LlamaForCausalLM)",
    "copy-task": "Qwen3 (Qwen3ForCausalLM)",
    "docstrings": "EuroBERT (EuroBertForSequenceClassification)",
    "gpt2.toml": "GPT-2 (GPT2LMHeadModel)",
    "mlm-python-docs": "EuroBERT (EuroBertForMaskedLM)",
    "python-docs": "Qwen3 (Qwen3ForCausalLM)",
    "python-tokens": "EuroBERT (EuroBertForTokenClassification)",
    "shakespeare-char": "GPT-2 (GPT2LMHeadModel)",
    "shakespeare-char-fast": "Qwen3 (Qwen3ForCausalLM)",
    "shakespeare-char-gpu": "GPT-2 (GPT2LMHeadModel)",
    "shakespeare-char-modern": "Qwen3 (Qwen3ForCausalLM)",
    "small": "Qwen3 (Qwen3ForCausalLM)",
    "sst2-scratch": "EuroBERT (EuroBertForSequenceClassification)",
    "sums": "Llama (LlamaForCausalLM)",
    "stdlib-dense": "Llama (LlamaForCausalLM)",
    "stdlib-experts": "Mixtral (MixtralForCausalLM)",
    "t5-span-small": "T5 (T5ForConditionalGeneration)",
    "transformer-base.toml": "Marian (MarianMTModel)",
    "transformer-big.toml": "Marian (MarianMTModel)",
}
NO_FAMILY = {
    "g2p-transformer": "model.positions is rotary",
    "multi30k-de-en": "model.positions is rotary",
    "multi30k-en-de-tiny": "model.positions is rotary",
    "reverse-transformer": "model.norm is rmsnorm",
    **dict.fromkeys(
        (
            *("g2p-bahdanau", "g2p-lstm", "g2p-luong", "multi30k-de-en-bahdanau", "multi30k-de-en-gru"),
            *("reverse-bahdanau", "reverse-gru", "reverse-luong"),
        ),
        "recurrent",
    ),
}
"""Recipe → the setting that no family has."""
OF_ITS_START = ("smollm2-docstrings", "sums-preference", "sums-reward")
"""Recipes whose model is that of `init.path`."""
NAMES = [*recipes.names(), *papers.FILES]


def untrained(name: str, folder: Path) -> Path:
    """Write a model directory of one of `NAMES` with random weights: one layer, and 8 channels per head if it is large.

    Norms, biases, positions, head and special ids come from the run.
    """
    run = papers.run_of(name)
    tokenizer = Tokenizer.train([TEXT * 4], vocab_size=280)
    model = run.model
    assert isinstance(model, TransformerConfig)
    sizes: dict[str, Any] = {"vocab_size": 0}
    for side in ("encoder", "decoder"):
        if (stack := getattr(model, side)) is not None:
            is_large = model.d_model > 256
            sizes[side] = replace(stack, n_layers=1, d_ff=96 if is_large else stack.d_ff)
            sizes |= {"d_model": 8 * stack.n_heads} if is_large else {}
    n_labels = 16 if isinstance(model.head, (PositionHead, SequenceHead)) else 0
    if n_labels:
        sizes["head"] = replace(model.head, n_labels=n_labels)
    model = with_vocabulary(replace(model, **sizes), Tokenizers(tokenizer, tokenizer))
    torch.manual_seed(0)
    network = build_model(model)
    randomise(network)
    with files.new_folder(folder) as new:
        labels = tuple(f"label{i}" for i in range(n_labels))
        write_model_files(new, weights_of(network), Tokenizers(tokenizer), replace(run, model=model), labels)
        Manifest.of(new, "model", 0, [path.name for path in new.iterdir()]).write(new)
    return folder


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_ITS_START])
def test_every_recipe_is_exported_or_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    """`export` compares its output with transformers; an import gives the logits of the recipe's network."""
    if NO_FAMILY.get(name) == "recurrent":
        assert not isinstance(recipes.load(name).model, TransformerConfig)
        return
    folder = untrained(name, tmp_path / "ours")
    if name in NO_FAMILY:
        with pytest.raises(UserError, match="no model family of transformers can represent this model exactly"):
            export(folder, tmp_path / "hf")
        return
    messages = export(folder, tmp_path / "hf").said
    assert messages[0].startswith(FAMILY_OF[name])
    import_model(tmp_path / "hf", tmp_path / "again", log=lambda text: None)
    networks = [read_model(tmp_path / place).network for place in ("ours", "again")]
    inputs = example_inputs(networks[0].config)  # type: ignore[arg-type]
    with torch.inference_mode():
        expected, found = (network(**inputs) for network in networks)
    bound = 1e-5 * max(1.0, float(expected.abs().max()))
    assert float((found - expected).abs().max()) <= bound


def test_every_recipe_is_in_one_table() -> None:
    assert sorted([*FAMILY_OF, *NO_FAMILY, *OF_ITS_START]) == sorted(NAMES)
    assert all(recipes.load(name).init.path is not None for name in OF_ITS_START)


@pytest.mark.parametrize("name", [name for name, reason in NO_FAMILY.items() if reason != "recurrent"])
def test_the_reason_applies_to_every_family(name: str, tmp_path: Path) -> None:
    """For encoder-decoders, not only the nearest family lacks the named setting."""
    model = read_model(untrained(name, tmp_path / "ours")).config
    assert isinstance(model, TransformerConfig)
    misfits = [family.misfits(model) for family in FAMILIES if family.name in ("BART", "Marian", "T5")]
    field = NO_FAMILY[name].split(" is ")[0]
    assert sum(any(misfit.startswith(field) for misfit in found) for found in misfits) >= 2
