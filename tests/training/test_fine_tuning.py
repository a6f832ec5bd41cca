"""Fine-tuning: frozen parameters are unchanged."""

from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from configs import GPT, random_inputs, random_model
from glassformer.common.errors import UserError
from glassformer.config.train import AdamConfig, AdamWConfig, MuonConfig, OptimizerConfig
from glassformer.models.transforms import add_lora
from glassformer.training.init_from import freeze
from glassformer.training.optimizers.build import build_optimizer, load_state_tensors, set_learning_rates, state_tensors

OPTIMIZERS: list[OptimizerConfig] = [
    AdamConfig(weight_decay=0.1),
    AdamWConfig(weight_decay=0.1, decay="matrices_and_embeddings"),
    MuonConfig(weight_decay=0.1, adamw_weight_decay=0.1),
]
BY_KIND = pytest.mark.parametrize("config", OPTIMIZERS, ids=lambda config: config.kind)


def trained(model: Any) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def copies(model: Any) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def train(model: Any, optimizer: torch.optim.Optimizer, steps: range) -> None:
    inputs = random_inputs(model)
    for step in steps:
        set_learning_rates(optimizer, 1 / (1 + step))
        optimizer.zero_grad()
        model(inputs.token_ids, **inputs.others).logsumexp(-1).square().mean().backward()
        optimizer.step()


# Freezing


@BY_KIND
@pytest.mark.parametrize("name", ["gpt", "paper"])
def test_frozen_parameters_are_unchanged_to_the_bit(name: str, config: OptimizerConfig) -> None:
    model = random_model(name)
    frozen = freeze(model, ["*.embeddings", "*.blocks.0.*"])
    before = copies(model)
    assert set(frozen) == set(before) - trained(model) and trained(model)
    optimizer = build_optimizer(model, config)
    assert {name for group in optimizer.param_groups for name in group["param_names"]} == trained(model)
    train(model, optimizer, range(2))
    assert {name for name, p in model.named_parameters() if not torch.equal(p, before[name])} == trained(model)


@pytest.mark.parametrize(
    ("name", "pattern", "frozen"),
    [
        ("gpt", "decoder.final_norm", ["decoder.final_norm.weight", "decoder.final_norm.bias"]),
        ("gpt", "decoder.final_norm.b*", ["decoder.final_norm.bias"]),
        ("gpt", "output", ["decoder.embeddings.tokens.weight"]),  # tied: one table under two names
        ("paper", "decoder.embeddings", ["encoder.embeddings.tokens.weight"]),
        ("bahdanau", "bridge.*", ["bridge.hidden.0.weight", "bridge.hidden.0.bias"]),
    ],
)
def test_freeze_takes_names_of_modules_and_parameters(name: str, pattern: str, frozen: list[str]) -> None:
    model = random_model(name)
    assert freeze(model, [pattern, pattern]) == frozen
    assert trained(model) == set(copies(model)) - set(frozen)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (
            ["encoder.*", "decoder.embedding"],
            "no parameter matches decoder.embedding; similar names: .*decoder.embeddings",
        ),
        (["encoder.block"], r"encoder\.block"),  # a part of a name does not match
        (["*coder.*", "output"], "freezes every parameter"),
    ],
)
def test_a_pattern_that_freezes_nothing_or_everything_is_refused(patterns: list[str], message: str) -> None:
    model = random_model("two_vocabularies")
    with pytest.raises(UserError, match=message):
        freeze(model, patterns)
    assert trained(model) == set(copies(model))


def test_freezing_every_adapted_parameter_is_refused() -> None:
    model = random_model(GPT)
    add_lora(model, ["*.q_proj"], 2, 1.0)
    with pytest.raises(UserError, match="freezes every parameter"):
        freeze(model, ["*.lora_?"])


def test_muon_refuses_a_model_with_only_frozen_matrices() -> None:
    model = random_model(GPT)
    freeze(model, ["decoder.blocks"])
    with pytest.raises(UserError, match="this model has no such layer"):
        build_optimizer(model, MuonConfig())


@BY_KIND
def test_resuming_with_frozen_parameters_is_exact(config: OptimizerConfig) -> None:
    def prepared() -> tuple[Any, torch.optim.Optimizer]:
        model = random_model(GPT)
        freeze(model, ["decoder.embeddings.positions", "*.q_proj"])
        return model, build_optimizer(model, config)

    straight, optimizer = prepared()
    train(straight, optimizer, range(4))
    halfway, optimizer = prepared()
    train(halfway, optimizer, range(2))
    resumed, fresh = prepared()
    resumed.load_state_dict(halfway.state_dict())
    load_state_tensors(fresh, load(save(state_tensors(optimizer))))
    train(resumed, fresh, range(2, 4))
    assert all(torch.equal(p, q) for p, q in zip(straight.parameters(), resumed.parameters(), strict=True))
