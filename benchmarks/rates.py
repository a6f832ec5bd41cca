"""Rates of the machine: matrix products per second, and bytes copied per second."""

import time
from collections.abc import Callable, Sequence

import torch

from glassformer.nn.kernels import processor
from task import Task

SIZES = {"cpu": (256, 1024, 2048, 4096), "cuda": (4096, 8192, 16384)}
"""Sizes of the square matrix products; the fastest counts, and a size that would take too long is left out."""
COPIED_BYTES = {"cpu": 1 << 28, "cuda": 1 << 31}
REPEATS = 4
N_PRODUCTS = 1 + REPEATS
"""Products of one size; the first one does not count."""
DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def choose_device(name: str) -> torch.device:
    """Return the named device; `auto` prefers CUDA."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def wait_for(device: torch.device) -> None:
    """Return when the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine(device: str = "auto") -> Task:
    """Return the name of the processor, and whether the device is faster in bf16; a round does nothing."""
    return Task(lambda: None, found={"processor": str(processor.this), "has_bf16": has_bf16(choose_device(device))})


def has_bf16(device: torch.device) -> bool:
    """Return True if products of the device are faster in bf16 than in fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return processor.this.multiplies_bfloat16


def measured(device: str = "auto", seconds: float = 60.0, sizes: Sequence[int] = (), copied_bytes: int = 0) -> Task:
    """Measure FLOP/s in fp32 and bf16 (`fp32`, `bf16`) and bytes/s of a copy (`copy`); a round does nothing.

    It takes about `seconds` at most. If bf16 has no gain, there is no rate in bf16.
    """
    place = choose_device(device)
    sizes, copied_bytes = sizes or SIZES[place.type], copied_bytes or COPIED_BYTES[place.type]
    names = [name for name in DTYPES if name == "fp32" or has_bf16(place)]
    found = {name: best_rate(DTYPES[name], sizes, place, seconds / 4) for name in names}
    return Task(lambda: None, found=found | {"copy": copy_rate(copied_bytes, place)})


def best_rate(dtype: torch.dtype, sizes: Sequence[int], device: torch.device, seconds: float) -> float:
    """Return the FLOP/s of the fastest size: the first, and those that take at most `seconds` at the rate so far."""
    best = 0.0
    for size in sizes:
        if best and N_PRODUCTS * 2 * size**3 / best > seconds:
            break
        best = max(best, matmul_rate(dtype, size, device))
    return best


def matmul_rate(dtype: torch.dtype, size: int, device: torch.device) -> float:
    """Return the FLOP/s of a square matrix product."""
    a = torch.randn(size, size, device=device).to(dtype)
    out = torch.empty_like(a)
    with torch.inference_mode():
        return 2 * size**3 / shortest(lambda: torch.mm(a, a, out=out), device)


def copy_rate(n_bytes: int, device: torch.device) -> float:
    """Return the bytes/s of the copy of a large block; each byte counts twice, once read and once written."""
    source = torch.ones(n_bytes // 4, device=device)
    target = torch.empty_like(source)
    return 2 * n_bytes / shortest(lambda: target.copy_(source), device)


def shortest(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the fastest of some calls, after one that does not count."""
    call()
    seconds = []
    for _ in range(REPEATS):
        wait_for(device)
        began = time.perf_counter()
        call()
        wait_for(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds)
