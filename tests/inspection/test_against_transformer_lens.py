"""Activations, scores, lens, attribution, ablation and patching equal those of TransformerLens on a random GPT-2.

TransformerLens is not a dependency: the tests are skipped without it (pip install transformer-lens).
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.inspection.ablation import ablate
from glassformer.inspection.capture import LENS_NAMES, Trace, capture_tensors
from glassformer.inspection.head_scores import duplicate_score, induction_ids, induction_score, previous_score
from glassformer.inspection.lens import lens
from glassformer.inspection.patching import Patching, patch_heads, patch_residual
from interop.checkpoints import imported
from tolerances import NETWORK, assert_close, near

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformer_lens")
    pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore")
N_LAYERS, N_HEADS, N_TOKENS = 3, 4, 13


@dataclass(frozen=True)
class Pair:
    """The bridge of TransformerLens with its cache, and the imported network with its tensors, on the same ids."""

    bridge: Any
    cache: Any
    network: Any
    tensors: dict[str, Tensor]
    ids: Tensor


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_embd": 16, "n_layer": N_LAYERS, "n_head": N_HEADS, "n_positions": 40}
    config = GPT2Config(vocab_size=290, attn_implementation="eager", **sizes)
    both = imported(GPT2LMHeadModel(config), tmp_path_factory.mktemp("lens"))
    bridge = TransformerBridge.boot_transformers(
        str(both.hf), hf_model=both.theirs, device="cpu", tokenizer=AutoTokenizer.from_pretrained(both.hf)
    )
    bridge.enable_compatibility_mode(disable_warnings=True, no_processing=True)
    ids = torch.tensor([induction_ids(290, 6, start=[7])])
    with torch.no_grad():
        _, cache = bridge.run_with_cache(ids)
    inputs = {"token_ids": ids}
    yield Pair(bridge, cache, both.network, capture_tensors(both.network, inputs, ["*"]), ids)


def test_patterns_and_activations(pair: Pair) -> None:
    assert_close(pair.tensors["decoder.embeddings"], pair.cache["resid_pre", 0], terms=NETWORK)
    for i in range(N_LAYERS):
        block = f"decoder.blocks.{i}"
        assert_close(pair.tensors[f"{block}.self_attn.weights"], pair.cache["pattern", i], terms=NETWORK)
        z = pair.cache["z", i].transpose(1, 2)  # (B, T, H, W) there
        assert_close(pair.tensors[f"{block}.self_attn.context"], z, terms=NETWORK)
        assert_close(pair.tensors[f"{block}.self_attn"], pair.cache["attn_out", i], terms=NETWORK)
        assert_close(pair.tensors[f"{block}.ff"], pair.cache["mlp_out", i], terms=NETWORK)
        assert_close(pair.tensors[f"{block}.residual"], pair.cache["resid_post", i], terms=NETWORK)


def test_head_scores_equal_its_detection_patterns(pair: Pair) -> None:
    """Its score is the share of all weights in the pattern; here the mean is over rows that have such a token."""
    from transformer_lens import head_detector

    ids = pair.ids[0]
    n = len(ids)
    for i in range(N_LAYERS):
        weights = pair.tensors[f"decoder.blocks.{i}.self_attn.weights"][0]
        for found, pattern, n_rows in (
            (previous_score(weights), head_detector.get_previous_token_head_detection_pattern(ids[None]), n - 1),
            (duplicate_score(weights, ids), head_detector.get_duplicate_token_head_detection_pattern(ids[None]), 6),
            (induction_score(weights, ids), head_detector.get_induction_head_detection_pattern(ids[None]), 6),
        ):
            for head in range(N_HEADS):
                share = head_detector.compute_head_attention_similarity_score(
                    pair.cache["pattern", i][0, head],
                    pattern,
                    exclude_bos=False,
                    exclude_current_token=False,
                    error_measure="mul",
                )
                assert float(found[head]) == near(share * n / n_rows, terms=NETWORK)


def test_the_lens_equals_its_final_norm_and_unembedding(pair: Pair) -> None:
    stack = pair.cache.accumulated_resid(layer=-1)  # (L + 1, B, T, D)
    with torch.no_grad():
        expected = [pair.bridge.unembed(pair.bridge.ln_final(x)) for x in stack]
    found = [logits for _, logits in lens(pair.network, pair.tensors)]
    assert len(found) == len(expected) == N_LAYERS + 1
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, terms=NETWORK)


def test_direct_logit_attribution_from_captured_tensors(pair: Pair) -> None:
    """Each part of the residual stream, divided by the deviation of the final norm, adds to the logit difference."""
    names = ["decoder.embeddings"]
    for i in range(N_LAYERS):
        names += [f"decoder.blocks.{i}.self_attn", f"decoder.blocks.{i}.ff"]
    parts = torch.stack([pair.tensors[name] for name in names])  # (2L + 1, B, T, D)
    last = pair.tensors[f"decoder.blocks.{N_LAYERS - 1}.residual"]
    assert_close(parts.sum(dim=0), last, terms=NETWORK)
    norm, table = pair.network.decoder.final_norm, pair.network.output.proj.weight
    std = (last.var(dim=-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    direction = (table[3] - table[5]) * norm.weight
    found = ((parts - parts.mean(dim=-1, keepdim=True)) / std) @ direction  # (2L + 1, B, T)

    embed, pos, *rest = pair.cache.decompose_resid(layer=-1)
    theirs = pair.cache.apply_ln_to_stack(torch.stack([embed + pos, *rest]), layer=-1)
    expected = (theirs * norm.weight) @ (pair.bridge.W_U[:, 3] - pair.bridge.W_U[:, 5])
    assert_close(found, expected, terms=NETWORK)
    difference = pair.tensors["logits"][..., 3] - pair.tensors["logits"][..., 5]
    shift = float(norm.bias @ (table[3] - table[5]))
    assert_close(found.sum(dim=0) + shift, difference, terms=NETWORK)


@torch.no_grad()
def test_an_ablated_head_equals_its_hook(pair: Pair) -> None:
    for layer in range(N_LAYERS):
        for head in range(N_HEADS):

            def without(z: Tensor, hook: Any, head: int = head) -> Tensor:
                return z.index_fill(2, torch.tensor([head]), 0.0)

            expected = pair.bridge.run_with_hooks(pair.ids, fwd_hooks=[(f"blocks.{layer}.attn.hook_z", without)])
            with ablate(pair.network, [f"decoder.{layer}.head.{head}"]):
                assert_close(pair.network(pair.ids), expected, terms=NETWORK)


def test_an_ablated_feed_forward_equals_its_hook(pair: Pair) -> None:
    with torch.no_grad():
        for layer in range(N_LAYERS):
            hooks = [(f"blocks.{layer}.hook_mlp_out", lambda x, hook: torch.zeros_like(x))]
            expected = pair.bridge.run_with_hooks(pair.ids, fwd_hooks=hooks)
            with ablate(pair.network, [f"decoder.{layer}.feed_forward"]):
                assert_close(pair.network(pair.ids), expected, terms=NETWORK)


def test_patches_equal_its_patching_functions(pair: Pair) -> None:
    from transformer_lens import patching

    corrupted = pair.ids.clone()
    corrupted[0, 8] = 11
    both = Patching({"token_ids": pair.ids}, {"token_ids": corrupted}, answer=3, wrong=5)
    with torch.no_grad():
        clean_value, corrupted_value = (float(both.metric(pair.network(x))[0]) for x in (pair.ids, corrupted))

    def share(logits: Tensor) -> Tensor:
        return (both.metric(logits)[0] - corrupted_value) / (clean_value - corrupted_value)

    with torch.no_grad():
        stream = patching.get_act_patch_resid_pre(pair.bridge, corrupted, pair.cache, share)
        heads = patching.get_act_patch_attn_head_out_all_pos(pair.bridge, corrupted, pair.cache, share)
    assert stream.shape == (N_LAYERS, N_TOKENS) and heads.shape == (N_LAYERS, N_HEADS)
    found = patch_residual(pair.network, both)
    assert_close(found.shares[:-1], torch.as_tensor(stream), terms=NETWORK)
    assert_close(patch_heads(pair.network, both).shares, torch.as_tensor(heads), terms=NETWORK)


@pytest.mark.parametrize("name", ["hook_resid_pre", *(name for name in LENS_NAMES if "_rot_" not in name)])
def test_a_trace_has_the_names_of_transformer_lens(pair: Pair, name: str) -> None:
    trace = Trace(pair.tensors, {}, [], [], [])
    for layer in range(N_LAYERS):
        theirs = pair.cache[f"blocks.{layer}.{name}"]
        ours = trace[f"blocks.{layer}.{name}"]
        if name.endswith("hook_normalized"):  # without the scale and shift of the norm
            ours = (ours - norm_of(pair, name, layer).bias) / norm_of(pair, name, layer).weight
        assert_close(ours, theirs, terms=NETWORK)
    assert_close(trace["pattern", 1], pair.cache["pattern", 1], terms=NETWORK)


def norm_of(pair: Pair, name: str, layer: int) -> Any:
    block = pair.network.decoder.blocks[layer]
    return block.self_attn_norm if name.startswith("ln1") else block.ff_norm
