"""A block takes any attention module: training, caches and beams work as with `MultiHeadAttention`."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from configs import GPT, random_ids, random_model, randomise
from glassformer.config.transformer import NoPositions
from glassformer.models.transformer import Transformer
from glassformer.nn import AttentionCost, LayerCache, Linear, Mask, attention_fused
from tolerances import assert_close

PAGE = Path(__file__).parents[2] / "docs" / "extend" / "attention-module.md"


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-AI 2024, section 2.1.2), without rotary keys: the cache holds c = W x."""

    def __init__(self, d_model: int, n_heads: int, d_latent: int = 6) -> None:
        super().__init__()
        self.n_heads, self.d_latent = n_heads, d_latent
        self.q_proj, self.latent_proj = Linear(d_model, d_model), Linear(d_model, d_latent)
        self.kv_proj, self.out_proj = Linear(d_latent, 2 * d_model), Linear(d_model, d_model)

    def forward(
        self, x: Tensor, memory: None = None, *, mask: Mask, cache: LayerCache | None = None, **_: Any
    ) -> Tensor:
        latent = self.latent_proj(x)[:, None]  # (B, 1, T, d_latent)
        if cache is not None:
            latent, _ = cache.append(latent, latent[..., :0])
        key, value = (
            heads.squeeze(1).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for heads in self.kv_proj(latent).chunk(2, -1)
        )
        query = self.q_proj(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        return self.out_proj(attention_fused(query, key, value, mask).transpose(1, 2).flatten(2))

    def prepare_mask(self, mask: Mask, x: Tensor, n_keys: int) -> Mask:
        return mask.materialized(x.shape[1], n_keys, x.device)

    def new_cache(self, n_rows: int, max_len: int, like: Tensor) -> LayerCache:
        return LayerCache.empty((n_rows, 1), (self.d_latent, 0), max_len, like)

    def cost(self, n_queries: int, n_keys: int) -> AttentionCost:
        raise NotImplementedError


def linear_attention(d_model: int, n_heads: int) -> nn.Module:
    """Return the module of the page, whose cache is a recurrent state."""
    parts: dict[str, Any] = {}
    exec(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)[0], parts)
    module: nn.Module = parts["LinearAttention"](d_model, n_heads)
    return module


MODULES = {"linear": linear_attention, "latent": LatentAttention}


def network(name: str) -> Transformer:
    model = random_model(replace(GPT, positions=NoPositions()))
    for block in model.decoder.blocks:
        block.self_attn = MODULES[name](16, 4).double()
        randomise(block.self_attn)
    return model.eval()


@pytest.fixture(params=MODULES)
def model(request: pytest.FixtureRequest) -> Transformer:
    return network(request.param)


def test_it_trains(model: Transformer) -> None:
    optimizer, ids = torch.optim.SGD(model.parameters(), lr=0.05), random_ids(19, 4, 10)
    losses = []
    for _ in range(4):
        losses.append(F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()))
        losses[-1].backward()
        assert all(p.grad is not None for p in model.decoder.blocks[0].self_attn.parameters())
        optimizer.step()
        optimizer.zero_grad()
    assert losses[3] < losses[0]


@torch.no_grad()
def test_its_cache_equals_the_full_forward_pass(model: Transformer) -> None:
    """Rows of unequal length with padding on both sides, then expanded, reordered and joined rows."""
    ids, n_tokens = random_ids(19, 3, 9), [5, 2, 4]
    real = torch.zeros(3, 5, dtype=torch.bool)
    prompts = torch.zeros(3, 5, dtype=torch.long)
    for row, (n, begin) in enumerate(zip(n_tokens, (0, 2, 0), strict=True)):
        real[row, begin : begin + n] = True
        prompts[row, begin : begin + n] = ids[row, :n]
    logits, state = model.step(prompts, model.start(3, 40), real)
    pasts = [ids[row, :n] for row, n in enumerate(n_tokens)]
    for row, past in enumerate(pasts):
        assert_close(logits[row][real[row]], model(past[None])[0])
    rows = torch.tensor([2, 0, 0, 1])
    _, other = model.step(ids[:2, :7], model.start(2, 40))
    state = state.select(rows).joined(other)
    pasts = [pasts[row] for row in rows] + [ids[0, :7], ids[1, :7]]
    for seed in range(3):
        new = random_ids(19, 6, 1, seed=seed)
        logits, state = model.step(new, state)
        pasts = [torch.cat(pair) for pair in zip(pasts, new, strict=True)]
        for row, past in enumerate(pasts):
            assert_close(logits[row, -1], model(past[None])[0, -1])


@torch.no_grad()
def test_beams_branch_only_if_the_cache_has_slots() -> None:
    """A recurrent state cannot be shared by rows, so it is copied; both kinds give the logits of each row's past."""
    for name, branches in (("linear", False), ("latent", True)):
        model, ids = network(name), random_ids(19, 2, 4)
        _, state = model.step(ids, model.start(2, 20))
        state = state.branched()
        assert (state.branches is not None) == branches
        pasts = list(ids)
        for seed, rows in enumerate(([0, 0, 1], [2, 1, 0, 0], [3, 1, 1])):
            new = random_ids(19, len(rows), 1, seed=seed)
            logits, state = model.step(new, state.select(torch.tensor(rows)))
            pasts = [torch.cat((pasts[row], token)) for row, token in zip(rows, new, strict=True)]
            for row, past in enumerate(pasts):
                assert_close(logits[row, 0], model(past[None])[0, -1])


def test_a_cache_without_slots_is_not_cropped() -> None:
    model = network("linear")
    _, state = model.step(random_ids(19, 2, 4), model.start(2, 20))
    with pytest.raises(ValueError, match="crop: expected a slot for each token"):
        state.crop([2, 2])
