"""The library of products is chosen by measured gains, which are kept; no name of a processor decides."""

import io
import json
import platform
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.apps.cli.main import run
from glassformer.common import files
from glassformer.nn.kernels import processor
from glassformer.nn.kernels.processor import FIXED, Gains, Processor
from glassformer.training.distributed.ranks import Ranks
from glassformer.training.host import share_gains

INFO = (
    "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel name\t: Some  CPU @ 2.00GHz\n"
    "cpu MHz\t\t: 2000.1\ncore id\t\t: 7\nflags\t: fpu\n\nprocessor\t: 1\nmodel name\t: Another\n"
)
HERE = Processor("name", packs_bfloat16=True, has_onednn=True)


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Gains]:
    """Return the list of gains that have been measured, in place of a real measurement; the cache is empty."""
    found: list[Gains] = []

    def measured(has_onednn: bool) -> Gains:
        found.append(Gains(bfloat16=3.0 + len(found), onednn=2.0))
        return found[-1]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(processor, "measured", measured)
    processor._kept.cache_clear()
    return found


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("packs", [True, False])
def test_the_capabilities_are_read_from_the_machine(
    machine: str, is_told: bool, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN does not pack bfloat16 if ONEDNN_MAX_CPU_ISA hides the instructions. The architecture decides nothing."""

    def opened(path: str, **options: Any) -> Any:
        if not is_told:
            raise FileNotFoundError(path)
        return io.StringIO(INFO)

    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: packs, raising=False)
    found = processor.detect()
    model = " Some CPU @ 2.00GHz" if is_told else ""
    assert found.name == f"{machine}{model} {torch.backends.cpu.get_cpu_capability()}"
    assert found.packs_bfloat16 == packs and found.has_onednn == processor.this.has_onednn
    assert "core id" not in processor._cpuinfo() and "cpu MHz" not in processor._cpuinfo()
    assert processor._cpuinfo().get("cpu family") == ("25" if is_told else None)


@pytest.mark.parametrize(
    ("gains", "has_onednn", "in_bfloat16", "by_onednn"),
    [
        (Gains(bfloat16=1.9, onednn=1.1), True, True, True),
        (Gains(bfloat16=0.4, onednn=1.4), True, False, True),
        (Gains(bfloat16=1.0, onednn=0.9), True, False, True),
        (Gains(bfloat16=1.9, onednn=0.5), True, True, False),
        (Gains(bfloat16=1.9, onednn=0.0), False, True, False),
        (FIXED["bf16"], False, True, False),
        (FIXED["bf16"], True, True, True),
        (FIXED["onednn"], True, False, True),
    ],
)
def test_the_gains_decide(gains: Gains, has_onednn: bool, in_bfloat16: bool, by_onednn: bool) -> None:
    here = replace(HERE, has_onednn=has_onednn, known=gains)
    assert here.multiplies_bfloat16 == in_bfloat16 and here.uses_onednn == by_onednn
    assert here.is_fast_in_bfloat16 == (in_bfloat16 and by_onednn)
    assert str(here) == "name" + " bf16" * in_bfloat16 + " plain PyTorch" * (not by_onednn)


def test_a_measurement_is_kept_until_a_fact_changes(
    measurements: list[Gains], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def gains(here: Processor = HERE) -> Gains:
        processor._kept.cache_clear()  # as in another process
        return replace(here).gains

    first = gains()
    assert gains() == first and len(measurements) == 1
    gains(replace(HERE, name="another"))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "one that no run has")
    gains()
    monkeypatch.setattr(processor, "_cpuinfo", lambda: {"cpu family": "26"})
    gains()
    monkeypatch.setattr(torch, "__version__", "99.0")
    last = gains()
    assert len(measurements) == 5 and last != first
    kept = [*files.cache_folder().rglob("gains-*.json")]
    assert len(kept) == 5
    assert {json.loads(path.read_text())["found"]["bfloat16"] for path in kept} == {3.0, 4.0, 5.0, 6.0, 7.0}
    for path in kept:
        path.write_text('{"found": {"bfloat16": 9.0')
    assert gains() != last and len(measurements) == 6, "a file that cannot be read"
    assert gains() == measurements[-1] and len(measurements) == 6, "it was written again"


def test_a_cache_that_cannot_be_written_is_no_error(
    measurements: list[Gains], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Then a process measures once."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert HERE.has_onednn and replace(HERE).gains == replace(HERE).gains and len(measurements) == 1


def test_threads_that_ask_at_the_same_time_measure_once(measurements: list[Gains]) -> None:
    here, found = replace(HERE), list[Gains]()
    threads = [threading.Thread(target=lambda: found.append(here.gains)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == measurements * 8


def test_nothing_is_measured_before_it_is_needed(measurements: list[Gains], monkeypatch: pytest.MonkeyPatch) -> None:
    """A small product does not ask; a large one does."""
    monkeypatch.setattr(processor, "this", replace(processor.this, has_onednn=True, known=None))
    from glassformer.nn.layers import Linear

    Linear(8, 8)(torch.ones(2, 8))
    assert not measurements
    Linear(1024, 1024)(torch.ones(2, 1024))
    assert len(measurements) == 1


def test_a_measurement_ignores_the_modes_of_its_caller_and_changes_nothing() -> None:
    """The names of the gains depend on time, so only their presence is checked."""
    before, state = torch.get_num_threads(), torch.get_rng_state()
    with torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
        found = processor.measured(processor.this.has_onednn)
    assert found.bfloat16 > 0 and (found.onednn > 0) == processor.this.has_onednn
    assert processor.measured(has_onednn=False).onednn == 0
    assert torch.get_num_threads() == before and torch.equal(torch.get_rng_state(), state)


@pytest.mark.skipif(not processor.this.has_onednn, reason="this build of PyTorch has no oneDNN")
def test_wrong_products_of_onednn_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that computes wrongly, or only raises an error, has no gain."""
    product = processor.onednn_product
    for fault in (lambda x, w: 1.001 * product(x, w), lambda x, w: torch.nan * product(x, w), lambda x, w: x @ x.T @ w):
        monkeypatch.setattr(processor, "onednn_product", fault)
        assert processor.measured(has_onednn=True).onednn == 0


def test_all_processes_of_a_run_use_the_gains_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Second(Ranks):
        def of_first(self, *numbers: float) -> list[float]:
            assert numbers == (2.0, 2.0)
            return [0.4, 1.1]

    monkeypatch.setattr(processor, "this", replace(HERE, known=FIXED["bf16"]))
    share_gains(Second())
    assert processor.this == replace(HERE, known=Gains(bfloat16=0.4, onednn=1.1))


def test_the_environment_can_fix_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for setting in ("plain", "auto", *FIXED):
        monkeypatch.setenv("GLASSFORMER_KERNELS", setting)
        found[setting] = processor.detect()
    assert found["auto"].known is None and found["plain"].known is None
    assert str(replace(found["plain"], known=FIXED["bf16"])).endswith(" plain PyTorch")
    assert found["onednn"].known == FIXED["onednn"]
    assert found["bf16"].known == FIXED["bf16" if found["bf16"].packs_bfloat16 else "onednn"]
    monkeypatch.setenv("GLASSFORMER_KERNELS", "fast")
    with pytest.raises(ValueError, match="GLASSFORMER_KERNELS is 'fast' and must be auto, plain, onednn or bf16"):
        processor.detect()


def test_a_wrong_setting_is_refused_by_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(processor.VARIABLE, "fast")
    assert run(["presets"]) == 2
    with pytest.raises(ValueError) as refused:
        processor.detect()
    assert capsys.readouterr().err == f"glassformer: {refused.value}\n"
