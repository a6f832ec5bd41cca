"""The processor of this machine, and the fast paths that were measured to be faster on its kind.

A kind without a measurement gets plain PyTorch. Everything reads `processor.this` at the time of use, so that a test
replaces this one object (`tests/processors.py`). `glassformer doctor --machine` measures all candidates.
"""

import os
import platform
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
    packs_bfloat16: bool = False
    """True if generation reads packed weights in bfloat16."""
    packs_float16: bool = False
    """True if generation reads packed weights in float16, and computes in fp32."""
    blocked_attention: bool = False
    """True if attention in bfloat16 is computed by blocks (`kernels/blocked_attention.py`)."""
    wide_bfloat16: bool = False
    """True if the gradient of a wide weight in bfloat16 is computed in parts (`kernels/linear.py`)."""
    onednn_fp32: bool = False
    """True if oneDNN computes large products in fp32, with their gradients, in place of MKL (`kernels/linear.py`)."""
    wide_fp32: bool = False
    """True if oneDNN computes wide products in fp32, and MKL their gradients."""
    half_by_fp32: bool = False
    """True if products of many rows in float16 are computed in fp32 (`kernels/linear.py`)."""


PLAIN = Choices()
_BFLOAT16 = {"packs_bfloat16": True, "blocked_attention": True, "wide_bfloat16": True}
_AVX512, _AMX = ("AVX512", "avx512_bf16"), ("AVX512", "avx512_bf16", "amx_bf16")
MEASURED = {
    # AMD: families 25 (Zen 3 and 4; the row of AVX2 is from a Zen 4 with hidden instructions) and 26 (Zen 5; the
    # processor of its measurement had twice the rate of Zen 4, and its family was not recorded)
    (_AMD, 25, "AVX2"): Choices(packed_rows=1, packs_float16=True, wide_fp32=True, half_by_fp32=True),
    (_AMD, 25, *_AVX512): Choices(packed_rows=1, wide_fp32=True, half_by_fp32=True, **_BFLOAT16),
    (_AMD, 26, *_AVX512): Choices(packed_rows=1, onednn_fp32=True, **_BFLOAT16),
    # Intel: Sapphire Rapids and newer
    (_INTEL, 6, *_AMX): Choices(packed_rows=3, **_BFLOAT16),
}
"""Choices by vendor, family, vector instructions and bfloat16 instructions (`docs/log.md` has the measurements)."""


@dataclass(frozen=True)
class Processor:
    """A CPU with the libraries that PyTorch has for it."""

    vendor: str
    """`AuthenticAMD` or `GenuineIntel`; empty for others."""
    family: int
    """Number of the processor's family; 0 if the system does not give it."""
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
    choices: Choices = field(default=PLAIN)

    def __str__(self) -> str:
        plain = ["plain PyTorch"] if self.choices == PLAIN else []
        return " ".join([self.name, *self.bfloat16, *plain])


def choose(kind: tuple[str | int, ...], setting: str = "auto") -> Choices:
    """Return the measured choices of a kind of processor; plain PyTorch for an unknown kind, or if the setting is so.

    >>> choose(("AuthenticAMD", 25, "AVX2")).packed_rows, choose(("", 0, "AVX2")) == PLAIN
    (1, True)
    >>> choose(("AuthenticAMD", 25, "AVX2"), setting="plain") == PLAIN
    True
    """
    if setting not in ("auto", "plain"):
        raise ValueError(f"the environment variable {VARIABLE} is {setting!r} and must be auto or plain")
    if setting == "plain":
        return PLAIN
    return MEASURED.get(kind, PLAIN)


def detect() -> Processor:
    """Return the processor of this machine; ONEDNN_MAX_CPU_ISA and ATEN_CPU_CAPABILITY can hide instructions.

    >>> detect().vendor in ("AuthenticAMD", "GenuineIntel", "")
    True
    """
    # Vendor, family and model
    info = ""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        info = file.read(1000)
    pairs = (line.partition(":") for line in info.splitlines())
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    family, model = int(facts.get("cpu family", 0)), facts.get("model name", "")
    vendors = platform.processor() + info
    vendor = next((vendor for vendor in (_AMD, _INTEL) if vendor in vendors), "")
    # Libraries and instructions
    onednn = torch.ops.mkldnn
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    has_onednn = is_x86 and torch.backends.mkldnn.is_available() and hasattr(onednn, "_linear_pointwise")
    packs_bfloat16 = hasattr(onednn, "_is_mkldnn_bf16_supported") and bool(onednn._is_mkldnn_bf16_supported())
    has_fbgemm = is_x86 and "fbgemm" in torch.backends.quantized.supported_engines
    packs_float16 = has_fbgemm and hasattr(torch.ops.quantized, "linear_prepack_fp16")
    can: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # missing in older releases of torch
    multiplies = tuple(name for name in ("avx512_bf16", "amx_bf16") if can.get(name) and packs_bfloat16)
    instructions = torch.backends.cpu.get_cpu_capability()
    # The choices of this kind
    choices = PLAIN
    if has_onednn:
        choices = choose((vendor, family, instructions, *multiplies), os.environ.get(VARIABLE, "auto"))
        choices = replace(choices, packs_float16=choices.packs_float16 and packs_float16)
    return Processor(
        vendor=vendor,
        family=family,
        name=" ".join([platform.machine(), *model.split(), instructions]),
        bfloat16=multiplies,
        packs_bfloat16=packs_bfloat16,
        packs_float16=packs_float16,
        has_onednn=has_onednn,
        choices=choices,
    )


this = detect()
