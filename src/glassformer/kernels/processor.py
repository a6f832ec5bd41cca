"""The processor of this machine: the facts that decide how the products of a CPU are computed.

Everything reads `processor.this` at the time of use, so a test replaces this one object (`tests/processors.py`).
"""

import platform
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

_AMD, _INTEL = "AuthenticAMD", "GenuineIntel"


@dataclass(frozen=True)
class Processor:
    """A CPU with the libraries that PyTorch has for it."""

    vendor: str
    """`AuthenticAMD` or `GenuineIntel`; empty for others."""
    name: str
    """Architecture, model (if the system gives it) and vector instructions, such as `x86_64 AMD EPYC AVX512`."""
    bfloat16: tuple[str, ...]
    """Instruction sets that multiply in bfloat16; without one, PyTorch emulates these products slowly."""
    packs_bfloat16: bool
    """True if oneDNN packs weights and computes LSTMs in bfloat16: with AVX-512 or AVX-NE-CONVERT, not without."""
    has_mkl: bool
    has_onednn: bool
    """True if PyTorch has oneDNN's linear layer, on the architecture where it was measured."""

    @property
    def prefers_onednn(self) -> bool:
        """True if fp32 products are faster with oneDNN than with MKL: on processors of AMD."""
        return self.vendor == _AMD and self.has_mkl and self.has_onednn

    def __str__(self) -> str:
        return " ".join([self.name, *self.bfloat16])


def detect() -> Processor:
    """Return the processor of this machine; ONEDNN_MAX_CPU_ISA and ATEN_CPU_CAPABILITY can hide instructions.

    >>> detect().vendor in ("AuthenticAMD", "GenuineIntel", "")
    True
    """
    info = ""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        info = file.read(1000)
    model = next((line.partition(":")[2] for line in info.splitlines() if line.startswith("model name")), "")
    vendors = platform.processor() + info
    onednn = torch.ops.mkldnn
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    packs_bfloat16 = hasattr(onednn, "_is_mkldnn_bf16_supported") and bool(onednn._is_mkldnn_bf16_supported())
    can: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # missing in older releases of torch
    multiplies = tuple(name for name in ("avx512_bf16", "amx_bf16") if can.get(name) and packs_bfloat16)
    return Processor(
        vendor=next((vendor for vendor in (_AMD, _INTEL) if vendor in vendors), ""),
        name=" ".join([platform.machine(), *model.split(), torch.backends.cpu.get_cpu_capability()]),
        bfloat16=multiplies,
        packs_bfloat16=packs_bfloat16,
        has_mkl=torch.backends.mkl.is_available(),
        has_onednn=is_x86 and torch.backends.mkldnn.is_available() and hasattr(onednn, "_linear_pointwise"),
    )


this = detect()
