"""A training step with experts: balance loss, loads over micro-batches, biases, padding, activation checkpointing."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from configs import GPT, random_model
from glassformer.config.transformer import Balance, BalanceBias, BalanceLoss, Experts, NoBalance
from glassformer.data.batching import Batch, Example
from glassformer.nn.experts import Router, balance_loss
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.loss import LossSums
from glassformer.training.distributed.ranks import Ranks
from glassformer.training.routing import Routing
from runs import step_of
from tolerances import assert_close, near

LENGTHS = (9, 2, 5, 3, 8, 4)


def micro_batches(*boundaries: int) -> list[Batch]:
    rng = np.random.default_rng(0)
    rows = [Example(rng.integers(19, size=n)) for n in LENGTHS]
    parts = [rows[a:b] for a, b in pairwise((0, *boundaries, len(rows)))]
    return [CausalObjective().collate(part, rng) for part in parts]


def network_with(balance: Balance) -> Any:
    return random_model(replace(GPT, experts=Experts(4, 2, balance=balance)), seed=3)


def routers(network: nn.Module) -> list[Router]:
    return [module for module in network.modules() if isinstance(module, Router)]


def sgd(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.1)


def loss_by_hand(network: Any, batch: Batch) -> float:
    """Return the mean of the layers, from the router logits of the real tokens."""
    logits: list[Tensor] = []
    hooks = [r.proj.register_forward_hook(lambda _module, _args, out: logits.append(out)) for r in routers(network)]
    with torch.no_grad():
        network.eval()(**batch.model_inputs())
    for hook in hooks:
        hook.remove()
    values = []
    for of_layer in logits:
        p = of_layer[batch.attention_mask].softmax(dim=-1) if batch.attention_mask is not None else of_layer.softmax(-1)
        values.append(balance_loss(p, torch.zeros_like(p).scatter(-1, p.topk(2).indices, 1.0)).item())
    return sum(values) / len(values)


def test_the_step_adds_the_balance_loss_of_the_real_tokens() -> None:
    [batch] = micro_batches()
    network = network_with(BalanceLoss(0.3))
    expected = loss_by_hand(network, batch)
    result = step_of(network, sgd(network))([batch])
    assert result.figures["auxiliary_loss"] == near(0.3 * expected)
    assert 0.25 <= result.figures["fullest_expert"] < 1 and result.figures["dead_experts"] >= 0


def test_the_reported_loss_does_not_contain_the_balance_loss() -> None:
    [batch] = micro_batches()
    with_loss, without = (
        step_of(n, sgd(n))([batch]) for n in (network_with(BalanceLoss(0.3)), network_with(NoBalance()))
    )
    assert with_loss.nats == without.nats
    assert "auxiliary_loss" not in without.figures


def test_the_balance_loss_makes_loads_more_equal() -> None:
    [batch] = micro_batches()
    shares = []
    for balance in (BalanceLoss(10.0), NoBalance()):
        network = network_with(balance)
        step = step_of(network, sgd(network))
        shares.append([step([batch]).figures["fullest_expert"] for _ in range(20)][-1])
    assert shares[0] < shares[1]


@pytest.mark.parametrize("boundaries", [(3,), (1, 2, 5)])
def test_loads_and_biases_of_micro_batches_equal_those_of_one_batch(boundaries: tuple[int, ...]) -> None:
    biases = []
    for batches in (micro_batches(), micro_batches(*boundaries)):
        network = network_with(BalanceBias(0.05))
        result = step_of(network, sgd(network))(batches)
        biases.append([router.bias for router in routers(network)])
        assert result.figures["fullest_expert"] > 0.25
    assert any(bias.any() for bias in biases[0])
    assert torch.equal(torch.stack(biases[0]), torch.stack(biases[1]))  # a sign decides each change


def test_a_step_without_an_update_moves_no_bias() -> None:
    network = network_with(BalanceBias(0.05))
    step = step_of(network, sgd(network))
    step.backward(micro_batches())
    network.decoder.blocks[0].ff.router.proj.weight.grad.fill_(torch.nan)
    [result] = step.update()
    assert not result.is_taken and not any(router.bias.any() for router in routers(network))


class SecondRank(Ranks):
    """A process beside another one, which read all its tokens with expert 3 and has twice the auxiliary loss."""

    def total(self, x: Tensor) -> Tensor:
        if not x.dim():
            return 3 * x
        return x + torch.tensor([0.0, 0.0, 0.0, 1e4] * 2, dtype=x.dtype)


def test_loads_biases_and_losses_are_those_of_all_processes() -> None:
    network = network_with(BalanceBias(0.05))
    routing = Routing(network, SecondRank())
    routing.loads = torch.tensor([9.0, 1.0, 1.0, 1.0] * 2, dtype=torch.float64)
    routing.loss = torch.tensor(2.0)
    figures = routing.figures(4)
    assert figures["auxiliary_loss"] == pytest.approx(1.5) and figures["fullest_expert"] > 0.99
    routing.move_biases()
    for router in routers(network):
        assert_close(router.bias, torch.tensor([0.05, 0.05, 0.05, -0.05], dtype=torch.float64))


def test_the_bias_keeps_the_experts_of_a_run_alive() -> None:
    [batch] = micro_batches()
    shares = []
    for balance in (BalanceBias(0.02), NoBalance()):
        network = network_with(balance)
        step = step_of(network, sgd(network))
        shares.append([step([batch]).figures["fullest_expert"] for _ in range(40)][-1])
    assert shares[0] < shares[1]


def test_activation_checkpointing_changes_neither_gradients_nor_loads() -> None:
    results = []
    for is_on in (False, True):
        network = network_with(BalanceLoss(0.3))
        step = step_of(network, sgd(network), activation_checkpointing=is_on)
        figures = step(micro_batches(3)).figures
        results.append((figures, {name: x.detach() for name, x in network.named_parameters()}))
        assert all(router.auxiliary_loss is None for router in routers(network)), "a graph stays in memory"
    (plain, weights), (recomputed, other_weights) = results
    assert plain == recomputed
    assert_close(weights, other_weights)


def test_routers_of_different_sizes_and_one_that_does_not_run() -> None:
    """A router without tokens has the load 0, and its bias does not move."""
    network = nn.ModuleList(Router(8, n_experts, 1, bias_rate=0.05) for n_experts in (4, 2, 4))
    routing = Routing(network, Ranks())
    routing.begin()
    x = torch.ones(1, 3, 8)  # equal tokens, which choose one expert
    for running in (network[:2], network[1:2]):
        with routing.recorded():
            for router in running:
                router(x)
            routing.added_to(LossSums(torch.tensor(1.0), torch.tensor(1.0), 3), 3)
    figures = routing.figures(6)
    assert (figures["fullest_expert"], figures["dead_experts"]) == (1, 3 + 1 + 4)
    routing.move_biases()
    moved = [sorted(router.bias.tolist()) for router in network]
    expected = [[-0.05, 0.05, 0.05, 0.05], [-0.05, 0.05], [0.0, 0.0, 0.0, 0.0]]
    for found, biases in zip(moved, expected, strict=True):
        assert found == pytest.approx(biases)
