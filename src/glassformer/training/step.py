"""One optimizer step: what gets compiled and wrapped, and nothing else."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glassformer.data.batching import Batch
from glassformer.objectives.loss import LossSums
from glassformer.objectives.objective import Objective


@dataclass(frozen=True)
class StepResult:
    """Left on the device: reading them waits for it."""

    nats: Tensor
    """Plain cross-entropy summed over the step's targets."""
    n_targets: int
    gradient_norm: Tensor
    """2-norm over all parameters, before clipping."""


class TrainStep:
    """Forward and backward over the micro-batches, clipping, update.

    The sums of all micro-batches are divided once, by the number of all their targets, so accumulation equals
    one large batch however the targets are spread.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float,
        autocast: torch.dtype | None,
        device: torch.device,
        compiled: bool,
    ) -> None:
        self.network, self.optimizer = network, optimizer
        self.clip_norm, self.autocast, self.device = clip_norm, autocast, device
        self.parameters = [p for p in network.parameters() if p.requires_grad]

        def loss(batch: Batch) -> LossSums:
            return objective.loss(network, batch)

        self.loss: Callable[[Batch], LossSums] = torch.compile(loss) if compiled else loss

    def __call__(self, micro_batches: Sequence[Batch]) -> StepResult:
        n_targets = sum(batch.n_targets for batch in micro_batches)
        nats = torch.zeros((), device=self.device)
        self.network.train()
        for number, batch in enumerate(micro_batches, 1):
            with self._synchronised(number == len(micro_batches)):
                with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
                    sums = self.loss(batch.to(self.device))
                (sums.total / n_targets).backward()
            nats = nats + sums.nats
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip_norm or float("inf"))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepResult(nats, n_targets, norm)

    def _synchronised(self, is_last: bool) -> AbstractContextManager[None]:
        """A wrapper for data parallelism exchanges gradients on the last micro-batch alone.

        It decides so in the forward, and acts in the backward: its `no_sync` must cover both.
        """
        no_sync: Callable[[], AbstractContextManager[None]] | None = getattr(self.network, "no_sync", None)
        return nullcontext() if is_last or no_sync is None else no_sync()
