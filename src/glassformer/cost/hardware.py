"""Memory and dense peak FLOP/s of GPUs: by name from the vendors' data sheets, or as the user gives them."""

import re
from dataclasses import dataclass
from typing import Literal

from glassformer.common.errors import UserError, did_you_mean

GIB = 2**30
USABLE = 0.9
"""Fraction of the memory that a plan uses; the driver, the CUDA context and fragmentation take the rest."""
MFU = 0.4
"""Default of the model FLOPs utilisation, for a run without a measured one: the fraction of the peak FLOP/s that a
tuned run reaches."""


@dataclass(frozen=True)
class Gpu:
    """One accelerator."""

    name: str
    memory_gib: float
    half_flops: float
    """FLOP/s of dense matrix products in fp16 or bf16 that accumulate in fp32."""
    fp32_flops: float
    """FLOP/s without TF32, which PyTorch disables by default."""
    has_bf16: bool = True
    devices: tuple[str, ...] = ()
    """Names that CUDA gives to this GPU."""
    bytes_per_second: float = 0.0
    """Bandwidth of the memory; 0 = not known."""

    @property
    def usable_bytes(self) -> int:
        return int(USABLE * self.memory_gib * GIB)

    @property
    def best_precision(self) -> Literal["bf16", "fp32"]:
        """The precision that `auto` means on this GPU."""
        return "bf16" if self.has_bf16 else "fp32"

    def flops(self, precision: str) -> float:
        """Return the peak FLOP/s at a precision; raise `UserError` if the GPU does not support it."""
        if precision == "bf16" and not self.has_bf16:
            raise UserError(f"the GPU {self.name} does not support bf16: use --precision fp16 or another --gpu")
        if precision == "fp32" or (precision == "tf32" and not self.has_bf16):  # GPUs without bf16 have no TF32
            return self.fp32_flops
        return max(self.fp32_flops, self.half_flops / 2) if precision == "tf32" else self.half_flops


_A100_80 = "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"
_A100_40 = "NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"
_V100 = ("Tesla V100-SXM2-16GB",)
# From the vendors' data sheets and architecture papers. Rates "with sparsity" are halved. Memory sizes in "GB" are GiB.
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("h200", 141, 989e12, 67e12, devices=("NVIDIA H200",), bytes_per_second=4.8e12),  # SXM
        Gpu("h100", 80, 989e12, 67e12, devices=("NVIDIA H100 80GB HBM3",), bytes_per_second=3.35e12),  # SXM
        Gpu("a100-80gb", 80, 312e12, 19.5e12, devices=_A100_80, bytes_per_second=2.039e12),
        Gpu("a100-40gb", 40, 312e12, 19.5e12, devices=_A100_40, bytes_per_second=1.555e12),
        Gpu("l40s", 48, 362e12, 91.6e12, devices=("NVIDIA L40S",), bytes_per_second=0.864e12),
        Gpu("l4", 24, 121e12, 30.3e12, devices=("NVIDIA L4",), bytes_per_second=0.3e12),
        Gpu("t4", 16, 65e12, 8.1e12, has_bf16=False, devices=("Tesla T4",), bytes_per_second=0.32e12),
        Gpu(
            "v100-16gb", 16, 125e12, 15.7e12, has_bf16=False, devices=("Tesla V100-SXM2-16GB",), bytes_per_second=0.9e12
        ),
        Gpu("rtx-5090", 32, 209.5e12, 104.8e12, devices=("NVIDIA GeForce RTX 5090",), bytes_per_second=1.792e12),
        Gpu("rtx-4090", 24, 165.2e12, 82.6e12, devices=("NVIDIA GeForce RTX 4090",), bytes_per_second=1.008e12),
        Gpu("rtx-3090", 24, 71e12, 35.6e12, devices=("NVIDIA GeForce RTX 3090",), bytes_per_second=0.936e12),
        Gpu("mi300x", 192, 1307.4e12, 163.4e12, devices=("AMD Instinct MI300X",), bytes_per_second=5.3e12),
    )
}
_GIVEN = re.compile(r"(\d+(?:\.\d+)?)GB,(\d+(?:\.\d+)?)TF(?:,(\d+(?:\.\d+)?)TB/s)?")


def require_mfu(mfu: float) -> None:
    """Raise `UserError` if the utilisation is not above 0 and at most 1."""
    if not 0 < mfu <= 1:
        raise UserError(f"--mfu is {mfu} and must be above 0 and at most 1")


def find_gpu(name: str) -> Gpu:
    """Return the GPU of this name, or a GPU with the numbers of a text like `24GB,80TF,1TB/s`.

    The numbers are the memory, the peak rate at the precision of the run, and the bandwidth of the memory, which may be
    left out. Raises `UserError` with the nearest name for any other
    text.

    >>> find_gpu("h200").memory_gib, find_gpu("24GB,80TF").memory_gib, find_gpu("24GB,80TF").half_flops
    (141, 24.0, 80000000000000.0)
    """
    if given := _GIVEN.fullmatch(name):
        memory_gib, flops = float(given[1]), float(given[2]) * 1e12
        if memory_gib and flops:
            return Gpu(name, memory_gib, flops, flops, bytes_per_second=float(given[3] or 0) * 1e12)
    if name not in GPUS:
        near = did_you_mean(name.lower(), GPUS, "known are")
        raise UserError(f"--gpu is {name!r} and must be a known name, or numbers like 24GB,80TF,1TB/s: {near}")
    return GPUS[name]
