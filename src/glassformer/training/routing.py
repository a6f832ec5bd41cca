"""Routers of experts in a training step: auxiliary losses, the loads of the experts, and their biases.

A router records its load and its auxiliary loss in a forward pass of a step (`records`). The step reads both, and adds
the loss × targets to the sum of the objective, so objectives need no code for experts. `nats` contain no auxiliary
loss. The recomputation of a block in the backward pass records nothing, because its graph would stay in memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from glassformer.nn.experts import Router, added_to
from glassformer.objectives.loss import LossSums
from glassformer.training.distributed.ranks import Ranks


class Routing:
    """The routers of a network during a step; without routers, all methods do nothing.

    The auxiliary losses are means over tokens. Each is multiplied by the divisor of its forward pass (its number of
    targets, or the sum of their weights) and added to the loss of the objective, so that all sums are divided once. A
    balance loss is a product of two means. So for several micro-batches, the result is the mean of their balance
    losses, weighted by targets, and not the balance loss of one large batch. Loads are counts, so loads and biases are
    the same as for one large batch.
    """

    def __init__(self, network: nn.Module, ranks: Ranks) -> None:
        self.routers = [module for module in network.modules() if isinstance(module, Router)]
        self.ranks = ranks
        self.begin()

    def begin(self) -> None:
        """Reset the loads and losses of the previous step."""
        self.loads: Tensor | None = None  # of the experts of all routers, in one row
        self.loss: Tensor | None = None  # times divisor

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Let the routers record in the block, which contains one forward pass and no backward pass."""
        for router in self.routers:
            router.records = True
        try:
            yield
        finally:
            for router in self.routers:
                router.records, router.load, router.auxiliary_loss = False, None, None

    def added_to(self, sums: LossSums, divisor: float) -> LossSums:
        """Return `sums` plus the auxiliary losses of the forward pass; add the loads of the forward pass to `loads`.

        `divisor` is the divisor of the forward pass; 0 = its number of targets. The load of a router that did not run
        is 0.
        """
        losses = [router.auxiliary_loss for router in self.routers if router.auxiliary_loss is not None]
        if any(router.load is not None for router in self.routers):
            self.loads = added_to(self.loads, torch.cat([_load(router) for router in self.routers]))
        if losses:
            loss = (divisor or sums.n_targets) * torch.stack(losses).sum()
            self.loss = added_to(self.loss, loss.detach())
            sums = replace(sums, total=sums.total + loss)
        return sums

    def figures(self, divisor: float) -> dict[str, Tensor]:
        """Add up the loads of all processes, and return the numbers of the step for the log, as scalars."""
        figures: dict[str, Tensor] = {}
        if self.loss is not None:
            figures["auxiliary_loss"] = self.ranks.total(self.loss) / (divisor or 1)
        if self.loads is not None:
            self.loads = self.ranks.total(self.loads)
            shares = torch.cat([load / load.sum().clamp(min=1) for load in self._by_router(self.loads)])
            figures |= {"fullest_expert": shares.max(), "dead_experts": (self.loads == 0).sum()}
        return figures

    def move_biases(self, factor: Tensor | float = 1.0) -> None:
        """Move the biases of the routers after a step; `factor` is 0 if the step changed no weights."""
        if self.loads is not None:
            for router, load in zip(self.routers, self._by_router(self.loads), strict=True):
                router.move_bias(load, factor)

    def _by_router(self, loads: Tensor) -> tuple[Tensor, ...]:
        return loads.split([router.n_experts for router in self.routers])


def _load(router: Router) -> Tensor:
    if router.load is None:
        return torch.zeros(router.n_experts, device=router.proj.weight.device)
    return router.load
