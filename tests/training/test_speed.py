"""Speed per device, and peak memory, in the lines of the log."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer import api
from glassformer.config.run import ExampleRows, LoraConfig, MaskedConfig, Run, TeacherConfig
from glassformer.config.train import TrainConfig
from glassformer.cost.flops import Shape, training_flops
from glassformer.cost.hardware import GPUS, find_gpu
from glassformer.cost.plan import plan_run
from glassformer.training.distributed.ranks import Ranks
from glassformer.training.host import Host
from glassformer.training.metrics_log import NAME, read_lines
from glassformer.training.speed import of_devices, peak_flops, seconds_at_peak
from runs import MODEL, TIMES, pair_run, tiny_run, write_text

CUDA = torch.device("cuda", 0)
LOGGED = {"tokens_per_s": 1200.0, "step_ms": 50.0}


@pytest.fixture(autouse=True)
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7_000_000)


def host(n: int = 1, device: torch.device = CUDA) -> Host:
    ranks = Ranks()
    ranks.n = n
    return Host(device, ranks)


def full_run(**train: Any) -> Run:
    return tiny_run(Path("text"), model=replace(MODEL, vocab_size=290), precision="bf16", **train)


@pytest.mark.parametrize("n", [1, 4])
def test_mfu_is_the_fraction_of_the_peak_rate_of_all_devices(n: int) -> None:
    """It equals the `mfu` with which `plan` predicts the time that the steps took."""
    run = full_run(grad_accumulation=4)
    found = of_devices(LOGGED, host(n), seconds_at_peak(run, host(n)))
    flops = 4 * training_flops(run.model, Shape(3, 32))
    assert found["mfu"] == pytest.approx(flops / (0.05 * n * 989e12))
    planned = plan_run(run, find_gpu("h200"), n, mfu=found["mfu"])
    assert planned.seconds == pytest.approx(run.train.max_steps * 0.05)
    assert found.get("tokens_per_s_per_device") == (None if n == 1 else 300)
    assert found["peak_memory_bytes"] == 7_000_000


def test_a_cpu_has_neither_mfu_nor_peak_memory() -> None:
    cpu = host(2, torch.device("cpu"))
    assert seconds_at_peak(full_run(), cpu) is None
    assert of_devices(LOGGED, cpu, None) == {"tokens_per_s_per_device": 600}


def test_mfu_is_absent_where_the_flops_are_not_known(tmp_path: Path) -> None:
    run = full_run()
    assert seconds_at_peak(run, host()) is not None
    assert seconds_at_peak(replace(run, objective=MaskedConfig()), host()) is not None
    for unknown in (
        replace(run, lora=LoraConfig()),
        replace(run, init=replace(run.init, freeze=("decoder.*",))),
        replace(run, data=replace(run.data, packing=ExampleRows())),  # type: ignore[type-var]
        replace(run, teacher=TeacherConfig(path="folder")),
        pair_run(tmp_path, precision="bf16"),
    ):
        assert seconds_at_peak(unknown, host()) is None


def test_the_peak_rate_is_that_of_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    def rate(name: str, **train: Any) -> float | None:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
        return peak_flops(TrainConfig(**train), CUDA)

    assert rate("NVIDIA H200", precision="bf16") == rate("NVIDIA H200", precision="fp16") == 989e12
    assert rate("NVIDIA H200", precision="fp32") == 67e12
    assert rate("NVIDIA H200", precision="tf32") == 989e12 / 2
    assert rate("Tesla T4", precision="tf32") == rate("Tesla T4", precision="fp32") == 8.1e12
    assert rate("Tesla T4", precision="fp16") == 65e12 and rate("Tesla T4", precision="bf16") is None
    assert rate("NVIDIA H100 PCIe", precision="bf16") is None, "slower than the H100 of the table"
    names = [name for gpu in GPUS.values() for name in gpu.devices]
    assert len(set(names)) == len(names) >= len(GPUS)


def test_the_numbers_are_in_the_training_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.training.run.seconds_at_peak", lambda run, host: 1e-6)
    api.train(tiny_run(write_text(tmp_path), max_steps=5), tmp_path / "run")
    [line] = [line for line in read_lines(tmp_path / "run" / NAME) if "train/loss" in line]
    assert line["mfu"] == pytest.approx(1e-3 / line["step_ms"])
    assert line.keys() & TIMES == {"tokens_per_s", "step_ms", "mfu"}
