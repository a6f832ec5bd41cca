"""Estimated memory of training state and of the generation cache, against real tensors."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from configs import CONFIGS, RECURRENT, bytes_of, random_inputs
from glassformer.config.recurrent import ModelConfig
from glassformer.config.train import AdamConfig, AdamWConfig, MuonConfig, TrainConfig
from glassformer.cost.activations import Activations
from glassformer.cost.memory import cache_bytes, sharded, training_memory
from glassformer.cost.parameters import parameter_counts
from glassformer.models.build import build_model
from glassformer.training.optimizers.build import build_optimizer, state_tensors

EVERY: dict[str, ModelConfig] = {**CONFIGS, **RECURRENT}


@pytest.mark.parametrize("name", ["gpt", "bert", "unequal_stacks", "bahdanau", "luong"])
@pytest.mark.parametrize("optimizer", [AdamConfig(), AdamWConfig(), MuonConfig()], ids=lambda o: o.kind)
def test_the_optimizer_state_equals_the_estimate(name: str, optimizer: Any) -> None:
    network = build_model(EVERY[name])
    steps = build_optimizer(network, optimizer)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    steps.step()
    moments = sum(x.numel() * x.element_size() for key, x in state_tensors(steps).items() if not key.endswith("step"))
    memory = training_memory(EVERY[name], TrainConfig(optimizer=optimizer, ema_decay=0.9), Activations(0, 0))
    assert memory.optimizer == moments
    assert memory.weights == memory.gradients == memory.average == 4 * network.n_parameters()
    assert memory.half_copies == 0


@pytest.mark.parametrize("name", ["gpt", "llama", "d_embedding", "paper", "two_vocabularies"])
def test_half_copies_are_the_linear_weights(name: str) -> None:
    config = CONFIGS[name]
    network = build_model(config)
    linears = {m.weight for m in network.modules() if isinstance(m, torch.nn.Linear)}
    outside = {p.weight for s in (network.encoder, network.decoder) if s and (p := s.embeddings.projection) is not None}
    memory = training_memory(config, TrainConfig(precision="bf16"), Activations(0, 0))
    assert memory.half_copies == 2 * sum(weight.numel() for weight in linears - outside)


def test_a_sharded_state() -> None:
    config, train = CONFIGS["gpt"], TrainConfig()
    counts = parameter_counts(config)
    whole = training_memory(config, train, Activations(1000, 10))
    part = sharded(whole, config, train, 4)
    assert 4 * part.state == whole.state
    assert part.gathered == 8 * (counts.largest_layer + counts.embeddings)
    assert part.total == part.state + part.gathered + 1010
    half = replace(train, precision="bf16")
    cast = sharded(training_memory(config, half, Activations(0, 0)), config, half, 4)
    assert cast.half_copies == 0 and 4 * cast.gathered == 3 * part.gathered  # cast during the gathering


@pytest.mark.parametrize("name", [name for name, config in EVERY.items() if getattr(config, "decoder", True)])
def test_the_cache_of_generation(name: str) -> None:
    network = build_model(EVERY[name]).eval()
    inputs = random_inputs(network, 2, 1, 7)
    with torch.no_grad():
        _, state = network.step(inputs.token_ids, network.start(2, 15, inputs.others.get("source_ids")))
    assert cache_bytes(EVERY[name], 2, 15, 7) == bytes_of(state)
