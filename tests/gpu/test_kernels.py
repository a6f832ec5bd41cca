"""Fused attention, the loss by rows and generation give the results of the readable reference, or of the CPU."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from configs import CROSS, GENERATORS, RECURRENT, random_ids, random_model
from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.inference.beam import beam_search
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.search import Search
from glassformer.nn.attention import attention_fused, attention_reference
from glassformer.nn.experts import Experts, Router
from glassformer.nn.kernels import cross_entropy
from glassformer.nn.kernels import linear as grouped
from glassformer.nn.masks import Mask
from glassformer.objectives import loss
from tolerances import NETWORK, assert_close

pytestmark = [pytest.mark.cuda, pytest.mark.filterwarnings("default")]

B, H, T, K = 3, 4, 80, 64
KEYS = torch.ones(B, T, dtype=torch.bool)
KEYS[1, 50:] = False
KEYS[2] = False
DOCUMENTS = torch.arange(T).repeat(B, 1) // 30
MASKS = {
    "all": Mask(),
    "causal": Mask(causal=True),
    "causal_window": Mask(causal=True, window=7),
    "keys": Mask(keys=KEYS),
    "causal_keys": Mask(causal=True, keys=KEYS),
    "documents": Mask(causal=True, documents=(DOCUMENTS, DOCUMENTS)),
}


def moved(mask: Mask, device: torch.device) -> Mask:
    def move(value: Any) -> Any:
        return tuple(map(move, value)) if isinstance(value, tuple) else getattr(value, "to", lambda _: value)(device)

    return replace(mask, **{field.name: move(getattr(mask, field.name)) for field in fields(mask)})


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("n_kv_heads", "d_value"), [(H, K), (1, K), (2, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_attention_equals_the_reference(
    mask: str, biased: bool, n_kv_heads: int, d_value: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Context and gradients; the reference uses fp32 from the same rounded inputs."""
    shapes = [(B, H, T, K), (B, n_kv_heads, T, K), (B, n_kv_heads, T, d_value), (1, H, T, T)]
    made = [torch.randn(shape).to(device, dtype) for shape in shapes]
    where, results = moved(MASKS[mask], device), []
    for path, kind in ((attention_fused, dtype), (attention_reference, torch.float32)):
        leaves = [x.to(kind, copy=True).requires_grad_() for x in made]
        out: Any = path(*leaves[:3], replace(where, bias=leaves[3]) if biased else where)
        context = out if isinstance(out, Tensor) else out[0]
        context.float().sin().sum().backward()
        results.append([context.detach().float(), *(x.grad.float() for x in leaves[: 3 + biased])])  # type: ignore[union-attr]
    for fused, reference in zip(*results, strict=True):
        assert fused.isfinite().all()
        assert_close(fused, reference, dtype=dtype, terms=NETWORK if dtype == torch.float32 else None)


@pytest.mark.parametrize("n_kv_heads", [H, 1])
def test_causal_attention_in_bfloat16_is_flash_attention(n_kv_heads: int, gpu: torch.device) -> None:
    """Without the flash kernel, this raises an error."""
    query, *rest = (torch.randn(B, n, T, K, device=gpu, dtype=torch.bfloat16) for n in (H, n_kv_heads, n_kv_heads))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        attention_fused(query, *rest, Mask(causal=True))


