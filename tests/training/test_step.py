"""The optimizer step: sums are divided once, by the number of all targets."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from configs import random_model
from glassformer.data.batching import Example
from glassformer.objectives.causal import CausalObjective
from runs import step_of
from tolerances import F64, assert_close, near

LENGTHS = (9, 2, 5, 3, 8, 4)


def rows(lengths: tuple[int, ...] = LENGTHS) -> list[Example]:
    rng = np.random.default_rng(0)
    return [Example(rng.integers(19, size=n)) for n in lengths]


class Kept(torch.optim.SGD):
    """An optimizer that changes no weight and keeps the gradients of the last step."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network.parameters(), lr=0.0)
        self.network = network

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.gradients = {name: p.grad.clone() for name, p in self.network.named_parameters() if p.grad is not None}


def gradients(parts: list[list[Example]], clip_norm: float = 0.0) -> tuple[dict[str, torch.Tensor], float, int, float]:
    network = random_model("gpt", seed=3)
    optimizer = Kept(network)
    objective = CausalObjective()
    step = step_of(network, optimizer, clip_norm=clip_norm)
    result = step([objective.collate(part, np.random.default_rng(0)) for part in parts])
    assert all(p.grad is None for p in network.parameters()), "gradients are left for the next step"
    assert network.training
    return optimizer.gradients, float(result.nats), result.n_targets, float(result.gradient_norm)


@pytest.mark.parametrize("boundaries", [(1,), (3,), (1, 2, 5), (1, 2, 3, 4, 5)])
def test_pitfall_19_accumulation_equals_one_batch(boundaries: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is in double precision, so that the bound is tight."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    ends = (0, *boundaries, len(LENGTHS))
    parts = [rows()[a:b] for a, b in pairwise(ends)]
    one, nats, n_targets, norm = gradients([rows()])
    many, many_nats, many_targets, many_norm = gradients(parts)
    assert n_targets == many_targets == sum(LENGTHS) - len(LENGTHS)
    assert many_nats == near(nats)  # this sum is kept in single precision
    assert many_norm == near(norm, dtype=F64)
    assert_close(many, one)


def test_pitfall_19_the_mean_of_micro_batch_means_differs() -> None:
    """The parts above are uneven enough for the test to fail."""
    one, *_ = gradients([rows()])
    first, *_ = gradients([rows()[:1]])
    rest, *_ = gradients([rows()[1:]])
    name = "decoder.blocks.0.self_attn.q_proj.weight"
    assert ((first[name] + rest[name]) / 2 - one[name]).abs().max() > 1e-3 * one[name].abs().max()


def test_the_gradient_equals_that_of_the_mean_over_targets() -> None:
    network = random_model("gpt", seed=3)
    logits = torch.cat([network(torch.from_numpy(row.token_ids[None, :-1]))[0] for row in rows()])
    labels = torch.cat([torch.from_numpy(row.token_ids[1:]) for row in rows()])
    nn.functional.cross_entropy(logits, labels).backward()
    found, *_ = gradients([rows()])
    assert_close(found, {name: parameter.grad for name, parameter in network.named_parameters()})


def test_clipping_scales_the_gradient_and_reports_its_former_norm() -> None:
    free, _, _, norm = gradients([rows()])
    clipped, _, _, reported = gradients([rows()], clip_norm=norm / 4)
    assert reported == pytest.approx(norm)
    expected = {name: gradient / 4 for name, gradient in free.items()}
    assert_close(clipped, expected, dtype=torch.float32)  # PyTorch adds 1e-6 to the norm
    longer, *_ = gradients([rows()], clip_norm=norm * 4)
    assert all(torch.equal(x, free[name]) for name, x in longer.items())  # the same operations


class Watched(nn.Module):
    """A wrapper like that of data parallelism: it records whether forward and backward ran inside `no_sync`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.quiet = network, False
        self.seen: list[tuple[str, bool]] = []

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.quiet = True
        yield
        self.quiet = False

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        self.seen.append(("forward", self.quiet))
        logits: torch.Tensor = self.network(**inputs)
        logits.register_hook(lambda gradient: self.seen.append(("backward", self.quiet)))
        return logits


def test_pitfall_24_no_sync_covers_all_micro_batches_but_the_last() -> None:
    network = Watched(random_model("gpt", seed=3))
    objective = CausalObjective()
    step = step_of(network, torch.optim.SGD(network.parameters(), lr=0.0), clip_norm=0.0)
    step([objective.collate([row], np.random.default_rng(0)) for row in rows()[:3]])
    quiet, loud = [("forward", True), ("backward", True)], [("forward", False), ("backward", False)]
    assert network.seen == [*quiet, *quiet, *loud]
