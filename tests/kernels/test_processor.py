"""The facts that decide how products are computed are read from the machine."""

import io
import platform
from typing import Any

import pytest
import torch

from glassformer.apps.cli.main import run
from glassformer.nn.kernels import processor

INFO = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel name\t: Some  CPU @ 2.00GHz\nflags\t: fpu\n"


@pytest.mark.parametrize(
    ("machine", "is_told", "can", "in_onednn", "bfloat16"),
    [
        ("x86_64", True, {"avx512_bf16": True}, True, ("avx512_bf16",)),
        ("x86_64", True, {"avx512_bf16": True}, False, ()),
        ("x86_64", True, {"avx2": True}, False, ()),
        ("x86_64", True, {"avx512_bf16": True, "amx_bf16": True}, True, ("avx512_bf16", "amx_bf16")),
        ("x86_64", True, {"avx512_bf16": False}, True, ()),
        ("aarch64", True, {}, False, ()),
        ("x86_64", False, {}, False, ()),
    ],
)
def test_the_processor_is_read_from_the_machine(
    machine: str,
    is_told: bool,
    can: dict[str, bool],
    in_onednn: bool,
    bfloat16: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Instructions that oneDNN does not use, because ONEDNN_MAX_CPU_ISA hides them, do not count."""

    def opened(path: str, **options: Any) -> Any:
        if not is_told:
            raise FileNotFoundError(path)
        return io.StringIO(INFO)

    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can, raising=False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: in_onednn, raising=False)
    found = processor.detect()
    model = " Some CPU @ 2.00GHz" if is_told else ""
    instructions = torch.backends.cpu.get_cpu_capability()
    assert found.bfloat16 == bfloat16 and found.packs_bfloat16 == in_onednn
    assert str(found).startswith(" ".join([f"{machine}{model}", instructions, *bfloat16]))
    assert found.uses_onednn <= (machine == "x86_64")
    assert found.is_fast_in_bfloat16 == (found.uses_onednn and bool(bfloat16))


def test_the_environment_can_fix_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in ("plain", "auto"):
        monkeypatch.setenv("GLASSFORMER_KERNELS", setting)
        found = processor.detect()
        assert str(found).endswith("plain PyTorch") == (not found.uses_onednn)
        assert setting == "auto" or not (found.uses_onednn or found.is_fast_in_bfloat16)
    monkeypatch.setenv("GLASSFORMER_KERNELS", "fast")
    with pytest.raises(ValueError, match="GLASSFORMER_KERNELS is 'fast' and must be auto or plain"):
        processor.detect()


def test_a_wrong_setting_is_refused_by_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(processor.VARIABLE, "fast")
    assert run(["presets"]) == 2
    with pytest.raises(ValueError) as refused:
        processor.detect()
    assert capsys.readouterr().err == f"glassformer: {refused.value}\n"
