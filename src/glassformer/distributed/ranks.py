"""What a run asks of its processes: `Ranks` answers as the only one."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from torch import nn

from glassformer.config.train import TrainConfig
from glassformer.evaluation.division import Division

T = TypeVar("T")


class Ranks(Division):
    """The one process of a run, or, as `ProcessGroup`, one of several.

    Every process deals with its share of the micro-batches of a step and of the batches of an evaluation. The first
    one alone learns the tokenizer, hashes the data, logs, reports and commits checkpoints. What decides the course of
    a run (does it stop, is it the best) is decided by the first process, or by all together.
    """

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, n: int) -> range:
        """Those of n micro-batches that this process takes.

        >>> list(Ranks().share(3))
        [0, 1, 2]
        """
        return range(self.rank, n, self.n)

    def of_first(self, *numbers: float) -> list[float]:
        """The first process's numbers."""
        return list(numbers)

    def largest(self, *numbers: int) -> list[int]:
        """Each number, the largest of all processes."""
        return list(numbers)

    def any(self, flag: bool) -> bool:
        """Whether it holds in one of the processes."""
        return bool(self.largest(flag)[0])

    def raise_together(self, work: Callable[[], T]) -> T:
        """The result of some work that may be a `UserError` in one process, which then is one in all."""
        return work()

    def first_alone(self) -> AbstractContextManager[None]:
        """The first process goes through the block before the others do, who find what it has left on the disk.

        They raise `UserError` where the block fails in the first process, or takes longer than
        `parallel.prepare_timeout`.
        """
        return nullcontext()

    def text_of_first(self, work: Callable[[], str]) -> str:
        """The text that `work` gives in the first process; the others wait for it, as in `first_alone`."""
        return work()

    def distribute(self, network: nn.Module, config: TrainConfig) -> None:
        """Leaves to this process its part of the weights, where processes hold parts."""

    def evaluating(self, network: nn.Module) -> AbstractContextManager[None]:
        """After the block nothing is left of weights that were gathered in it: they may be others by then."""
        return nullcontext()

    def gathered(self, network: nn.Module) -> AbstractContextManager[None]:
        """Inside the block every process holds all the weights, and any method of the network can be called."""
        return nullcontext()

    def wrapped(self, network: nn.Module) -> nn.Module:
        """What a training step calls."""
        return network

    def synchronised(self, network: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        """Gradients are exchanged in the backward pass of the last micro-batch alone.

        A wrapper decides so in the forward, and acts in the backward: the block must cover both.
        """
        if hasattr(network, "set_requires_gradient_sync"):
            network.set_requires_gradient_sync(is_last)  # type: ignore[operator]
        no_sync: Callable[[], AbstractContextManager[None]] | None = getattr(network, "no_sync", None)
        return nullcontext() if is_last or no_sync is None else no_sync()
