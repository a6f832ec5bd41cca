"""The fused path equals the readable reference; the module reshapes, caches and taps correctly."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from configs import Recorder, randomise
from glassformer.nn.attention import (
    HeadSizes,
    MultiHeadAttention,
    Projections,
    attention_fused,
    attention_reference,
    masked_softmax,
    repeat_kv,
    scaled_dot_product_scores,
)
from glassformer.nn.kernels import attention as kernels
from glassformer.nn.kv_cache import Slots
from glassformer.nn.layers import RMSNorm
from glassformer.nn.masks import Mask
from glassformer.nn.recurrence import additive_scores, multiplicative_scores
from tolerances import NETWORK, assert_close, is_close, sampled, sampled_mean

B, H, T, S, K = 3, 4, 6, 6, 5
KEYS = torch.tensor([[True] * 6, [False, False, True, True, True, True], [False] * 6])
DOCUMENTS = torch.tensor([[0, 0, 1, 1, 1, 2], [0] * 6, [0, 1, 2, 3, 4, 5]])
MASKS = {
    "all": Mask(),
    "causal": Mask(causal=True),
    "window": Mask(window=2),
    "causal_window": Mask(causal=True, window=3),
    "keys": Mask(keys=KEYS),
    "causal_keys": Mask(causal=True, keys=KEYS),
    "documents": Mask(documents=(DOCUMENTS, DOCUMENTS)),
    "everything": Mask(causal=True, window=2, keys=KEYS, documents=(DOCUMENTS, DOCUMENTS)),
    "query_index": Mask(causal=True, query_index=torch.tensor([0, 2, 2, 3, 5, 9])),
    "query_index_by_row": Mask(causal=True, window=4, query_index=torch.arange(18).reshape(3, 6) % 6),
}


def tensors(n_kv_heads: int = H, d_value: int = K, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, H, T, K), (B, n_kv_heads, S, K), (B, n_kv_heads, S, d_value), (B, H, T, S)]
    return [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]


def assert_same(mask: Mask, biased: bool, scale: float | None, made: list[Tensor]) -> None:
    """Compare context and every gradient of the two paths; all are finite."""
    results = []
    for path in (attention_fused, attention_reference):
        leaves = [x.detach().requires_grad_() for x in made]
        query, key, value, bias = leaves
        out = path(query, key, value, replace(mask, bias=bias) if biased else mask, scale)
        context = out if isinstance(out, Tensor) else out[0]
        direction = torch.linspace(-1, 2, context.numel(), dtype=context.dtype).reshape(context.shape).cos()
        (context * direction).sum().backward()
        results.append([context.detach(), *(x.grad for x in leaves[: 3 + biased])])
    for fused, reference in zip(*results, strict=True):
        assert fused is not None and fused.isfinite().all()
        assert_close(fused, reference)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("biased", "scale"), [(False, None), (True, 1.0)])
@pytest.mark.parametrize(("n_kv_heads", "d_value"), [(H, K), (2, K), (1, 7), (H, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_equals_reference(
    mask: str, biased: bool, scale: float | None, n_kv_heads: int, d_value: int, dtype: torch.dtype
) -> None:
    made = tensors(n_kv_heads, d_value, dtype)
    assert_same(MASKS[mask], biased, scale, made)


class KernelCalls:
    """A recorder of the arguments of the fused kernel, which it then calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heads: list[tuple[int, int]] = []
        """Number of query heads and key heads per call."""
        self.is_grouped: list[bool] = []
        kernel = F.scaled_dot_product_attention

        def noted(query: Tensor, key: Tensor, value: Tensor, **rest: Any) -> Tensor:
            assert key.shape[1] == value.shape[1]
            self.heads.append((query.shape[1], key.shape[1]))
            self.is_grouped.append(rest["enable_gqa"])
            return kernel(query, key, value, **rest)

        monkeypatch.setattr(F, "scaled_dot_product_attention", noted)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("n_kv_heads", "d_value"), [(H, K), (2, K), (1, 7)])
