"""Attention by blocks equals the reference: masks, biases, block sizes, gradients, dropout."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from glassformer.nn.attention import attention_fused, attention_reference
from glassformer.nn.kernels import attention, processor
from glassformer.nn.kernels.attention import Blocks
from glassformer.nn.masks import Mask
from tolerances import assert_close

B, H, T, K = 3, 4, 40, 16
FAST = replace(processor.this, has_onednn=True, known=processor.FIXED["bf16"])


def inputs(n_keys: int = T, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((B, T, H, K), (B, n_keys, H, K), (B, n_keys, H, K + 2))
    return [torch.randn(shape, dtype=dtype).transpose(1, 2).requires_grad_() for shape in shapes]


def with_gradients(context: Tensor, of: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(1)
    factors = torch.randn(context.shape, dtype=torch.float64).to(context)
    return [context, *torch.autograd.grad((context * factors).sum(), of)]


@pytest.fixture(params=[1 << 21, 4 * 40 * 40, 2 * 4 * 40 * 40, 1000])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "BLOCK", request.param)
    monkeypatch.setattr(attention, "MIN_QUERIES", 7)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("case", ["causal", "none", "padding", "per row", "per head", "causal with bias"])
def test_context_and_gradients_equal_the_reference(case: str) -> None:
    n_keys = T if "causal" in case else 24
    qkv = inputs(n_keys)
    added = mask = None
    torch.manual_seed(2)
    if case == "padding":
        allowed = torch.rand(B, 1, 1, n_keys) < 0.7
        mask = Mask(keys=allowed[:, 0, 0])
        added = torch.zeros(allowed.shape, dtype=torch.float64).masked_fill(~allowed, -math.inf)
    elif case == "per row":
        added = torch.randn(B, 1, T, n_keys, dtype=torch.float64)
    elif case in ("per head", "causal with bias"):
        added = torch.randn(1, H, T, n_keys, dtype=torch.float64)
    mask = mask or Mask(causal="causal" in case)
    bias = None if case == "padding" else added
    expected, _, _ = attention_reference(*qkv, replace(mask, bias=bias))  # type: ignore[arg-type]
    if case == "causal with bias":
        added = added + torch.full((T, T), -math.inf).triu(1)
    found = Blocks.apply(*qkv, added, case == "causal", 1 / math.sqrt(K), 0.0)
    for one, other in zip(with_gradients(expected, qkv), with_gradients(found, qkv), strict=True):
        assert_close(other, one)


@pytest.mark.usefixtures("block")
def test_dropout_keeps_the_mean_and_gives_exact_gradients() -> None:
    qkv = inputs()
    function = lambda *x, dropout=0.4: Blocks.apply(*x, None, True, 0.25, dropout)  # noqa: E731

    def seeded(*x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return function(*x)

    small = [x[:1, :1, :8].detach().clone().requires_grad_() for x in qkv]
    assert torch.autograd.gradcheck(seeded, small)
    mean = torch.stack([function(*qkv).detach() for _ in range(400)]).mean(0)
    assert (mean - function(*qkv, dropout=0.0)).abs().mean() < 0.05


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("keys", [None, "padded", "empty"])
def test_the_fused_path_in_bfloat16_equals_the_reference(
    groups: int, keys: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU that is fast in bfloat16, by blocks: also for grouped keys, padding, and rows that see no key."""
    monkeypatch.setattr(processor, "this", FAST)
    monkeypatch.setattr(attention, "MIN_WEIGHTS", 1)
    calls, blocks = [], attention._blocks
    monkeypatch.setattr(attention, "_blocks", lambda *x: calls.append(1) or blocks(*x))
    query, key, value = inputs()
    key, value = key[:, :groups], value[:, :groups]
    real = torch.ones(B, T, dtype=torch.bool)
    real[1, 30:] = keys is None
    real[2] = keys != "empty"
    mask = Mask(causal=True, keys=None if keys is None else real)
    expected, _, _ = attention_reference(query, key, value, mask)
    halves = [x.detach().bfloat16().requires_grad_() for x in (query, key, value)]
    found = attention_fused(*halves, mask)  # type: ignore[arg-type]
    assert calls and found.dtype == torch.bfloat16
    of = [query, key, value]
    for one, other in zip(with_gradients(expected, of), with_gradients(found, halves), strict=True):
        assert (one - other).abs().max() < 0.03 * one.abs().max()


@pytest.mark.parametrize("n_queries", [24, 40])
def test_causal_attention_in_bfloat16_may_have_more_or_fewer_queries_than_keys(
    n_queries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "this", FAST)
    monkeypatch.setattr(attention, "MIN_WEIGHTS", 1)
    query, key, value = inputs(n_keys=30)
    qkv = [query[:, :, :n_queries], key, value]
    expected, _, _ = attention_reference(*qkv, Mask(causal=True))  # type: ignore[arg-type]
    found = attention_fused(*(x.bfloat16() for x in qkv), Mask(causal=True))  # type: ignore[arg-type]
    assert (found - expected).abs().max() < 0.03 * expected.abs().max()


def test_a_block_of_causal_attention_reads_no_later_key() -> None:
    query = torch.zeros(2 * 8, 1024, 1)
    blocks = [block[:2] for block in attention._blocks(query, query, None, 8, True, 1.0)]
    assert all(keys[1].stop == queries[1].stop for queries, keys in blocks)
    assert {(rows.start, queries.start) for (rows, queries), _ in blocks} == {
        (row, begin) for row in (0, 8) for begin in range(0, 1024, 256)
    }
