"""Data of any kind as the loop draws it, by the number of a batch. Only the user's loss reads what is in a batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from glassformer.config.train import TrainConfig
from glassformer.data.batching import EpochOrder
from glassformer.errors import UserError
from glassformer.seeds import Stream, seed_of

Collate = Callable[[list[Any]], Any]


def source_of(data: Any, config: TrainConfig, collate: Collate, name: str) -> Any:
    """`Examples` or `Batches`; `UserError` where `data`, which the message calls `name`, is neither."""
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, IterableDataset):
        if not len(data):
            raise UserError(f"{name} has no examples")
        return Examples(data, config, collate)
    if not isinstance(data, Iterable):
        raise UserError(f"{name} must be a Dataset, a sequence of examples or an iterable of batches, not {data!r:.80}")
    if name == "valid" and iter(data) is data:
        raise UserError("valid is an iterator, which can be read once: give a list, a Dataset or a DataLoader")
    return Batches(data, config)


class Examples:
    """Batches of a sequence of examples, from shuffled epochs."""

    def __init__(self, data: Any, config: TrainConfig, collate: Collate) -> None:
        self.data, self.collate, self.seed, self.n_rows = data, collate, config.seed, config.batch_size
        self.order = EpochOrder(len(data), config.batch_size, config.seed)

    def batch(self, step: int) -> Any:
        torch.manual_seed(seed_of(self.seed, Stream.COLLATE, step))
        return self.collate([self.data[i] for i in self.order.batch(step)])

    def each(self) -> Iterator[Any]:
        """All examples in order, once."""
        for first in range(0, len(self.data), self.n_rows):
            yield self.collate([self.data[i] for i in range(first, min(first + self.n_rows, len(self.data)))])


class Batches:
    """Ready batches in their order; a step that is not the next one is reached from the beginning."""

    def __init__(self, data: Iterable[Any], config: TrainConfig) -> None:
        self.data, self.seed = data, config.seed
        self.n_taken = 0
        self.batches: Iterator[Any] = iter(())

    def batch(self, step: int) -> Any:
        if step < self.n_taken:
            if iter(self.data) is self.data:
                raise UserError("data is an iterator and cannot go back to a checkpoint: give a list or a DataLoader")
            self.n_taken, self.batches = 0, iter(())
        value: Any = None
        while self.n_taken <= step:
            torch.manual_seed(seed_of(self.seed, Stream.COLLATE, self.n_taken))
            value = self._next()
            self.n_taken += 1
        return value

    def each(self) -> Iterator[Any]:
        """All batches in order, once."""
        return iter(self.data)

    def _next(self) -> Any:
        for batches in (self.batches, self.data):
            self.batches = iter(batches)
            for value in self.batches:
                return value
        raise UserError(f"data has ended after {self.n_taken:,} batches, and cannot be begun again: give more of them")


class AnyBatch:
    """A batch whose content only the loss reads."""

    n_targets = 0  # the loss counts them

    def __init__(self, value: Any) -> None:
        self.value = value

    def to(self, device: torch.device) -> "AnyBatch":
        return AnyBatch(_moved(self.value, device))

    def with_masks(self) -> "AnyBatch":
        return self

    def tensors(self) -> dict[str, Tensor]:
        return dict(_named(self.value, "batch"))


def _moved(value: Any, device: torch.device) -> Any:
    if hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _moved(item, device) for name, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_moved(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _named(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping | tuple | list):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _named(item, f"{name}.{key}")
