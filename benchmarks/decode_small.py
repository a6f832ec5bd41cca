"""Greedy decoding of the demo's model in several sizes: glassformer, and the loop that one writes by hand."""

from collections.abc import Callable
from dataclasses import replace

import torch

from glassformer.config.presets import preset
from glassformer.config.run import GenerationConfig
from glassformer.config.transformer import NormalInit, Stack
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer
from plain_loops import PlainDecoder
from rates import DTYPES
from task import Precision, Task

N_PROMPT = 16


def network(
    n_layers: int, d_model: int, n_heads: int, vocab_size: int, precision: Precision, max_len: int
) -> Transformer:
    """Build the model with random weights, the same in every process."""
    torch.manual_seed(0)
    stack = Stack(n_layers, n_heads, d_ff=4 * d_model)
    config = replace(preset("modern-mini"), decoder=stack, d_model=d_model, vocab_size=vocab_size, max_len=max_len)
    return build_model(replace(config, init=NormalInit(std=0.1))).to(DTYPES[precision]).eval()


def ours(precision: Precision, batch: int, n_new: int, sizes: dict[str, int]) -> Task:
    """Decode with `inference.generation.Generation`."""
    model, prompts = network(**sizes, precision=precision, max_len=N_PROMPT + n_new), drawn(batch, sizes)
    settings = Settings(GenerationConfig(max_new_tokens=n_new, temperature=0.0), N_PROMPT + n_new)

    def decode() -> list[list[int]]:
        steps = list(Generation(model, prompts.tolist(), settings))
        return [[step[row] for step in steps] for row in range(batch)]

    return _task(decode, model, batch, n_new)


def plain(precision: Precision, batch: int, n_new: int, sizes: dict[str, int]) -> Task:
    """Decode with a plain loop (`plain_loops.py`)."""
    model, prompts = network(**sizes, precision=precision, max_len=N_PROMPT + n_new), drawn(batch, sizes)
    loop = PlainDecoder(model, batch, N_PROMPT + n_new)
    return _task(lambda: loop.greedy(prompts, n_new).tolist(), model, batch, n_new)


def drawn(batch: int, sizes: dict[str, int]) -> torch.Tensor:
    return torch.randint(sizes["vocab_size"], (batch, N_PROMPT), generator=torch.Generator().manual_seed(0))


def _task(decode: Callable[[], list[list[int]]], model: Transformer, batch: int, n_new: int) -> Task:
    return Task(decode, amount=batch * n_new, parameters=sum(p.numel() for p in model.parameters()))
