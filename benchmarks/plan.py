"""Predictions of `glassformer plan` and measurements on this machine: a small GPT, trained for a few steps.

    python benchmarks/plan.py [--preset gpt-mini] [--batch-size 8] [--context 128] [--precision fp32|bf16] [--steps 12]

The measured rate of large matrix products replaces the rate of the data sheet. Step times are medians after two warm-up
steps; the predicted times use the plan's utilisation, and the last line is the utilisation reached. Kept bytes are the
distinct storages that autograd saves, without weights; on a GPU, the table also has the peak memory of a step.
"""

import argparse
import statistics
import time
from dataclasses import replace

import torch
from torch import Tensor, nn

from glassformer.config.presets import preset
from glassformer.config.train import TrainConfig
from glassformer.config.transformer import TransformerConfig
from glassformer.cost.activations import Kernels, activations
from glassformer.cost.flops import Shape, training_flops
from glassformer.cost.hardware import MFU
from glassformer.cost.memory import training_memory
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer
from glassformer.objectives.loss import token_cross_entropy
from glassformer.training.optimizers.build import build_optimizer


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def matmul_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Return the FLOP/s of a large square matrix product, the median of five."""
    size = 8192 if device.type == "cuda" else 2048
    a = torch.randn(size, size, dtype=dtype, device=device)
    seconds = []
    for _ in range(6):
        wait(device)
        began = time.perf_counter()
        a @ a
        wait(device)
        seconds.append(time.perf_counter() - began)
    return float(2 * size**3 / statistics.median(seconds[1:]))


def loss_of(network: Transformer, ids: Tensor, half: bool) -> Tensor:
    """Compute the mean loss of the next-token predictions."""
    token_ids, labels = ids[:, :-1].contiguous(), ids[:, 1:]
    with torch.autocast(ids.device.type, torch.bfloat16, enabled=half):
        return token_cross_entropy(network(token_ids), labels, labels.numel()).total / labels.numel()


def kept_bytes(network: Transformer, ids: Tensor, half: bool) -> int:
    """Return the bytes that autograd saves in one forward, without bf16 copies of weights (found by shape)."""
    weights = list(network.parameters())
    own = {x.untyped_storage()._cdata for x in [*weights, *network.buffers()]}
    shapes = {shape for w in weights for shape in (w.shape, w.shape[::-1])}
    found: dict[int, torch.UntypedStorage] = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage._cdata not in own and not (x.dtype == torch.bfloat16 and x.shape in shapes):
            found[storage._cdata] = storage
        return x.detach()  # a tensor that keeps its own graph is never freed

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        loss_of(network, ids, half)
    return sum(storage.nbytes() for storage in found.values())


def step_seconds(network: Transformer, ids: Tensor, half: bool, train: TrainConfig, n_steps: int) -> float:
    """Return the median time of whole optimizer steps."""
    optimizer = build_optimizer(network, train.optimizer)
    seconds = []
    for _ in range(2 + n_steps):
        wait(ids.device)
        began = time.perf_counter()
        loss_of(network, ids, half).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait(ids.device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="gpt-mini", help="a decoder: gpt-mini, modern-mini, gpt2 …")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--vocab-size", type=int, default=4096, help="used if the preset has no vocabulary size")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device, half = torch.device(arguments.device), arguments.precision == "bf16"

    config: TransformerConfig = preset(arguments.preset)
    config = replace(config, vocab_size=config.vocab_size or arguments.vocab_size)
    shape = Shape(arguments.batch_size, arguments.context)
    train = TrainConfig(precision=arguments.precision)
    kept = activations(config, shape, Kernels(half, on_cpu=device.type == "cpu"))
    flops = training_flops(config, shape)

    torch.manual_seed(0)
    network = build_model(config, device).train()
    ids = torch.randint(config.vocab_size, (shape.n_rows, shape.n_tokens + 1), device=device)
    rate = matmul_rate(torch.bfloat16 if half else torch.float32, device)
    measured_kept = kept_bytes(network, ids, half)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = step_seconds(network, ids, half, train, arguments.steps)

    print(
        f"{arguments.preset}, {network.n_parameters():,} parameters, {shape.n_rows} × {shape.n_tokens} tokens, "
        f"{arguments.precision}, {device}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    print(f"matrix products: {rate / 1e9:,.0f} GFLOP/s; a step: {flops / 1e9:,.1f} GFLOP\n")
    print(f"{'':<20}{'planned':>12}{'measured':>12}{'ratio':>8}")
    expected = flops / (rate * MFU)
    name = f"step, ms, at {MFU:.0%}"
    print(f"{name:<20}{1000 * expected:>12.1f}{1000 * seconds:>12.1f}{seconds / expected:>8.2f}")
    planned_kept = kept.layers + kept.logits // 2  # the gradient of the logits is made later
    print(f"{'kept, MiB':<20}{planned_kept / 2**20:>12.1f}{measured_kept / 2**20:>12.1f}", end="")
    print(f"{measured_kept / planned_kept:>8.3f}")
    if device.type == "cuda":
        peak, planned = torch.cuda.max_memory_allocated(), training_memory(config, train, kept).total
        print(f"{'peak, MiB':<20}{planned / 2**20:>12.1f}{peak / 2**20:>12.1f}{peak / planned:>8.3f}")
    print(f"\nutilisation reached: {flops / (rate * seconds):.0%} of the measured rate")


if __name__ == "__main__":
    main()
