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
NO_ONEDNN = {"has_onednn": False, "packs_bfloat16": False, "packs_float16": False, "bfloat16": ()}
KINDS: dict[str, tuple[Mapping[str, str], Mapping[str, Any]]] = {
    "amd-avx2": (AVX2, {"vendor": AMD, "family": 25, "bfloat16": ()}),
    "amd-zen5": ({}, {"vendor": AMD, "family": 26, "bfloat16": ("avx512_bf16",)}),
    "intel-avx2": (AVX2, {"vendor": INTEL, "family": 6, "bfloat16": ()}),
    "intel-amx": ({}, {"vendor": INTEL, "family": 6, "bfloat16": ("avx512_bf16", "amx_bf16")}),
    "unknown": ({}, {"vendor": "", "family": 0}),
    "arm": ({}, {"vendor": "", "family": 0, **NO_ONEDNN}),
}
"""Environment variables, read by the libraries at their first product, and fields of `Processor`."""


def of_kind(kind: str, real: "Processor") -> "Processor":
    """Return a processor of a kind, with the choices of the table as far as the libraries of the real one have them."""
    from glassformer.kernels import processor

    variables, changes = KINDS[kind]
    changed = replace(real, **changes)
    instructions = "AVX2" if variables else "AVX512"
    choices = processor.choose((changed.vendor, changed.family, instructions, *changed.bfloat16))
    if not real.packs_bfloat16:
        choices = replace(choices, packs_bfloat16=False)
    if not real.packs_float16:
        choices = replace(choices, packs_float16=False)
    if not real.has_onednn:
        choices = processor.PLAIN
    return replace(changed, choices=choices)


def become(kind: str) -> None:
    """Make this processor one of a kind, as far as it can, before the first product."""
    os.environ.update(KINDS[kind][0])
    from glassformer.kernels import processor

    processor.this = of_kind(kind, processor.detect())