def test_repeated_keys_and_values_equal_the_reference(
    mask: str, biased: bool, n_kv_heads: int, d_value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CUDA, when no fused kernel takes groups, keys and values are repeated to as many heads as queries."""
    monkeypatch.setattr(kernels, "_kernel_takes_groups", lambda *_: False)
    calls = KernelCalls(monkeypatch)
    assert_same(MASKS[mask], biased, None, tensors(n_kv_heads, d_value))
    assert calls.heads == [(H, H)] and calls.is_grouped == [False]


@pytest.mark.parametrize(("device", "grouped_unmasked"), [("cpu", torch.__version__ >= "2.9"), ("meta", False)])
def test_groups_reach_only_kernels_that_take_them(
    device: str, grouped_unmasked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`meta` stands for any device that is not the CPU."""
    calls = KernelCalls(monkeypatch)
    for dtype, mask, d_value, is_grouped in (
        (torch.float32, Mask(), K, grouped_unmasked),
        (torch.float32, Mask(causal=True), K, grouped_unmasked),
        (torch.bfloat16, Mask(causal=True), K, True),
        (torch.float16, Mask(), K, True),
        (torch.bfloat16, Mask(), 7, grouped_unmasked),
        (torch.bfloat16, Mask(causal=True, window=2), K, grouped_unmasked),
    ):
        query = torch.zeros(B, H, T, K, dtype=dtype, device=device)
        value = torch.zeros(B, 2, S, d_value, dtype=dtype, device=device)
        context = attention_fused(query, query[:, :2], value, mask)
        assert context.shape == (B, H, T, d_value)
        assert calls.is_grouped.pop() is is_grouped
        assert calls.heads.pop() == (H, 2 if is_grouped else H)


@pytest.mark.parametrize("n_kv_heads", [H, 2])
@pytest.mark.parametrize("mask", MASKS)
def test_the_kernel_of_the_cpu_is_fused_for_every_mask(mask: str, n_kv_heads: int) -> None:
    """It runs with every kernel except the fused one disabled: the scores are never materialised."""
    query, key, value, _ = (x.detach().float() for x in tensors(n_kv_heads))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        context = attention_fused(query, key, value, MASKS[mask])
    expected, _, _ = attention_reference(query, key, value, MASKS[mask])
    assert_close(context, expected)


@settings(max_examples=25)
@given(st.data())
def test_fused_equals_reference_on_any_mask(data: st.DataObject) -> None:
    draw = data.draw
    n_queries, n_keys = draw(st.integers(1, 5)), draw(st.integers(1, 5))

    def table(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))

    mask = Mask(
        causal=draw(st.booleans()),
        window=draw(st.integers(0, 3)),
        keys=draw(st.sampled_from([None, table(2, B, n_keys).bool()])),
        query_index=draw(st.sampled_from([None, table(7, n_queries), table(7, B, n_queries)])),
        documents=draw(st.sampled_from([None, (table(2, B, n_queries), table(2, B, n_keys))])),
    )
    query, key, value, bias = tensors()
    made = [query[:, :, :n_queries], key[:, :, :n_keys], value[:, :, :n_keys], bias[:, :, :n_queries, :n_keys]]
    assert_same(mask, draw(st.booleans()), None, made)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_on_the_cpu(dtype: torch.dtype) -> None:
    """Forward and backward keep their dtype and are close to the reference in double precision."""
    query, key, value, _ = tensors(2, 7)
    expected, _, _ = attention_reference(query, key, value, MASKS["everything"])
    halves = [x.detach().to(dtype).requires_grad_() for x in (query, key, value)]
    context = attention_fused(*halves, MASKS["everything"])
    assert context.dtype == dtype
    assert_close(context.double(), expected, dtype=dtype)
    context.sum().backward()
    assert all(x.grad is not None and x.grad.dtype == dtype and x.grad.isfinite().all() for x in halves)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n_queries", [T, 1])
