"""The description of the machine."""

import io
import platform
from typing import Any

import pytest
import torch

from glassformer.training import host


@pytest.mark.parametrize("is_told", [True, False])
def test_the_cpu_has_a_name_if_the_system_has_one(is_told: bool, monkeypatch: pytest.MonkeyPatch) -> None:

    def opened(path: str, **options: Any) -> Any:
        if not is_told:
            raise FileNotFoundError(path)
        return io.StringIO("processor\t: 0\nmodel name\t: Some  CPU @ 2.00GHz\nflags\t: fpu\n")

    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr(host, "bfloat16_instructions", lambda: ("avx512_bf16",))
    found = host._cpu()
    capability = torch.backends.cpu.get_cpu_capability()
    model = " Some CPU @ 2.00GHz" if is_told else ""
    assert found == f"{platform.machine()}{model} {capability} avx512_bf16"
