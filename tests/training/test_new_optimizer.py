"""A new optimizer is its settings with their traits, and a module with `build`: everything else follows."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import nn

from configs import random_model
from glassformer import api
from glassformer.common.errors import Interrupted, UserError
from glassformer.config import extensions
from glassformer.config.extensions import OPTIMIZERS, own_members, register_settings
from glassformer.config.run import Run
from glassformer.config.schema import checked, from_dict, setting, to_dict
from glassformer.config.train import AdamWConfig, OptimizerConfig, OptimizerTraits
from glassformer.cost.activations import Activations
from glassformer.cost.hardware import find_gpu
from glassformer.cost.memory import training_memory
from glassformer.cost.plan import plan_run
from glassformer.models.build import build_model
from glassformer.store import checkpoint
from glassformer.training.distributed.process_group import Sharded
from glassformer.training.optimizers.build import (
    build_optimizer,
    load_state_tensors,
    new_group,
    state_tensors,
    trained_parameters,
)
from runs import MODEL, Recording, remains, signal_at, tiny_run, write_text

TRAITS = OptimizerTraits(
    module=__name__,
    state=("momentum_buffer",),
    matrix_state=("momentum_buffer",),
    needs_whole_matrices=False,
)


@checked
@dataclass(frozen=True)
class SgdConfig:
    """Gradient descent with momentum."""

    kind: ClassVar[str] = "sgd"
    traits: ClassVar[OptimizerTraits] = TRAITS
    learning_rate: float = setting(0.1, "peak learning rate", "(0, ∞)")
    momentum: float = setting(0.9, "momentum", "[0, 1)")


def build(model: nn.Module, config: SgdConfig) -> torch.optim.Optimizer:
    """Return PyTorch's optimizer."""
    group = new_group(trained_parameters(model), config.traits.state, config.learning_rate, 0.0)
    return torch.optim.SGD([group], momentum=config.momentum, fused=True)


SGD = cast(AdamWConfig, SgdConfig())


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(extensions, "_registered", dict(extensions._registered))
    register_settings(OPTIMIZERS, SgdConfig)
    yield


def sgd_run(folder: Path, **train: Any) -> Run:
    return tiny_run(write_text(folder), optimizer=SGD, ema_decay=0.9, **train)


@pytest.mark.usefixtures("registered")
def test_it_trains_and_resumes_with_equal_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, reporter = sgd_run(tmp_path), Recording()
    assert from_dict(Run, to_dict(run), "run") == run
    api.train(run, tmp_path / "whole", reporter)
    losses = [reports["valid"].loss for reports in reporter.evaluations.values()]
    assert losses[-1] < losses[0]
    with monkeypatch.context() as patch:
        signal_at(patch, 12)
        with pytest.raises(Interrupted, match="saved at step 13"):
            api.train(run, tmp_path / "parts")
    api.resume(tmp_path / "parts")
    assert remains(tmp_path / "whole") == remains(tmp_path / "parts")
    stored = checkpoint.load_state(checkpoint.path_of(tmp_path / "whole", 20)).optimizer
    assert stored and {str(name).rpartition("/")[2] for name in stored} == {"momentum_buffer"}
    assert api.replay(tmp_path / "whole").differing == []


@pytest.mark.parametrize("needs_whole_matrices", [False, True])
@pytest.mark.usefixtures("registered")
def test_it_is_planned_and_sharded_as_its_traits_state(
    needs_whole_matrices: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SgdConfig, "traits", replace(TRAITS, needs_whole_matrices=needs_whole_matrices))
    run = sgd_run(tmp_path, grad_accumulation=16)
    run = replace(run, model=replace(MODEL, vocab_size=290))
    plan = plan_run(run, find_gpu("h200"), 16)
    assert (plan.sharded is None) == needs_whole_matrices
    assert any("sgd needs whole matrices" in note for note in plan.notes) == needs_whole_matrices
    if needs_whole_matrices:
        with pytest.raises(UserError, match="sgd needs whole matrices"):
            Sharded.distribute(cast(Sharded, None), build_model(run.model), run.train)


@pytest.mark.parametrize("config", [*(cls() for cls in own_members(OptimizerConfig)), SGD], ids=lambda x: x.kind)
@pytest.mark.usefixtures("registered")
def test_the_traits_agree_with_the_optimizer(config: OptimizerConfig, tmp_path: Path) -> None:
    """Names and number of the tensors, as the memory of a step counts them."""
    network = random_model("gpt", seed=3, dtype=torch.float32)
    optimizer = build_optimizer(network, config)
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    tensors = state_tensors(optimizer)
    load_state_tensors(build_optimizer(network, config), tensors)
    n_bytes = sum(x.numel() * x.element_size() for name, x in tensors.items() if not name.endswith("/step"))
    train = replace(tiny_run(tmp_path / "text").train, optimizer=config)
    assert training_memory(network.config, train, Activations(0, 0)).optimizer == n_bytes


def test_a_part_that_is_forgotten_is_an_error() -> None:
    """A missing trait at the definition, another kind of group when it is built, an unknown tensor when it is saved."""
    facts = {field.name: getattr(TRAITS, field.name) for field in dataclasses.fields(TRAITS)}
    for name in facts:
        with pytest.raises(TypeError, match=name):
            OptimizerTraits(**{key: value for key, value in facts.items() if key != name})
    model = nn.Linear(2, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "build", lambda model, config: torch.optim.SGD(model.parameters()))
        with pytest.raises(ValueError, match="must make its groups with `new_group`"):
            build_optimizer(model, SGD)
        patch.undo()
        patch.setattr(SgdConfig, "traits", replace(TRAITS, state=("exp_avg",)))
        optimizer = build_optimizer(model, SGD)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with pytest.raises(
        ValueError, match=r"SGD stores \['momentum_buffer'\] for weight; its traits name \('exp_avg',\)"
    ):
        state_tensors(optimizer)
