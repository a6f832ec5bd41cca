"""Time of one training step of glassformer and of other packages, measured in one run.

    python benchmarks/train_step.py [--shape shakespeare|gpt2|translation] [--precision fp32|bf16] [--compile]

Every model has the same sizes, the same fused AdamW, clipping and data. The models take turns (A B C A B C …), so that
a change in the speed of the machine affects all of them. The table shows medians, and the median of the ratios to
glassformer in each round; the measured rate of matrix products is the limit of the machine.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gpt_peers
import translation_peers

SHAPES: dict[str, gpt_peers.Decoder | translation_peers.EncoderDecoder] = {
    "shakespeare": gpt_peers.Decoder(4, 4, 128, 65, 64, 12),
    "gpt2": gpt_peers.Decoder(12, 12, 768, 50257, 256, 4),
    "translation": translation_peers.EncoderDecoder(),
}


def make_step(
    network: nn.Module,
    inputs: tuple[Tensor, ...],
    labels: Tensor,
    autocast: torch.dtype | None,
    compiled: bool,
    device: torch.device,
) -> Callable[[], None]:
    """Build a function without arguments that runs one whole optimizer step."""
    network.to(device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(network) if compiled else network
    parameters = list(network.parameters())

    def step() -> None:
        with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
            logits = forward(*inputs)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def matmul_rate(dtype: torch.dtype, device: torch.device, size: int = 1024) -> float:
    """Return the FLOP/s of a square matrix product, the best of eight."""
    a = torch.randn(size, size, dtype=dtype, device=device)
    best = float("inf")
    for _ in range(8):
        began = time.perf_counter()
        (a @ a).sum().item()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="shakespeare")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    shape, device = SHAPES[arguments.shape], torch.device(arguments.device)
    autocast = torch.bfloat16 if arguments.precision == "bf16" else None

    torch.manual_seed(0)
    peers: Any = gpt_peers if isinstance(shape, gpt_peers.Decoder) else translation_peers
    inputs, labels = shape.inputs(device)
    steps = {
        name: make_step(make(shape), inputs, labels, autocast, arguments.compile, device)
        for name, make in peers.MODELS.items()
    }

    def timed(step: Callable[[], None]) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began

    for step in steps.values():
        for _ in range(5):
            step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(arguments.rounds):
        for place in range(len(names)):  # every model takes every place in the order
            name = names[(number + place) % len(names)]
            seconds[name].append(timed(steps[name]))

    rate = matmul_rate(autocast or torch.float32, device)
    mode = f"{arguments.precision}, {'compiled' if arguments.compile else 'eager'}, {device}"
    print(f"training step, {arguments.shape} shape ({shape.n_tokens} tokens), {mode}, torch {torch.__version__}")
    print(f"matrix products of 1024²: {rate / 1e9:,.0f} GFLOP/s; {arguments.rounds} rounds in turns, medians\n")
    print(f"{'':<24}{'ms':>8}{'tokens/s':>11}{'of matmul rate':>16}{'time ratio':>13}")
    own = seconds["glassformer"]
    for name, times in seconds.items():
        median = statistics.median(times)
        ratio = statistics.median(t / o for t, o in zip(times, own, strict=True))
        share = shape.step_flops / median / rate
        print(f"{name:<24}{1000 * median:>8.2f}{shape.n_tokens / median:>11,.0f}{share:>15.0%}{ratio:>13.2f}")


if __name__ == "__main__":
    main()
