"""The processor of this machine, and the rule that chooses the libraries for its matrix products.

On x86, oneDNN computes products of packed weights and of wide layers. With bfloat16 instructions, it also computes all
large products, and everything that is faster in bfloat16. Other processors use plain PyTorch. All code reads
`processor.this` at the time of use, so that a test can replace this one object. `benchmarks/kernels.py` measures the
rule on a machine.
"""

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

VARIABLE = "GLASSFORMER_KERNELS"
"""Name of the environment variable. The value `plain` means plain PyTorch; `auto`, or no value, means the rule."""


@dataclass(frozen=True)
class Processor:
    """A CPU, and the libraries that PyTorch uses on it."""

    name: str
    """Architecture, model (if the system gives it) and vector instructions, such as `x86_64 AMD EPYC AVX512`."""
    bfloat16: tuple[str, ...]
    """Instruction sets that multiply in bfloat16; if empty, PyTorch emulates bfloat16 products slowly."""
    packs_bfloat16: bool
    """True if oneDNN can pack weights and compute LSTMs in bfloat16, which needs AVX-512 or AVX-NE-CONVERT."""
    uses_onednn: bool
    """True on x86 with oneDNN's linear layer: then packed weights and wide layers in fp32 use oneDNN."""

    @property
    def is_fast_in_bfloat16(self) -> bool:
        """True if the CPU is fast in bfloat16.

        Then weights are packed, attention runs by blocks and gradients are computed in parts in bfloat16, and oneDNN
        computes large products in fp32.
        """
        return self.uses_onednn and bool(self.bfloat16)

    def __str__(self) -> str:
        plain = [] if self.uses_onednn else ["plain PyTorch"]
        return " ".join([self.name, *self.bfloat16, *plain])


def detect() -> Processor:
    """Return the processor of this machine; ONEDNN_MAX_CPU_ISA and ATEN_CPU_CAPABILITY can hide instructions."""
    setting = os.environ.get(VARIABLE, "auto")
    if setting not in ("auto", "plain"):
        raise ValueError(f"the environment variable {VARIABLE} is {setting!r} and must be auto or plain")
    model = ""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        lines = (line.partition(":") for line in file.read(1000).splitlines())
        model = next((value for name, _, value in lines if name.strip() == "model name"), "")
    onednn = torch.ops.mkldnn
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    has_onednn = is_x86 and torch.backends.mkldnn.is_available() and hasattr(onednn, "_linear_pointwise")
    packs_bfloat16 = hasattr(onednn, "_is_mkldnn_bf16_supported") and bool(onednn._is_mkldnn_bf16_supported())
    can: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # missing in older releases of torch
    return Processor(
        name=" ".join([platform.machine(), *model.split(), torch.backends.cpu.get_cpu_capability()]),
        bfloat16=tuple(name for name in ("avx512_bf16", "amx_bf16") if can.get(name) and packs_bfloat16),
        packs_bfloat16=packs_bfloat16,
        uses_onednn=has_onednn and setting == "auto",
    )


this = detect()
