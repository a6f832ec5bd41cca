"""Operations on the processes of a run; `Ranks` implements them for a single process.

The micro-batches of a step are distributed over the processes. After every stage, all processes learn whether all have
succeeded (`raise_together`).
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from torch import Tensor, nn

from glassformer.config.train import TrainConfig
from glassformer.evaluation.loss import Division

T = TypeVar("T")


class Ranks(Division):
    """The only process of a run, or (as `ProcessGroup`) one of several.

    Each process takes its share of the micro-batches of a step and of the batches of an evaluation. Only rank 0 learns
    the tokenizer, hashes the data, logs, reports and commits checkpoints. Decisions that change a run (whether to stop,
    which step is the best) are made by rank 0, or by all processes together.
    """

    n_shards = 1
    """Number of processes that divide the weights among them."""
    repeats_steps = True
    """True if a process can compute its gradients again, because no other process waits for it in the meantime."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, n: int) -> range:
        """Return the indices, out of n micro-batches, that this process takes.

        >>> list(Ranks().share(3))
        [0, 1, 2]
        """
        return range(self.rank, n, self.n)

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes, without waiting for the device."""
        return x

    def of_first(self, *numbers: float) -> list[float]:
        """Return the numbers of rank 0."""
        return list(numbers)

    def largest(self, *numbers: int) -> list[int]:
        """Return the maximum of each number over all processes."""
        return list(numbers)

    def any(self, flag: bool) -> bool:
        """Return True if the flag is True in any process."""
        return bool(self.largest(flag)[0])

    def raise_together(self, work: Callable[[], T]) -> T:
        """Return the result of `work`; if it raises `UserError` in one process, raise `UserError` in all."""
        return work()

    def first_alone(self) -> AbstractContextManager[None]:
        """Run the block on rank 0 before the other ranks, which then find the files of rank 0 on the disk.

        The other ranks raise `UserError` if the block fails on rank 0, or takes longer than `process_group.PREPARE_S`.
        """
        return nullcontext()

    def text_of_first(self, work: Callable[[], str]) -> str:
        """Return the text that `work` gives on rank 0; the other ranks wait for it, as in `first_alone`."""
        return work()

    def distribute(self, network: nn.Module, config: TrainConfig) -> None:
        """Keep only this process's part of the weights if the weights are sharded."""

    def send_weights(self, weights: Mapping[str, Tensor], network: nn.Module) -> None:
        """Fill the parts of the network on all processes with the full `weights` of rank 0, if they are sharded."""

    def evaluating(self, network: nn.Module) -> AbstractContextManager[None]:
        """Free the weights that were gathered in the block, because later steps change them."""
        return nullcontext()

    def gathered(self, network: nn.Module) -> AbstractContextManager[None]:
        """Gather all the weights on each process in the block, so that any method of the network can be called."""
        return nullcontext()

    def wrapped(self, network: nn.Module) -> nn.Module:
        """Return the module that a training step calls."""
        return network

    def synchronised(self, network: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        """Exchange gradients only in the backward pass of the last micro-batch.

        A wrapper decides this in the forward pass and acts in the backward pass, so the block must cover both.
        """
        if hasattr(network, "set_requires_gradient_sync"):
            network.set_requires_gradient_sync(is_last)  # type: ignore[operator]
        no_sync: Callable[[], AbstractContextManager[None]] | None = getattr(network, "no_sync", None)
        return nullcontext() if is_last or no_sync is None else no_sync()
