"""The lens, ablations and patches equal direct computations on models of transformers."""

from pathlib import Path
from typing import Any

import pytest
import torch

import late
from glassformer.inspection.ablation import ablate
from glassformer.inspection.capture import capture_tensors
from glassformer.inspection.lens import lens
from glassformer.inspection.patching import Patching, patch_residual
from interop.checkpoints import Both, imported
from tolerances import NETWORK, assert_close, near

transformers = late.optional("transformers")

SIZES = {"layers": 2, "attention_heads": 4, "ffn_dim": 24}
"""Sizes of a stack of BART."""


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
        assert_close(ours, both.theirs.lm_head(both.theirs.transformer.ln_f(x)), terms=NETWORK)
    assert_close(found[-1], states.logits, terms=NETWORK)


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
        assert_close(ours, both.theirs.cls(x), terms=NETWORK)


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
            assert_close(both.network(ids), expected, terms=NETWORK)

    for i, block in enumerate(blocks):
        rows = block.attn.c_proj.weight  # (heads · width, D)
        for head in range(4):
            without([f"decoder.{i}.head.{head}"], rows[4 * head : 4 * head + 4])
        without([f"decoder.{i}.feed_forward"], block.mlp.c_proj.weight, block.mlp.c_proj.bias)
        without([f"decoder.{i}.head.1", f"decoder.{i}.head.2"], rows[4:12])
        attention, ff = block.attn.c_proj, block.mlp.c_proj
        without([f"decoder.{i}"], attention.weight, attention.bias, ff.weight, ff.bias)


@torch.no_grad()
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_the_patches_of_bart(tmp_path: Path, stack: Any) -> None:
    """A forward hook of transformers replaces one position of the output of one layer, in an encoder-decoder."""
    sizes = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in SIZES.items()}
    config = transformers.BartConfig(vocab_size=290, d_model=16, max_position_embeddings=40, **sizes)
    both = imported(transformers.BartForConditionalGeneration(config), tmp_path)
    target = torch.randint(5, 290, (1, 6))
    sources = [torch.randint(5, 290, (1, 9)) for _ in range(2)]
    pair = Patching(*({"token_ids": target, "source_ids": source} for source in sources), answer=7, wrong=9)
    theirs = getattr(both.theirs.model, stack)
    layers = [theirs.layernorm_embedding, *theirs.layers]

    def metric(source: Any) -> float:
        logits = both.theirs(input_ids=source, decoder_input_ids=target, use_cache=False).logits[0, -1]
        return float(logits[7] - logits[9])

    def patched(layer: Any, hook: Any) -> float:
        handle = layer.register_forward_hook(lambda module, args, output: replaced(output, hook))
        value = metric(sources[1])
        handle.remove()
        return value

    def replaced(output: Any, hook: Any) -> Any:
        return hook(output) if isinstance(output, torch.Tensor) else (hook(output[0]), *output[1:])

    kept: list[Any] = []
    for layer in layers:
        handle = layer.register_forward_hook(
            lambda module, args, output: kept.append(output if isinstance(output, torch.Tensor) else output[0])
        )
        clean = metric(sources[0])
        handle.remove()
    corrupted = metric(sources[1])
    expected = [
        [
            (
                patched(layer, lambda x, i=i, to=to: torch.cat((x[:, :i], to[:, i : i + 1], x[:, i + 1 :]), 1))
                - corrupted
            )
            / (clean - corrupted)
            for i in range(to.shape[1])
        ]
        for layer, to in zip(layers, kept, strict=True)
    ]
    found = patch_residual(both.network, pair, stack)
    assert found.clean == near(clean, terms=NETWORK) and found.corrupted == near(corrupted, terms=NETWORK)
    assert_close(found.shares, torch.tensor(expected), terms=NETWORK)
    assert float(found.shares.abs().max()) > 0.05, "some position matters"
