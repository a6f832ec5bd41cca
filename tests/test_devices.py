"""Arithmetic settings of a run: set during the run, restored after it."""

import os
import platform
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glassformer import api
from glassformer.apps.cli import resume
from glassformer.apps.cli.progress import Shown
from glassformer.common.errors import UserError
from glassformer.config.recurrent import ModelConfig, RecurrentConfig
from glassformer.config.train import TrainConfig
from glassformer.config.transformer import Experts, Stack, TransformerConfig
from glassformer.cost import plan
from glassformer.models import devices
from glassformer.models.devices import (
    WORKSPACE,
    numerics,
    repeats_bits,
)
from glassformer.nn.kernels import processor
from glassformer.training import announce
from glassformer.training.replay import Replay
from glassformer.training.step import TrainStep
from glassformer.trial import choice
from glassformer.trial.choice import Verdict
from runs import Recording, remains, tiny_run, write_text

Seen = tuple[str, bool, bool, bool, str | None]


def now() -> Seen:
    cudnn = torch.backends.cudnn
    return (
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
        os.environ.get(WORKSPACE),
    )


@pytest.mark.parametrize("workspace", [None, ":16:8", "other"])
def test_settings_apply_in_every_step_and_are_restored(
    workspace: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(WORKSPACE, raising=False)
    if workspace is not None:
        monkeypatch.setenv(WORKSPACE, workspace)
    before, seen, backward = now(), [], TrainStep.backward
    monkeypatch.setattr(TrainStep, "backward", lambda self, *args: (seen.append(now()), backward(self, *args))[1])
    run = tiny_run(write_text(tmp_path), max_steps=2, eval_every=1, deterministic=True, precision="tf32")
    api.train(run, tmp_path / "run")
    api.replay(tmp_path / "run")
    assert set(seen) == {("high", True, True, False, ":16:8" if workspace == ":16:8" else ":4096:8")}
    assert now() == before


def test_settings_are_restored_after_an_error() -> None:
    before = now()
    with pytest.raises(KeyError), numerics(TrainConfig(deterministic=True, precision="tf32")):
        raise KeyError
    assert now() == before


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("nested_op does not have a deterministic implementation, but you set …", "nested_op has no deterministic"),
        ("… set an environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8", "set CUBLAS_WORKSPACE_CONFIG=:4096:8 in"),
    ],
)
def test_a_setting_that_torch_refuses_is_one_sentence(message: str, words: str) -> None:
    with pytest.raises(UserError, match=words), numerics(TrainConfig(deterministic=True)):
        raise RuntimeError(message)
    with pytest.raises(RuntimeError, match="another"), numerics(TrainConfig(deterministic=True)):
        raise RuntimeError("another")


def test_deterministic_changes_nothing_on_the_cpu(tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path))
    api.train(run, tmp_path / "one")
    changed = replace(run, train=replace(run.train, deterministic=True))
    api.train(changed, tmp_path / "two")
    one, two = remains(tmp_path / "one"), remains(tmp_path / "two")
    assert one["tensors"] == two["tensors"] and one["metrics"] == two["metrics"]
    with numerics(TrainConfig()):
        assert torch.get_float32_matmul_precision() == "highest"


def test_equal_bits_are_promised_on_the_cpu_and_deterministic_cuda() -> None:
    plain, exact = TrainConfig(), TrainConfig(deterministic=True)
    assert [repeats_bits(plain, torch.device(name)) for name in ("cpu", "cuda", "mps")] == [True, False, False]
    assert [repeats_bits(exact, torch.device(name)) for name in ("cpu", "cuda", "mps")] == [True, True, False]


def test_verify_explains_devices_without_equal_bits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for repeats, expected in ((True, False), (False, True)):
        found = Replay(1, 2, ["x"], is_same_machine=True, repeats_bits=repeats)
        monkeypatch.setattr(api, "replay", lambda *_, found=found: found)
        assert resume.main("run", verify=True, output=Shown()) == 1
        assert (
            "only the CPU, and CUDA with train.deterministic, give equal bits" in capsys.readouterr().out
        ) == expected


def test_resume_reports_devices_without_equal_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api.train(tiny_run(write_text(tmp_path), max_steps=2, eval_every=1), tmp_path / "run")
    assert api.replay(tmp_path / "run").repeats_bits
    for repeats in (True, False):
        monkeypatch.setattr(announce, "repeats_bits", lambda *_, repeats=repeats: repeats)
        reporter = Recording()
        api.resume(tmp_path / "run", reporter)
        assert any("equal up to rounding" in line for line in reporter.messages) != repeats