def test_half_precision_on_the_cpu_applies_bias_and_scale(dtype: torch.dtype, n_queries: int) -> None:
    """Use a scale that is not 1 / √K and a bias that reverses the weights: each alone, then both."""
    query, key, value, bias = (x.detach() for x in tensors())
    query, bias = query[:, :, :n_queries], 3 * bias[:, :, :n_queries]
    mask = Mask(keys=KEYS)
    for one_bias, scale in ((bias, None), (None, 1.5), (bias, 1.5)):
        biased = replace(mask, bias=one_bias)
        expected, _, _ = attention_reference(query, key, value, biased, scale)
        without, _, _ = attention_reference(query, key, value, mask)
        halves = [x.to(dtype).requires_grad_() for x in (query, key, value)]
        context = attention_fused(*halves, biased, scale)
        assert_close(context.double(), expected, dtype=dtype)
        assert (expected - without).abs().max() > 0.5, "the test would detect a missing bias or scale"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_queries", [32, 1])
def test_the_fused_path_drops_weights(dtype: torch.dtype, n_queries: int) -> None:
    """With values of 1 the context is the sum of the kept weights: mean 1, with the variance of dropout 0.5."""
    query = torch.zeros(64, H, n_queries, K, dtype=dtype, requires_grad=True)
    key, value = torch.zeros(64, H, S, K, dtype=dtype), torch.ones(64, H, S, K, dtype=dtype)
    assert torch.equal(attention_fused(query, key, value, Mask()), torch.ones_like(query))
    sums = attention_fused(query, key, value, Mask(), dropout=0.5)[..., 0].double()
    assert sums.mean().item() == sampled_mean(1.0, sums.numel(), S**-0.5)
    assert sums.std().item() == sampled(S**-0.5, sums.numel())  # S weights of 1 / S, each 0 or doubled


