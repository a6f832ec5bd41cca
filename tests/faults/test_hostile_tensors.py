"""Fault 26: tensors that do not fit the model. Every manifest is correct, as an attacker can write one."""

import functools
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from faults.hostile import edit_json, entry, plant, read_spoiled, refused, safetensors, sign
from faults.tally import record
from glassformer.common import files
from glassformer.config.recurrent import ModelConfig
from glassformer.config.train import AdamWConfig
from glassformer.models.build import Network
from glassformer.store.model_directory import read_model
from glassformer.store.tensors import DTYPES, fill, read_tensors, require_fit
from glassformer.training.averaging import ExponentialAverage
from glassformer.training.optimizers.build import build_optimizer, load_state_tensors, state_tensors

# 26: tensors that do not fit the model


def test_fault_26_wrong_tensors_are_listed_by_name_and_counted(directory: Path) -> None:
    path = directory / "model.safetensors"
    right = load_file(path)
    names = list(right)
    a, b, c, d = names[:4]
    expected = tuple(right[a].shape)
    wrong: dict[str, tuple[str, torch.Tensor | None]] = {
        f"{a} has shape (3, 5), expected {expected}": (a, torch.zeros(3, 5)),
        f"{b} has dtype float64, expected float32": (b, right[b].double()),
        f"{c} has dtype int64, expected float32": (c, right[c].long()),
        f"{d} is missing": (d, None),
        "head.evil is not part of this model": ("head.evil", torch.zeros(1)),
    }

    def message(*changes: tuple[str, torch.Tensor | None]) -> str:
        tensors = right | dict(changes)
        save_file({name: x for name, x in tensors.items() if x is not None}, path)
        sign(directory)
        return refused(read_spoiled(directory), f"{path} does not fit the model: ").partition("the model: ")[2]

    for problem, change in wrong.items():
        assert message(change) == problem
    listed, _, rest = message(*wrong.values()).partition(" … and ")
    found = listed.split("; ")
    assert len(found) >= 2 and set(found) <= wrong.keys()
    assert rest == (f"{len(wrong) - len(found)} more" if len(found) < len(wrong) else "")
    save_file({f"x{i}": torch.zeros(1) for i in range(20)}, path)
    sign(directory)
    text = refused(read_spoiled(directory))
    n_listed = text.count(";") + 1
    assert 2 <= n_listed <= 8 and text.endswith(f"and {len(names) + 20 - n_listed} more")
    record(26, 6, 6, "none")


def test_fault_26_weights_of_lower_precision_are_loaded_exactly(directory: Path) -> None:
    halves = {name: x.to(torch.bfloat16) for name, x in load_file(directory / "model.safetensors").items()}
    save_file(halves, directory / "model.safetensors")
    sign(directory)
    network = read_model(directory).network
    for name, x in network.state_dict().items():
        if name in halves:
            assert x.dtype == torch.float32 and torch.equal(x, halves[name].float())


def test_fault_26_a_tensor_of_another_dtype_is_refused_unless_it_is_exact(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    def check(stored: torch.dtype, own: torch.dtype) -> None:
        path, given = tmp_path / f"{stored}.safetensors", torch.tensor([0.0, 1.0, 0.1]).to(stored)
        save_file({"w": given}, path)
        wanted = {"w": torch.zeros(3).to(own)}
        n_bytes = own.itemsize // 2 if own.is_complex else own.itemsize
        is_wider = (own.is_floating_point or own.is_complex) and n_bytes >= 4 and n_bytes >= stored.itemsize
        if stored == own or (is_wider and stored.is_floating_point and stored.itemsize > 1):
            require_fit(wanted, path)
            fill(wanted, path)
            assert torch.equal(wanted["w"].to(torch.complex128), given.to(torch.complex128))
        else:
            dtypes = f"w has dtype {stored}, expected {own}".replace("torch.", "")
            refused(lambda: require_fit(wanted, path), f"does not fit the model: {dtypes}")

    for stored, own in itertools.product(DTYPES.values(), repeat=2):
        with subtests.test(f"{stored} in {own}"):
            check(stored, own)


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name not in ("F32", "F16", "BF16")])
def test_fault_26_weights_of_every_other_dtype_are_refused(directory: Path, dtype: str) -> None:
    tensors = load_file(directory / "model.safetensors")
    name = next(iter(tensors))
    tensors[name] = tensors[name].to(DTYPES[dtype])
    save_file(tensors, directory / "model.safetensors")
    sign(directory)
    refused(read_spoiled(directory), f"{name} has dtype {DTYPES[dtype]}, expected float32".replace("torch.", ""))
    record(26, 1, 1, "none")


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "F32"])
def test_fault_26_training_states_of_every_other_dtype_are_refused(dtype: str) -> None:
    """Each tensor of the optimizer, its steps too, and of the moving average."""
    model = torch.nn.Linear(2, 1)
    average, optimizer = ExponentialAverage(model, 0.9), build_optimizer(model, AdamWConfig())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    for load, tensors in (
        (average.load_state_tensors, average.state_tensors()),
        (functools.partial(load_state_tensors, optimizer), state_tensors(optimizer)),
    ):
        load(tensors)
        for name, x in tensors.items():
            refused(functools.partial(load, tensors | {name: x.to(DTYPES[dtype])}), name, "does not fit")
            record(26, 1, 1, "none")


@pytest.mark.parametrize("count", [-1.0, math.nan, math.inf, 1e30])
def test_fault_26_an_impossible_number_of_updates_is_refused(count: float) -> None:
    average = ExponentialAverage(torch.nn.Linear(2, 1), 0.9)
    name = next(name for name, x in average.state_tensors().items() if x.dim() == 0)
    changed = average.state_tensors() | {name: torch.tensor(count)}
    refused(lambda: average.load_state_tensors(changed), name, "does not fit")
    record(26, 1, 1, "none")


def test_fault_26_weights_are_checked_before_memory_is_allocated(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassformer.models import build

    devices: list[str] = []
    real = build.undrawn_model

    def recorded(config: ModelConfig) -> Network:
        devices.append(torch.get_default_device().type)
        return real(config)

    monkeypatch.setattr(build, "undrawn_model", recorded)
    read_model(directory)
    assert devices == ["meta", "cpu"]
    devices.clear()
    edit_json(directory, "config.json", lambda config: config.update(d_model=config["d_model"] * 2))
    refused(read_spoiled(directory), "does not fit the model")
    assert devices == ["meta"]


@pytest.mark.parametrize("names", [["a", "a"], ["a", 1], {"a": 1}, "ab", ["a"] * 3])
def test_fault_26_wrong_names_of_labels_are_refused(directory: Path, names: Any) -> None:
    plant(directory, "labels.json", json.dumps(names))
    refused(read_spoiled(directory), "labels.json")
    record(26, 1, 1, "none")


def test_fault_26_averaging_refuses_the_same_files(directory: Path, tmp_path: Path) -> None:
    from glassformer.training.averaging import average_directories

    plant(directory, "model.safetensors", safetensors({"v": entry(), "w": entry()}))
    refused(lambda: average_directories([directory], tmp_path / "mean"), "w overlaps")
    assert not (tmp_path / "mean").exists()


def test_an_intact_model_is_still_read(directory: Path) -> None:
    """The bounds accept every file that glassformer writes."""
    stored = read_model(directory)
    assert stored.labels == ("a", "b") and replace(stored.config) == stored.config
    assert read_tensors(directory / "model.safetensors").keys() == load_file(directory / "model.safetensors").keys()
    assert files.parse_json("[" * 64 + "]" * 64)