PAGE_FAULTS = """
import resource
import torch
from glassformer.models.devices import freed_memory_kept

def n_page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.empty(80 << 20, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

outside = n_page_faults()
with freed_memory_kept():
    n_page_faults()  # the first blocks are new, until small blocks have found their places between them
    assert 4 * n_page_faults() < outside
    with freed_memory_kept():
        pass
    assert 4 * n_page_faults() < outside, "the end of an inner block changes nothing"
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_memory_that_is_freed_and_allocated_again_is_not_filled_with_zeros_by_the_system(
    environment: dict[str, str],
) -> None:
    """In a process of its own, because the heap of a process with threads may be in several parts."""
    done = subprocess.run([sys.executable, "-c", PAGE_FAULTS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_run_records_the_precision_that_it_chose_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(processor, "this", replace(processor.this, packs_bfloat16=True))
    monkeypatch.setattr(plan, "LONG_SECONDS", 0)
    monkeypatch.setattr(choice, "new_verdict", lambda *_: Verdict(seconds={"fp32": 0.3, "bf16": 0.1}))
    seen = Recording()
    api.train(tiny_run(write_text(tmp_path)), tmp_path / "run", reporter=seen)
    assert any("bf16 (measured: bf16 is 3.0 times as fast as fp32)" in message for message in seen.messages)
    assert api.load(tmp_path / "run").run.train.precision == "bf16"
    monkeypatch.setattr(choice, "new_verdict", lambda *_: Verdict(seconds={"fp32": 0.1}))  # on another machine
    assert api.resume(tmp_path / "run").run.train.precision == "bf16"


@pytest.mark.parametrize("gains", ["onednn", "bf16"])
def test_slow_bf16_is_reported_at_the_start_with_its_cost(
    gains: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By train, resume, `load` and `evaluate`, where products in bf16 are slower."""
    monkeypatch.setattr(processor, "this", replace(processor.this, known=processor.FIXED[gains]))
    is_told = gains == "onednn"
    begin, seen, folder = "bf16 has no gain on this CPU: a large product takes 5.0 times as long", [], tmp_path / "run"
    run = tiny_run(write_text(tmp_path), precision="bf16", max_steps=2, eval_every=2)
    for act in (lambda: api.train(run, folder, reporter=seen[-1]), lambda: api.resume(folder, reporter=seen[-1])):
        seen.append(Recording())
        act()
    for one in seen:
        assert [text for text in one.messages[:1] if text.startswith(begin)] == (one.messages[:1] if is_told else [])
    told: list[str] = []
    api.load(folder).evaluate(log=told.append)
    assert [text.startswith(begin) for text in told] == [True] * is_told
    for dtype, is_half in (("bf16", True), ("fp16", False), ("fp32", False), (None, False)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            api.load(folder, dtype=dtype)
        texts = [str(one.message) for one in caught]
        assert [text.startswith(f"{dtype} has no gain") for text in texts] == [True] * (is_told and is_half)


WIDE, WIDE_GRU = TransformerConfig(decoder=Stack(1, 1), d_model=96), RecurrentConfig(d_decoder=256)
CUDA, LONG = torch.device("cuda"), 1e6


@pytest.mark.parametrize(
    ("model", "device", "has_one_shape", "seconds", "reason"),
    [
        (WIDE, CUDA, True, LONG, "the run takes much longer than the compiler"),
        (WIDE, CUDA, True, 299.0, "the run is too short for the compiler"),
        (WIDE, CUDA, False, LONG, "the rows are not windows of a text"),
        (WIDE, torch.device("cpu"), True, LONG, "no gain on a CPU"),
        (WIDE, torch.device("mps"), True, LONG, "no gain on this device"),
        (WIDE_GRU, CUDA, True, LONG, "recurrent modules cannot be compiled"),
        (replace(WIDE, experts=Experts()), CUDA, True, LONG, "experts cannot be compiled"),
    ],
)
def test_auto_compilation(
    monkeypatch: pytest.MonkeyPatch,
    model: ModelConfig,
    device: torch.device,
    has_one_shape: bool,
    seconds: float,
    reason: str,
) -> None:
    monkeypatch.setattr(devices, "has_triton", lambda: True)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/gcc")
    expected = reason.startswith("the run takes")
    assert devices.choose_compile("auto", model, device, has_one_shape, seconds) == (expected, reason)
    for setting in (True, False):
        assert devices.choose_compile(setting, model, device, has_one_shape, seconds) == (setting, "")


@pytest.mark.parametrize(("triton", "compiler"), [(False, "/usr/bin/gcc"), (True, None)])
def test_auto_compilation_needs_triton_and_a_compiler(
    monkeypatch: pytest.MonkeyPatch, triton: bool, compiler: str | None
) -> None:
    monkeypatch.setattr(devices, "has_triton", lambda: triton)
    monkeypatch.setattr(shutil, "which", lambda name: compiler)
    found = devices.choose_compile("auto", WIDE, CUDA, True, LONG)
    assert found == (False, "Triton or a C compiler is missing")
