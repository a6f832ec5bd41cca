"""Kinds of processor that `pytest --processor KIND` makes of this one.

Hidden instructions are hidden from PyTorch's libraries too, in this process and in those that it starts. The rest is
what glassformer reads from `processor.this`. A kind never has an ability that the libraries lack here.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.kernels.processor import Processor

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
AMD, INTEL = "AuthenticAMD", "GenuineIntel"
BF16 = ("avx512_bf16", "amx_bf16")
NO_ONEDNN = {"has_onednn": False, "packs_bfloat16": False, "packs_float16": False, "bfloat16": ()}
KINDS: dict[str, tuple[Mapping[str, str], Mapping[str, Any]]] = {
    "amd-avx2": (AVX2, {"kind": (AMD, 25, "AVX2"), "bfloat16": ()}),
    "amd-zen5": ({}, {"kind": (AMD, 26, "AVX512", *BF16[:1]), "bfloat16": BF16[:1]}),
    "intel-avx2": (AVX2, {"kind": (INTEL, 6, "AVX2"), "bfloat16": ()}),
    "intel-amx": ({}, {"kind": (INTEL, 6, "AVX512", *BF16), "bfloat16": BF16}),
    "unknown": ({}, {"kind": ("", 0, "AVX512")}),
    "arm": ({}, {"kind": ("", 0, "DEFAULT"), **NO_ONEDNN}),
}
"""Environment variables, read by the libraries at their first product, and fields of `Processor`."""


def of_kind(kind: str, real: "Processor") -> "Processor":
    """Return a processor of a kind, with the choices of the table as far as the libraries of the real one have them."""
    from glassformer.kernels import processor

    changed = replace(real, **KINDS[kind][1])
    choices = processor.MEASURED.get(changed.kind, processor.PLAIN) if real.has_onednn else processor.PLAIN
    return replace(changed, choices=choices)


def become(kind: str) -> None:
    """Make this processor one of a kind, as far as it can, before the first product."""
    os.environ.update(KINDS[kind][0])
    from glassformer.kernels import processor

    processor.this = of_kind(kind, processor.detect())
