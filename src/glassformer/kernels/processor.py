"""The processor of this machine, and the fast paths that were measured to be faster on its kind.

A kind without a measurement gets plain PyTorch. Everything reads `processor.this` at the time of use, so that a test
replaces this one object (`tests/processors.py`). `glassformer doctor --machine` measures all candidates.
"""

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

VARIABLE = "GLASSFORMER_KERNELS"
"""Environment variable: `plain` means plain PyTorch, `auto` or nothing the choices of the table."""
_AMD, _INTEL = "AuthenticAMD", "GenuineIntel"


@dataclass(frozen=True)
class Choices:
    """Fast paths that a kind of processor uses; by default none, which is plain PyTorch."""

    packed_rows: int | None = None
    """Rows of a product in fp32 from which generation reads packed weights (`kernels/packed.py`); None = never."""
    bfloat16: bool = False
    """True for packed weights, attention by blocks, and gradients of wide weights in parts, all in bfloat16."""
    packs_float16: bool = False
    """True if generation reads packed weights in float16, or the integers of int8 so, and computes in fp32."""
    half_by_fp32: bool = False
    """True if products of many rows in float16 are computed in fp32 (`kernels/linear.py`)."""
    onednn_fp32: bool = False
    """True if oneDNN computes large products in fp32, with their gradients, in place of MKL (`kernels/linear.py`)."""
    wide_fp32: bool = False
    """True if oneDNN computes wide products in fp32, and MKL their gradients."""


PLAIN = Choices()
_AVX512, _AMX = ("AVX512", "avx512_bf16"), ("AVX512", "avx512_bf16", "amx_bf16")
MEASURED = {
    # AMD: families 25 (Zen 3 and 4; the row of AVX2 is from a Zen 4 with hidden instructions) and 26 (Zen 5; the
    # processor of its measurement had twice the rate of Zen 4, and its family was not recorded)
    (_AMD, 25, "AVX2"): Choices(packed_rows=1, packs_float16=True, wide_fp32=True, half_by_fp32=True),
    (_AMD, 25, *_AVX512): Choices(packed_rows=1, wide_fp32=True, half_by_fp32=True, bfloat16=True),
    (_AMD, 26, *_AVX512): Choices(packed_rows=1, onednn_fp32=True, bfloat16=True),
    # Intel: Sapphire Rapids and newer
    (_INTEL, 6, *_AMX): Choices(packed_rows=3, bfloat16=True),
}
"""Choices by vendor, family, vector instructions and bfloat16 instructions (`docs/log.md` has the measurements)."""


@dataclass(frozen=True)
class Processor:
    """A CPU with the libraries that PyTorch has for it."""

    kind: tuple[str | int, ...]
    """Vendor and family (empty and 0 if the system does not give them), and instructions, as in `MEASURED`."""
    name: str
    """Architecture, model (if the system gives it) and vector instructions, such as `x86_64 AMD EPYC AVX512`."""
    bfloat16: tuple[str, ...]
    """Instruction sets that multiply in bfloat16; without one, PyTorch emulates these products slowly."""
    packs_bfloat16: bool
    """True if oneDNN packs weights and computes LSTMs in bfloat16: with AVX-512 or AVX-NE-CONVERT, not without."""
    packs_float16: bool
    """True if PyTorch has FBGEMM, which packs weights in float16."""
    has_onednn: bool
    """True if PyTorch has oneDNN's linear layer, on the architecture where it was measured."""
    choices: Choices

    def __str__(self) -> str:
        plain = ["plain PyTorch"] if self.choices == PLAIN else []
        return " ".join([self.name, *self.bfloat16, *plain])


def detect() -> Processor:
    """Return the processor of this machine; ONEDNN_MAX_CPU_ISA and ATEN_CPU_CAPABILITY can hide instructions."""
    setting = os.environ.get(VARIABLE, "auto")
    if setting not in ("auto", "plain"):
        raise ValueError(f"the environment variable {VARIABLE} is {setting!r} and must be auto or plain")
    # What the system gives
    facts: dict[str, str] = {}
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        lines = (line.partition(":") for line in file.read(1000).splitlines())
        facts = {name.strip(): value.strip() for name, _, value in lines}
    # Libraries and instructions
    onednn = torch.ops.mkldnn
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    has_onednn = is_x86 and torch.backends.mkldnn.is_available() and hasattr(onednn, "_linear_pointwise")
    packs_bfloat16 = hasattr(onednn, "_is_mkldnn_bf16_supported") and bool(onednn._is_mkldnn_bf16_supported())
    has_fbgemm = is_x86 and "fbgemm" in torch.backends.quantized.supported_engines
    can: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # missing in older releases of torch
    bfloat16 = tuple(name for name in ("avx512_bf16", "amx_bf16") if can.get(name) and packs_bfloat16)
    instructions = torch.backends.cpu.get_cpu_capability()
    vendor, family = facts.get("vendor_id", ""), int(facts.get("cpu family", 0))
    kind: tuple[str | int, ...] = (vendor, family, instructions, *bfloat16)
    return Processor(
        kind=kind,
        name=" ".join([platform.machine(), *facts.get("model name", "").split(), instructions]),
        bfloat16=bfloat16,
        packs_bfloat16=packs_bfloat16,
        packs_float16=has_fbgemm and hasattr(torch.ops.quantized, "linear_prepack_fp16"),
        has_onednn=has_onednn,
        choices=MEASURED.get(kind, PLAIN) if has_onednn and setting == "auto" else PLAIN,
    )


this = detect()
