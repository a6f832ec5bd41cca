"""The facts that decide how products are computed are read from the machine."""

import io
import platform
from typing import Any

import pytest
import torch

from glassformer.cli.main import run
from glassformer.kernels import processor
from processors import KINDS

INFO = "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 25\nmodel name\t: Some  CPU @ 2.00GHz\nflags\t: fpu\n"


@pytest.mark.parametrize(
    ("vendor", "machine", "is_told", "can", "in_onednn", "bfloat16"),
    [
        ("AuthenticAMD", "x86_64", True, {"avx512_bf16": True}, True, ("avx512_bf16",)),
        ("AuthenticAMD", "x86_64", True, {"avx512_bf16": True}, False, ()),
        ("AuthenticAMD", "x86_64", True, {"avx2": True}, False, ()),
        ("GenuineIntel", "x86_64", True, {"avx512_bf16": True, "amx_bf16": True}, True, ("avx512_bf16", "amx_bf16")),
        ("GenuineIntel", "x86_64", True, {"avx512_bf16": False}, True, ()),
        ("", "aarch64", True, {}, False, ()),
        ("", "x86_64", False, {}, False, ()),
    ],
)
def test_the_processor_is_read_from_the_machine(
    vendor: str,
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
        return io.StringIO(INFO.format(vendor=vendor))

    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can, raising=False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: in_onednn, raising=False)
    found = processor.detect()
    model = " Some CPU @ 2.00GHz" if is_told else ""
    instructions = torch.backends.cpu.get_cpu_capability()
    assert found.kind == (vendor, 25 if is_told else 0, instructions, *bfloat16)
    assert found.bfloat16 == bfloat16 and found.packs_bfloat16 == in_onednn
    assert str(found).startswith(" ".join([f"{machine}{model}", instructions, *bfloat16]))
    assert found.has_onednn <= (machine == "x86_64")
    assert found.has_onednn or found.choices == processor.PLAIN


def test_a_kind_without_a_measurement_gets_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ("GenuineIntel", 6, "AVX2") not in processor.MEASURED
    assert ("AuthenticAMD", 26, "AVX2") not in processor.MEASURED
    for setting in ("plain", "auto"):
        monkeypatch.setenv("GLASSFORMER_KERNELS", setting)
        found = processor.detect()
        assert str(found).endswith("plain PyTorch") == (found.choices == processor.PLAIN)
        assert setting == "auto" or found.choices == processor.PLAIN
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


def test_the_option_of_the_tests_hides_what_it_names(request: pytest.FixtureRequest) -> None:
    kind = request.config.getoption("processor")
    if kind not in KINDS:
        assert processor.this == processor.detect()
        return
    variables, changes = KINDS[kind]
    assert {name: getattr(processor.this, name) for name in changes} == changes
    if "ONEDNN_MAX_CPU_ISA" in variables:
        assert not processor.detect().bfloat16 and torch.backends.cpu.get_cpu_capability() in ("AVX2", "DEFAULT")