def packed(n_rows: int, n_tokens: int, seed: int, device: torch.device) -> Tensor:
    """Draw documents of about 100 tokens, (B, T), with padding at the end of the last row."""
    ids = (torch.rand(n_rows, n_tokens, generator=torch.Generator().manual_seed(seed)) < 0.01).cumsum(1)
    ids[-1, n_tokens - n_tokens // 5 :] = -1
    return ids.to(device)


@pytest.mark.parametrize(
    ("causal", "window", "padded", "n_kv_heads", "width", "d_value"),
    [
        (True, 0, False, H, 64, 64),
        (True, 0, True, 1, 128, 128),
        (True, 100, True, 2, 32, 64),
        (False, 0, True, H, 16, 16),
        (False, 100, False, 2, 64, 64),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flex_attention_equals_the_reference(
    causal: bool, window: int, padded: bool, n_kv_heads: int, width: int, d_value: int, dtype: torch.dtype,
    gpu: torch.device,
) -> None:  # fmt: skip
    """Context and gradients on packed rows; with padding, one row has no key. Tolerances as for the fused kernels."""
    torch._dynamo.reset()  # torch compiles a function eight times only
    documents = packed(B, 600, 0, gpu)
    keys = documents >= 0
    keys[0] &= not padded
    mask = Mask(causal=causal, window=window, keys=keys if padded else None, documents=(documents, documents))
    shapes = [(B, 600, H, width), (B, 600, n_kv_heads, width), (B, 600, n_kv_heads, d_value)]
    made, results = [torch.randn(shape).transpose(1, 2).to(gpu, dtype) for shape in shapes], []
    flex = mask.as_blocks()
    for path, where, kind in ((attention_fused, flex, dtype), (attention_reference, mask, torch.float32)):
        leaves = [x.to(kind, copy=True).requires_grad_() for x in made]
        out: Any = path(*leaves, where)
        context = out if isinstance(out, Tensor) else out[0]
        context.float().sin().sum().backward()
        results.append([context.detach().float(), *(x.grad.float() for x in leaves)])  # type: ignore[union-attr]
    for found, reference in zip(*results, strict=True):
        assert found.isfinite().all()
        assert_close(found, reference, dtype=dtype, terms=NETWORK if dtype == torch.float32 else None)


def test_flex_attention_takes_less_memory_than_a_dense_mask(gpu: torch.device) -> None:
    """Forward and backward on rows of 8192 tokens; FlexAttention needs less than one mask of bool."""
    leaves = [torch.randn(B, H, 8192, K, device=gpu, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    documents = packed(B, 8192, 0, gpu)
    mask, peaks = Mask(causal=True, documents=(documents, documents)), []
    for masked in (mask.as_blocks, lambda: mask.materialized(8192, 8192, gpu)):
        for _ in range(2):  # the first compiles
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            context = attention_fused(*leaves, masked())
            torch.autograd.grad(context, leaves, torch.ones_like(context))
            del context
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[0] < B * 8192**2 < peaks[1]


@pytest.mark.parametrize("has_autocast", [True, False])
def test_experts_in_one_kernel_equal_the_loop_and_do_not_wait(
    has_autocast: bool, gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output and gradients, which are 0 for the experts without tokens: at least half of them."""
    if not grouped.has_kernel(gpu):
        pytest.skip("this GPU has no kernel for products in groups")
    layer = Experts(Router(64, 64, n_active=2), d_ff=96, gated=True).to(gpu)
    layer = layer if has_autocast else layer.bfloat16()
    x = torch.randn(2, 8, 64, device=gpu, dtype=layer.up_proj.weight.dtype, requires_grad=True)
    leaves, results = {"x": x, **dict(layer.named_parameters())}, []
    autocast = torch.autocast("cuda", torch.bfloat16, enabled=has_autocast)

    def run() -> None:
        with autocast:
            y = layer(x)
        gradients = torch.autograd.grad(y, list(leaves.values()), torch.ones_like(y))
        results.append({"y": y.detach(), **dict(zip(leaves, gradients, strict=True))})

    run()  # what CUDA prepares once may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    monkeypatch.setattr(grouped, "has_kernel", lambda device: False)
    run()
    with autocast:
        is_used = (layer.router(x) > 0).flatten(0, 1).any(dim=0)
    _, found, expected = results
    assert int(is_used.sum()) <= 32 and not found["up_proj.weight"].unflatten(0, (64, -1))[~is_used].any()
    for name, of_loop in expected.items():
        assert_close(found[name], of_loop, terms=3, dtype=torch.bfloat16)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_by_rows_equals_that_of_torch(
    smoothing: float, dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "CHUNK_ELSEWHERE", 5 * 50)
    logits = torch.randn(23, 50, device=device).to(dtype).requires_grad_()
    labels = torch.arange(23, device=device)
    labels[::4] = -100
    found = cross_entropy.cross_entropy_by_rows(logits, labels, -100, smoothing)
    expected = F.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=smoothing)
    assert_close(found[0], expected)
    gradients = [torch.autograd.grad(total, logits)[0] for total in (found[0], expected)]
    assert_close(*gradients)


def test_a_large_loss_takes_little_memory(gpu: torch.device) -> None:
    """Beside logits and their gradient, the peak is a few chunks in fp32 (of 256 MiB)."""
    logits = torch.randn(8192, 50304, device=gpu, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.zeros(8192, device=gpu, dtype=torch.long)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loss.token_cross_entropy(logits, labels, len(labels)).total.backward()
    assert torch.cuda.max_memory_allocated() - before < logits.nbytes + 5 * 4 * cross_entropy.CHUNK_ELSEWHERE


PROMPTS = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3, 5]]


@pytest.mark.parametrize("name", [name for name in GENERATORS if name not in CROSS])
def test_greedy_decoding_equals_that_of_the_cpu(name: str, device: torch.device) -> None:
    config = GenerationConfig(max_new_tokens=10, temperature=0.0)
    found = []
    for place in (torch.device("cpu"), device):
        model = random_model(name, dtype=torch.float32).to(place)
        found.append(list(Generation(model, PROMPTS, Settings(config, model.config.max_len, device=place))))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", [*CROSS, *RECURRENT])
def test_translation_equals_that_of_the_cpu(name: str, device: torch.device) -> None:
    """Greedy decoding and beam search, with a source that has padding."""
    greedy = GenerationConfig(max_new_tokens=8, temperature=0.0)
    found = []
    for place in (torch.device("cpu"), device):
        model = random_model(name, dtype=torch.float32).to(place)
        source = random_ids(model.config.encoder_vocab_size, 2, 7, seed=2).to(place)
        mask = torch.ones_like(source, dtype=torch.bool)
        mask[1, 5:] = False
        max_len = model.config.max_len
        sources = [source[0].tolist(), source[1, :5].tolist()]
        ids = list(Generation(model, [[1], [1]], Settings(greedy, max_len, device=place), sources=sources))
        beams = beam_search(model, (source, mask), Search(BeamConfig(beam=3, max_new_tokens=8), 1, 2, max_len))
        found.append((ids, [[hypothesis.ids for hypothesis in row] for row in beams]))
    assert found[0] == found[1]
