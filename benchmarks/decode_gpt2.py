"""Greedy decoding of a GPT-2 with random weights: glassformer and transformers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import gpt_peers
from glassformer.config.run import GenerationConfig
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from rates import DTYPES, choose_device, wait_for
from task import Precision, Task


def ours(
    precision: Precision,
    batch: int,
    n_prompt: int,
    n_new: int,
    sizes: dict[str, int],
    device: str = "auto",
) -> Task:
    """Decode with `inference.generation.Generation`."""
    torch.manual_seed(0)
    place, shape = choose_device(device), gpt_peers.Decoder(**sizes)
    network = gpt_peers.ours(shape).to(place, DTYPES[precision]).eval()
    prompts = _prompts(shape, batch, n_prompt).tolist()
    settings = Settings(GenerationConfig(max_new_tokens=n_new, temperature=0.0), shape.context, device=place)

    def decode() -> None:
        steps = list(Generation(network, prompts, settings))
        assert len(steps) == n_new, f"expected {n_new} steps, got {len(steps)}"

    return _task(decode, network, shape, precision, batch, n_prompt, n_new, place)


def transformers_gpt2(
    precision: Precision,
    batch: int,
    n_prompt: int,
    n_new: int,
    sizes: dict[str, int],
    cache: str = "dynamic",
    device: str = "auto",
) -> Task:
    """Decode with `generate` of transformers; `cache` is its `cache_implementation`."""
    torch.manual_seed(0)
    place, shape = choose_device(device), gpt_peers.Decoder(**sizes)
    network = gpt_peers.transformers_gpt2(shape).to(place, DTYPES[precision]).eval()
    model: Any = network.model
    model.config.use_cache = True
    ids = _prompts(shape, batch, n_prompt).to(place)

    def decode() -> None:
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            use_cache=True,
            min_new_tokens=n_new,
            max_new_tokens=n_new,
            pad_token_id=0,
            cache_implementation=cache,
        )
        assert found.shape[1] == n_prompt + n_new, f"expected {n_new} tokens, got {found.shape[1] - n_prompt}"

    return _task(decode, network, shape, precision, batch, n_prompt, n_new, place)


def _prompts(shape: gpt_peers.Decoder, batch: int, n_prompt: int) -> torch.Tensor:
    return torch.randint(shape.vocab_size, (batch, n_prompt), generator=torch.Generator().manual_seed(0))


def bytes_read(
    shape: gpt_peers.Decoder, batch: int, n_prompt: int, n_new: int, weight_size: int, cached_size: int
) -> float:
    """Return the bytes of weights and cache that `n_new` steps read, from the bytes of a weight and a cached number."""
    weights = 12 * shape.n_layers * shape.d_model**2 + shape.vocab_size * shape.d_model
    cached = sum(n_prompt + step for step in range(n_new)) * batch * 2 * shape.n_layers * shape.d_model
    return float(weight_size * n_new * weights + cached_size * cached)


def _task(
    decode: Callable[[], object],
    network: nn.Module,
    shape: gpt_peers.Decoder,
    precision: Precision,
    batch: int,
    n_prompt: int,
    n_new: int,
    place: torch.device,
) -> Task:
    size = DTYPES[precision].itemsize
    return Task(
        decode,
        amount=batch * n_new,
        bytes_read=bytes_read(shape, batch, n_prompt, n_new, size, size),
        parameters=sum(p.numel() for p in network.parameters()),
        wait=lambda: wait_for(place),
    )
