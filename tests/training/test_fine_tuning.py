"""Fine-tuning: frozen parameters are unchanged, and learning rates fall with the depth of a layer."""

from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from configs import CONFIGS, GPT, RECURRENT, random_inputs, random_model
from glassformer.common.errors import UserError
from glassformer.config.train import AdamConfig, AdamWConfig, MuonConfig, OptimizerConfig
from glassformer.models.transforms import add_lora
from glassformer.training.init_from import freeze, layer_scales
from glassformer.training.optimizers.build import build_optimizer, set_learning_rates
from glassformer.training.optimizers.state import load_state_tensors, state_tensors
from tolerances import F64, near

OPTIMIZERS: list[OptimizerConfig] = [
    AdamConfig(weight_decay=0.1),
    AdamWConfig(weight_decay=0.1, decay="matrices_and_embeddings"),
    MuonConfig(weight_decay=0.1, adamw=AdamWConfig(weight_decay=0.1)),
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


# Rates by depth


@pytest.mark.parametrize(
    ("name", "depths"),
    [
        (
            "gpt",
            {
                "decoder.final_norm.weight": 0,
                "decoder.blocks.1.ff.up_proj.bias": 1,
                "decoder.blocks.0.self_attn.q_proj.weight": 2,
                "decoder.embeddings.tokens.weight": 3,
                "decoder.embeddings.positions.table.weight": 3,
            },
        ),
        (
            "bert",
            {
                "output.transform.dense.weight": 0,
                "encoder.blocks.1.ff_norm.weight": 1,
                "encoder.embeddings.norm.bias": 3,
            },
        ),
        ("classifier_first", {"output.pooler.weight": 0, "output.proj.bias": 0, "encoder.blocks.0.ff_norm.bias": 2}),
        (
            "unequal_stacks",
            {
                "output.proj.weight": 0,
                "encoder.blocks.0.ff.up_proj.weight": 1,
                "encoder.embeddings.tokens.weight": 2,
                "decoder.blocks.1.cross_attn.q_proj.weight": 1,
                "decoder.blocks.0.cross_attn.q_proj.weight": 2,
                "decoder.embeddings.tokens.weight": 3,
            },
        ),
        (
            "t5",
            {
                "encoder.score_bias.table.weight": 3,
                "decoder.score_bias.table.weight": 3,
                "encoder.final_norm.weight": 0,
            },
        ),
        (
            "before_layers",
            {
                "encoder.tokens.weight": 3,
                "encoder.cells.weight_ih_l0_reverse": 2,
                "encoder.cells.bias_hh_l1": 1,
                "decoder.cells.weight_hh_l0": 2,
                "decoder.tokens.weight": 3,
                "decoder.cross_attn.q_proj.weight": 0,
                "bridge.hidden.1.weight": 0,
            },
        ),
    ],
)
def test_depths_equal_those_counted_by_hand(name: str, depths: dict[str, int]) -> None:
    model = random_model(name)
    scales = layer_scales(model, 0.5)
    assert list(scales) == [parameter for parameter, _ in model.named_parameters()]
    assert {parameter: scales[parameter] for parameter in depths} == {p: 0.5**depth for p, depth in depths.items()}


@pytest.mark.parametrize("name", [*CONFIGS, *RECURRENT])
def test_every_layer_gets_a_smaller_rate(name: str) -> None:
    """A block with the rate of the head would not be noticed in training."""
    model = random_model(name)
    for parameter, scale in layer_scales(model, 0.5).items():
        in_layer = any(part in ("blocks", "cells", "embeddings", "tokens") for part in parameter.split("."))
        assert (scale < 1) == (in_layer or "score_bias" in parameter)
    assert set(layer_scales(model, 1.0).values()) == {1.0}


def test_the_first_step_of_adam_has_the_size_of_the_rate() -> None:
    """For every gradient, Adam's first step moves a parameter by its rate, which differs by layer."""
    model = random_model(GPT)
    before, scales = copies(model), layer_scales(model, 0.5)
    config = AdamWConfig(learning_rate=1e-3, weight_decay=0.0, eps=1e-30)
    train(model, build_optimizer(model, config, scales), range(1))
    for name, parameter in model.named_parameters():
        moved = (parameter - before[name]).abs().max().item()
        assert moved == near(1e-3 * scales[name], dtype=F64), name


@BY_KIND
def test_scales_split_groups_and_the_schedule_multiplies_each(config: OptimizerConfig) -> None:
    model = random_model(GPT)
    scales = layer_scales(model, 0.5)
    whole, cut = build_optimizer(model, config), build_optimizer(model, config, scales)
    set_learning_rates(whole, 0.5)
    set_learning_rates(cut, 0.5)
    options = {name: group for group in whole.param_groups for name in group["param_names"]}
    seen = []
    for group in cut.param_groups:
        seen += group["param_names"]
        for name in group["param_names"]:
            assert group["lr"] == pytest.approx(options[name]["lr"] * scales[name])
            assert group["weight_decay"] == options[name]["weight_decay"]
            assert group.get("orthogonal") == options[name].get("orthogonal")
    assert sorted(seen) == sorted(options)


@BY_KIND
def test_scales_of_1_change_nothing(config: OptimizerConfig) -> None:
    plain, scaled = random_model(GPT), random_model(GPT)
    train(plain, build_optimizer(plain, config), range(3))
    train(scaled, build_optimizer(scaled, config, layer_scales(scaled, 1.0)), range(3))
    assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), scaled.parameters(), strict=True))


@BY_KIND
def test_resuming_with_scales_and_frozen_parameters_is_exact(config: OptimizerConfig) -> None:
    def prepared() -> tuple[Any, torch.optim.Optimizer]:
        model = random_model(GPT)
        freeze(model, ["decoder.embeddings.positions", "*.q_proj"])
        return model, build_optimizer(model, config, layer_scales(model, 0.7))

    straight, optimizer = prepared()
    train(straight, optimizer, range(4))
    halfway, optimizer = prepared()
    train(halfway, optimizer, range(2))
    resumed, fresh = prepared()
    resumed.load_state_dict(halfway.state_dict())
    load_state_tensors(fresh, load(save(state_tensors(optimizer))))
    train(resumed, fresh, range(2, 4))
    assert all(torch.equal(p, q) for p, q in zip(straight.parameters(), resumed.parameters(), strict=True))
