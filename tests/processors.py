"""Kinds of processor that `pytest --processor KIND` makes of this one.

Hidden instructions are hidden from PyTorch's libraries too, in this process and in those that it starts. The rest is
what glassformer reads from `processor.this`. A kind never has an ability that the libraries lack here.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
NO_ONEDNN = {"has_onednn": False, "packs_bfloat16": False, "bfloat16": ()}
KINDS: dict[str, tuple[Mapping[str, str], Mapping[str, Any]]] = {
    "amd-avx2": (AVX2, {"vendor": "AuthenticAMD"}),
    "intel-avx2": (AVX2, {"vendor": "GenuineIntel"}),
    "intel-amx": ({}, {"vendor": "GenuineIntel", "bfloat16": ("avx512_bf16", "amx_bf16")}),
    "unknown": ({}, {"vendor": "", "has_mkl": False}),
    "arm": ({}, {"vendor": "", "has_mkl": False, **NO_ONEDNN}),
}
"""Environment variables, read by the libraries at their first product, and fields of `Processor`."""


def become(kind: str) -> None:
    """Make this processor one of a kind, as far as it can, before the first product."""
    variables, changes = KINDS[kind]
    os.environ.update(variables)
    from glassformer.kernels import processor

    processor.this = replace(processor.detect(), **changes)
