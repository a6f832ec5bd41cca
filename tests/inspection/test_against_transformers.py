"""The lens and ablations equal direct computations on models of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.inspection.ablation import ablate
from glassformer.inspection.capture import capture_tensors
from glassformer.inspection.lens import lens
from interop.checkpoints import Both, imported

transformers = pytest.importorskip("transformers")
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def gpt2(folder: Path) -> Both:
    config = transformers.GPT2Config(vocab_size=290, n_embd=16, n_layer=2, n_head=4, n_positions=40)
    return imported(transformers.GPT2LMHeadModel(config), folder)


@torch.no_grad()
def test_the_lens_of_gpt2(tmp_path: Path) -> None:
    """hidden_states → ln_f → lm_head; the last of hidden_states is already normalised there."""
    both, ids = gpt2(tmp_path), torch.randint(290, (1, 9))
    states = both.theirs(input_ids=ids, output_hidden_states=True)
    found = [logits for _, logits in lens(both.network, capture_tensors(both.network, {"token_ids": ids}))]
    for ours, x in zip(found[:-1], states.hidden_states[:-1], strict=True):
        torch.testing.assert_close(ours, both.theirs.lm_head(both.theirs.transformer.ln_f(x)), **CLOSE)
    torch.testing.assert_close(found[-1], states.logits, **CLOSE)


@torch.no_grad()
def test_the_lens_of_bert(tmp_path: Path) -> None:
    """hidden_states → the whole head, without a final norm."""
    config = transformers.BertConfig(
        vocab_size=290,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=24,
        max_position_embeddings=40,
    )
    both, ids = imported(transformers.BertForMaskedLM(config), tmp_path), torch.randint(5, 290, (1, 9))
    states = both.theirs(input_ids=ids, output_hidden_states=True).hidden_states
    found = [logits for _, logits in lens(both.network, capture_tensors(both.network, {"token_ids": ids}))]
    for ours, x in zip(found, states, strict=True):
        torch.testing.assert_close(ours, both.theirs.cls(x), **CLOSE)


@torch.no_grad()
def test_the_ablations_of_gpt2(tmp_path: Path) -> None:
    """A head is off if its rows of c_proj are zero, a feed-forward if its c_proj is, a layer if both are."""
    both, ids = gpt2(tmp_path), torch.randint(290, (2, 9))
    blocks = both.theirs.transformer.h

    def without(parts: list[str], *zeroed: Any) -> None:
        saved = [x.clone() for x in zeroed]
        for x in zeroed:
            x.zero_()
        expected = both.theirs(input_ids=ids).logits
        for x, before in zip(zeroed, saved, strict=True):
            x.copy_(before)
        with ablate(both.network, parts):
            torch.testing.assert_close(both.network(ids), expected, **CLOSE)

    for i, block in enumerate(blocks):
        rows = block.attn.c_proj.weight  # (heads · width, D)
        for head in range(4):
            without([f"decoder.{i}.head.{head}"], rows[4 * head : 4 * head + 4])
        without([f"decoder.{i}.feed_forward"], block.mlp.c_proj.weight, block.mlp.c_proj.bias)
        without([f"decoder.{i}.head.1", f"decoder.{i}.head.2"], rows[4:12])
        attention, ff = block.attn.c_proj, block.mlp.c_proj
        without([f"decoder.{i}"], attention.weight, attention.bias, ff.weight, ff.bias)