@pytest.mark.parametrize("outlier", [1e3, 1e6, 1e10, 1e20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_bias_overrides_the_mask(outlier: float, dtype: torch.dtype) -> None:
    """A hidden key has a large bias, or a visible key a large negative one: a finite mask value would fail."""
    query, key, value, _ = (x.detach() for x in tensors(dtype=dtype))
    mask = Mask(causal=True)
    query = torch.zeros_like(query)  # scores are the bias alone, without rounding
    hidden = ~mask.dense(T, S)
    for bias in (torch.where(hidden, outlier, 0.0), torch.where(hidden, 0.0, -outlier)):
        made = [query, key, value, bias.to(dtype).expand(B, H, T, S)]
        context = attention_fused(*made[:3], replace(mask, bias=made[3]))
        expected = attention_fused(*made[:3], mask)
        assert_close(context, expected, terms=NETWORK)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("n_kv_heads", [H, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_fully_masked_rows_give_zeros_and_no_gradient(biased: bool, n_kv_heads: int, dtype: torch.dtype) -> None:
    """On the fused path: a batch row of only padding, and queries whose document has no key."""
    documents = DOCUMENTS.clone()
    documents[:, 0] = 7
    mask = Mask(keys=KEYS, documents=(documents, DOCUMENTS))
    empty = ~mask.dense(T, S).any(dim=-1).expand(B, H, T)
    assert empty.any() and not empty.all() and empty[2].all()
    leaves = [x.detach().to(dtype).requires_grad_() for x in tensors(n_kv_heads)]
    query, key, value, bias = leaves
    context = attention_fused(query, key, value, replace(mask, bias=bias) if biased else mask)
    assert context[empty].count_nonzero() == 0 and context[~empty].count_nonzero() > 0
    context.square().sum().backward()
    for x in leaves[: 3 + biased]:
        assert x.grad is not None and x.grad.isfinite().all()
    assert query.grad is not None and value.grad is not None
    assert query.grad[empty].count_nonzero() == 0 and query.grad[~empty].count_nonzero() > 0
    assert value.grad[2].count_nonzero() == 0 and value.grad[:2].count_nonzero() > 0


def test_the_reference_equals_equation_1_entry_by_entry() -> None:
    query, key, value, _ = tensors(2)
    context, weights, scores = attention_reference(query, key, value, Mask(causal=True))
    for b, h, t in itertools.product(range(B), range(H), range(T)):
        group = h // 2  # two query heads share each key-value head
        raw = torch.stack([query[b, h, t] @ key[b, group, s] / K**0.5 for s in range(S)])
        e = raw[: t + 1].exp() / raw[: t + 1].exp().sum()
        assert_close(scores[b, h, t], raw)
        assert_close(weights[b, h, t], torch.cat([e, torch.zeros(S - t - 1)]))
        assert_close(context[b, h, t], e @ value[b, group, : t + 1])


def test_masked_softmax_of_an_empty_row_has_finite_gradients() -> None:
    scores = torch.randn(2, 3, requires_grad=True)
    masked_softmax(scores, torch.tensor([[True, False, True], [False] * 3])).square().sum().backward()
    assert scores.grad is not None and scores.grad.isfinite().all()
    assert scores.grad[0].abs().sum() > 0 and scores.grad[1].abs().sum() == 0


def test_additive_and_multiplicative_scores() -> None:
    query, key, vector = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(4)
    for b, t, s in itertools.product(range(2), range(3), range(5)):
        added = (vector * torch.tanh(query[b, t] + key[b, s])).sum()
        assert_close(additive_scores(query, key, vector)[b, t, s], added)
        assert_close(multiplicative_scores(query, key)[b, t, s], query[b, t] @ key[b, s])
    assert_close(scaled_dot_product_scores(query, key), multiplicative_scores(query, key) / 2)
    assert_close(scaled_dot_product_scores(query, key, 3.0), multiplicative_scores(query, key) * 3)


def test_adjacent_query_heads_share_keys() -> None:
    x = torch.arange(2.0)[None, :, None, None]
    assert repeat_kv(x, 6).flatten().tolist() == [0, 0, 0, 1, 1, 1]


def attention(**changes: object) -> MultiHeadAttention:
    sizes = {name: changes.pop(name) for name in ("n_kv_heads", "d_head") if name in changes}
    parts = {name: changes.pop(name) for name in list(changes) if name not in ("scale", "dropout")}
    made = MultiHeadAttention(12, 4, sizes=HeadSizes(**sizes), projections=Projections(**parts), **changes)  # type: ignore[arg-type]
    made = made.double().eval()
    randomise(made)
    return made


def test_the_fused_projection_stacks_three_projections() -> None:
    apart, fused = attention(n_kv_heads=2, d_head=5), attention(n_kv_heads=2, d_head=5, fused_qkv=True)
    with torch.no_grad():
        fused.out_proj.load_state_dict(apart.out_proj.state_dict())
        for part in ("weight", "bias"):
            three = [getattr(apart.get_submodule(f"{name}_proj"), part) for name in "qkv"]
            getattr(fused.qkv_proj, part).copy_(torch.cat(three))
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    assert_close(fused(x), apart(x))


def test_each_head_is_normed_before_the_scores() -> None:
    made = attention(qk_norm=RMSNorm)
    tap = Recorder()
    made(torch.randn(2, 3, 12, dtype=torch.float64), tap=tap)
    for name, norm in (("query", made.q_norm), ("key", made.k_norm)):
        lengths = (tap.seen[name] / norm.weight).square().mean(-1)
        assert (lengths - 1).abs().max() < 1e-3  # eps / mean square is less


def test_a_memory_can_be_projected_in_advance() -> None:
    made = attention(d_memory=7, n_kv_heads=2)
    x, memory = torch.randn(2, 3, 12).double(), torch.randn(2, 5, 7).double()
    assert_close(made(x, made.project_memory(memory)), made(x, memory))


def test_the_cache_holds_all_earlier_keys_and_values() -> None:
    made = attention(n_kv_heads=2)
    x = torch.randn(2, 4, 12).double()
    cache = made.new_cache(2, 4, x)
    expected = made(x, mask=Mask(causal=True))
    for t in range(4):
        cache.slots = Slots(t, t + 1)
        out = made(x[:, t : t + 1], cache=cache)
        assert_close(out, expected[:, t : t + 1])


@pytest.mark.parametrize("n_prompt", [4, 60], ids=["by the kernel", "by blocks"])
@pytest.mark.parametrize("tap", [None, lambda _, x: x], ids=["fused", "reference"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cache_on_a_cpu_keeps_half_precision_in_fp32(
    dtype: torch.dtype, tap: Callable[[str, Tensor], Tensor] | None, n_prompt: int
) -> None:
    made = attention(n_kv_heads=2).to(dtype)
    x = torch.randn(2, n_prompt + 1, 12).to(dtype)
    expected = copy.deepcopy(made).double()(x.double(), mask=Mask(causal=True))
    cache = made.new_cache(2, n_prompt + 1, x)
    cache.grow(n_prompt + 2)
    assert cache.keys.dtype == cache.values.dtype == torch.float32
    cache.slots = Slots(0, n_prompt)
    prompt = made(x[:, :-1], cache=cache, mask=Mask(causal=True), tap=tap)
    cache.slots = Slots(n_prompt, n_prompt + 1)
    token = made(x[:, -1:], cache=cache, tap=tap)
    found = torch.cat((prompt, token), 1)
    assert found.dtype == dtype
    assert (found - expected).abs().max() < 0.03 * expected.abs().max()


@pytest.mark.parametrize("name", ["query", "key", "value", "scores", "weights", "context"])
def test_a_tap_replaces_each_named_tensor(name: str) -> None:
    """Each named tensor contributes to the output: a replacement gives the result that is computed by hand."""
    made = attention(n_kv_heads=2)
    x = torch.randn(2, 5, 12).double()
    seen = Recorder()
    before = made(x, mask=Mask(causal=True), tap=seen)
    assert not is_close(made(x, mask=Mask(causal=True), tap=Recorder({name: lambda x: x.flip(-1)})), before)
    ablated = made(x, mask=Mask(causal=True), tap=Recorder({name: torch.zeros_like}))
    if name in ("value", "weights", "context"):  # zeros: only the output's bias is left
        assert_close(ablated, made.out_proj.bias.expand(2, 5, 12))
    else:  # equal scores: the mean of the values so far
        values = repeat_kv(seen.seen["value"], 4).cumsum(2) / torch.arange(1, 6)[:, None]
        assert_close(ablated, made.out_proj(values.transpose(1, 2).flatten(2)))


def test_a_tap_receives_the_weights_before_dropout() -> None:
    made = attention(dropout=0.5).train()
    tap = Recorder()
    made(torch.randn(2, 5, 12).double(), tap=tap)
    assert_close(tap.seen["weights"].sum(-1), torch.ones(2, 4, 5).double())


def test_a_wrong_mask_or_width_is_refused_by_name() -> None:
    attention = MultiHeadAttention(8, 2)
    with pytest.raises(TypeError, match=r"mask: expected a tensor or a Mask, such as Mask\(causal=True\), got a str"):
        attention(torch.zeros(1, 3, 8), mask="causal")
    with pytest.raises(ValueError, match=r"x: expected \(B, T, 8\), width 8 \(d_model\), got float32 \(1, 3, 9\)"):
        attention(torch.zeros(1, 3, 9))


def test_a_hook_sees_the_queries_or_the_keys_of_norms_without_weights() -> None:
    """Without hooks, one call normalises both."""
    norms = Projections(qk_norm=lambda width: RMSNorm(width, weight=False))
    module = MultiHeadAttention(16, 4, sizes=HeadSizes(n_kv_heads=2), projections=norms).eval()
    x, seen = torch.randn(2, 5, 16), {}
    expected = module(x)
    for name in ("q_norm", "k_norm"):
        module.get_submodule(name).register_forward_hook(lambda _module, _inputs, y, name=name: seen.update({name: y}))
    assert_close(module(x), expected)
    assert {name: tuple(y.shape) for name, y in seen.items()} == {"q_norm": (2, 5, 4, 4), "k_norm": (2, 5, 2, 4)}
