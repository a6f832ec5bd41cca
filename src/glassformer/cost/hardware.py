"""GPUs by name: memory and dense peak rates, from the vendor's data sheets."""

import math
from dataclasses import dataclass
from typing import Literal

from glassformer.errors import UserError, did_you_mean

GIB = 2**30
USABLE = 0.9
"""Fraction of the memory that a plan uses; the driver, the CUDA context and fragmentation take the rest."""
MFU = 0.4
"""Default model FLOPs utilisation: the fraction of the peak rate that a tuned run reaches, if none was measured."""


@dataclass(frozen=True)
class Gpu:
    """One accelerator."""

    name: str
    memory_gib: int
    half_flops: float
    """FLOP/s of dense matrix products in fp16 or bf16 that accumulate in fp32."""
    fp32_flops: float
    """FLOP/s without TF32, which PyTorch disables by default."""
    has_bf16: bool = True
    devices: tuple[str, ...] = ()
    """Names that CUDA gives to it."""

    @property
    def usable_bytes(self) -> int:
        return int(USABLE * self.memory_gib * GIB)

    @property
    def best_precision(self) -> Literal["bf16", "fp32"]:
        """The precision that `auto` means."""
        return "bf16" if self.has_bf16 else "fp32"

    def flops(self, precision: str) -> float:
        """Return the peak FLOP/s at a precision; raise `UserError` if the GPU does not support it."""
        if precision == "bf16" and not self.has_bf16:
            raise UserError(f"the GPU {self.name} does not support bf16: use --precision fp16 or another --gpu")
        return self.fp32_flops if precision == "fp32" else self.half_flops


_A100_80 = "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"
_A100_40 = "NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"
# NVIDIA's data sheets; rates "with sparsity" are halved. Memory sizes in "GB" are GiB.
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("h200", 141, 989e12, 67e12, devices=("NVIDIA H200",)),  # H200 SXM data sheet (2024)
        Gpu("h100", 80, 989e12, 67e12, devices=("NVIDIA H100 80GB HBM3",)),  # H100 SXM data sheet (2024)
        Gpu("a100-80gb", 80, 312e12, 19.5e12, devices=_A100_80),  # A100 80GB data sheet (2021)
        Gpu("a100-40gb", 40, 312e12, 19.5e12, devices=_A100_40),  # A100 40GB data sheet (2020)
        Gpu("l40s", 48, 362e12, 91.6e12, devices=("NVIDIA L40S",)),  # L40S data sheet (2023)
        # Ada architecture white paper (2022), appendix A
        Gpu("rtx-4090", 24, 165.2e12, 82.6e12, devices=("NVIDIA GeForce RTX 4090",)),
        Gpu("t4", 16, 65e12, 8.1e12, has_bf16=False, devices=("Tesla T4",)),  # T4 data sheet (2018)
        # V100 SXM2 data sheet (2018)
        Gpu("v100-16gb", 16, 125e12, 15.7e12, has_bf16=False, devices=("Tesla V100-SXM2-16GB",)),
    )
}


def require_rates(mfu: float, price: float | None) -> None:
    """Raise `UserError` for a utilisation or a price per GPU hour out of range."""
    if not 0 < mfu <= 1:
        raise UserError(f"--mfu is {mfu} and must be above 0 and at most 1")
    if price is not None and not 0 <= price < math.inf:
        raise UserError(f"--price is {price} and must be a finite number of at least 0")


def find_gpu(name: str) -> Gpu:
    """Return the GPU of this name; raise `UserError` with the nearest name if it is unknown.

    >>> find_gpu("h200").memory_gib
    141
    """
    if name not in GPUS:
        raise UserError(f"unknown GPU {name!r}: {did_you_mean(name.lower(), GPUS, 'known are', cutoff=0.4)}")
    return GPUS[name]
