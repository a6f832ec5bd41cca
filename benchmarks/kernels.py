"""Times of the fast paths on this CPU beside plain PyTorch, in turns: they check the rule of `nn/kernels/processor.py`.

python benchmarks/kernels.py
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from glassformer.nn.attention import attention_fused
from glassformer.nn.kernels import processor
from glassformer.nn.kernels.linear import PackedWeights
from glassformer.nn.layers import Linear
from glassformer.nn.masks import Mask

ROUNDS, SECONDS = 7, 0.04
"""A time is the least of these rounds, each of at least so many seconds."""
N_LAYERS, WIDTH, OUT = 8, 768, 3072
"""Layers of a row of products: together larger than the caches, as the weights of a model are."""
VOCABULARY, ATTENDED = 1 << 15, 4096
"""Outputs of the wide layer, and tokens of an attention over all rows of a batch."""
Call = Callable[[], object]


def works(has_bf16: bool) -> Iterator[tuple[str, Call]]:
    """Yield names and calls; a call runs under the processor that is `processor.this` then."""
    dtypes = {"fp32": torch.float32} | ({"bf16": torch.bfloat16} if has_bf16 else {})
    for name, dtype in dtypes.items():
        for n_rows in (1, 4, 16, 64):
            yield f"generation {name}, {n_rows} rows", generation(n_rows, dtype)
        yield f"step of a layer {name}", step(1024, WIDTH, OUT, dtype)
        yield f"step of a vocabulary {name}", step(256, 256, VOCABULARY, dtype)
    for n_tokens in (64, 256, 1024) if has_bf16 else ():
        yield f"step of attention bf16, {n_tokens} tokens", attention(n_tokens)


def generation(n_rows: int, dtype: torch.dtype) -> Call:
    layers = [Linear(WIDTH, OUT).to(dtype) for _ in range(N_LAYERS)]
    x, block = torch.randn(n_rows, WIDTH, dtype=dtype), PackedWeights()
    plain = PackedWeights()  # a block keeps what it packed, so each kind of processor has its own

    def call() -> None:
        with block if processor.this.uses_onednn else plain, torch.inference_mode():
            for layer in layers:
                layer(x)

    return call


def step(n_rows: int, width: int, n_out: int, dtype: torch.dtype) -> Call:
    layer, x = Linear(width, n_out, bias=False), torch.randn(n_rows, width, requires_grad=True)

    def call() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            y = layer(x)
        y.backward(torch.ones_like(y))

    return call


def attention(n_tokens: int) -> Call:
    shape = (ATTENDED // n_tokens, 8, n_tokens, 64)
    query, key, value = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))

    def call() -> None:
        y = attention_fused(query, key, value, Mask(causal=True))
        y.backward(torch.ones_like(y))

    return call


def seconds_of(call: Call, here: processor.Processor) -> float:
    """Return the mean seconds of a call on a kind of processor, over `SECONDS`."""
    processor.this, n, began = here, 0, time.perf_counter()
    while n == 0 or time.perf_counter() - began < SECONDS:
        call()
        n += 1
    return (time.perf_counter() - began) / n


def main() -> None:
    fast = processor.this
    plain = replace(fast, has_onednn=False)
    print(f"{fast}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'ms':36}{'plain':>9}{'chosen':>9}{'gain':>7}")
    try:
        for name, call in works(fast.multiplies_bfloat16):
            times = [[seconds_of(call, here) for here in (plain, fast)] for _ in range(1 + ROUNDS)][1:]
            before, after = map(min, zip(*times, strict=True))
            print(f"{name:36}{1000 * before:9.2f}{1000 * after:9.2f}{before / after:7.2f}", flush=True)
    finally:
        processor.this = fast


if __name__ == "__main__":
    main()
