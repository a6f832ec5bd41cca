"""One process of several, as `torchrun` starts them: what all of them share, and who holds the weights."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from glassformer.config.train import MuonConfig, ParallelConfig, TrainConfig
from glassformer.devices import autocast_dtype
from glassformer.distributed.ranks import Ranks, T
from glassformer.errors import UserError

_FAILED = -1
"""Sent in place of the length of a text by a process that has none to send."""


class ProcessGroup(Ranks):
    """One process of several: what they tell each other."""

    def __init__(self, config: ParallelConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.rank, self.n = dist.get_rank(), dist.get_world_size()

    def sum(self, *numbers: float) -> list[float]:
        values = torch.tensor(numbers, dtype=torch.float64)  # few and small: through the CPU, everywhere
        dist.all_reduce(values)
        return [float(value) for value in values]

    def largest(self, *numbers: int) -> list[int]:
        values = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return [int(value) for value in values]

    def of_first(self, *numbers: float) -> list[float]:
        values = torch.tensor(numbers, dtype=torch.float64)
        dist.broadcast(values, src=0)
        return [float(value) for value in values]

    def raise_together(self, work: Callable[[], T]) -> T:
        error: UserError | None = None
        try:
            result = work()
        except UserError as caught:
            error = caught
        n_failed = int(self.sum(float(error is not None))[0])
        if error is not None:
            raise error
        if n_failed:
            raise UserError(f"{n_failed} of the {self.n} processes failed, as they say themselves")
        return result

    def texts(self, text: str) -> list[str]:
        return [self._text_from(rank, text) for rank in range(self.n)]

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        if not self.is_first:
            self._await_first()
            yield
            return
        with self._telling_failure():
            yield
        self._text_from(0, "", self._patient)

    def text_of_first(self, work: Callable[[], str]) -> str:
        if not self.is_first:
            return self._await_first()
        with self._telling_failure():
            text = work()
        return self._text_from(0, text, self._patient)

    @cached_property
    def _patient(self) -> Any:
        """A group whose waits have no part in `parallel.timeout`: preparing a large text takes its time."""
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=self.config.prepare_timeout))

    @contextmanager
    def _telling_failure(self) -> Iterator[None]:
        """The others are told of an exception of the first process, and wait no longer."""
        _ = self._patient  # made by all at the same time
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # where another one is gone too, the first error is raised
                self._text_from(0, None, self._patient)
            raise

    def _await_first(self) -> str:
        try:
            return self._text_from(0, "", self._patient)
        except RuntimeError as error:
            if "timed out" not in str(error).lower() and "timeout" not in str(error).lower():
                raise
            raise UserError(
                f"process {self.rank} of {self.n} waited {self.config.prepare_timeout:g} s for the first one to read "
                "the data and learn the tokenizer: raise parallel.prepare_timeout, or look at what it does"
            ) from error

    def _text_from(self, source: int, text: str | None, group: Any = None) -> str:
        """The text of one process, in all of them; where it is None, `UserError` in the others."""
        data = b"" if text is None or self.rank != source else text.encode()
        size = torch.tensor([_FAILED if text is None else len(data)])
        dist.broadcast(size, source, group)
        if self.rank == source and text is None:
            return ""
        if int(size) == _FAILED:
            raise UserError(f"process {self.rank} of {self.n} stops: the first one failed, see its own message")
        buffer = torch.zeros(int(size), dtype=torch.uint8)
        if self.rank == source:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else buffer
        if len(buffer):
            dist.broadcast(buffer, source, group)
        return buffer.numpy().tobytes().decode()


class Replicated(ProcessGroup):
    """Every process holds all the weights (DDP)."""

    def wrapped(self, network: nn.Module) -> nn.Module:
        return DistributedDataParallel(network, gradient_as_bucket_view=True)


class Sharded(ProcessGroup):
    """Every process holds a part of the weights (FSDP2), or of its group's copy of them."""

    holds_parts = True

    def distribute(self, network: nn.Module, config: TrainConfig) -> None:
        if isinstance(config.optimizer, MuonConfig):
            raise UserError(
                f"muon steps whole matrices, and with parallel.strategy {self.config.strategy} a process holds parts "
                "of them: give --parallel.strategy ddp, or --train.optimizer.kind adamw"
            )
        if self.config.cpu_offload and self.device.type == "cpu":
            raise UserError("parallel.cpu_offload is for accelerators, and this run is on the CPU: leave it out")
        policy: dict[str, Any] = {
            "mesh": self._mesh(),
            "mp_policy": MixedPrecisionPolicy(autocast_dtype(config.precision), reduce_dtype=torch.float32),
            "offload_policy": CPUOffloadPolicy() if self.config.cpu_offload else OffloadPolicy(),
        }
        for module in network.modules():
            if isinstance(module, nn.ModuleList):
                for block in module:
                    fully_shard(block, **policy)
        fully_shard(network, **policy)

    @contextmanager
    def evaluating(self, network: nn.Module) -> Iterator[None]:
        yield
        for part in _parts(network):
            part.reshard()

    @contextmanager
    def gathered(self, network: nn.Module) -> Iterator[None]:
        for part in _parts(network):
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        yield
        for part in _parts(network):
            part.reshard()
            part.set_reshard_after_forward(id(part) != id(network), recurse=False)

    def _mesh(self) -> Any:
        if self.config.strategy == "fsdp":
            return init_device_mesh(self.device.type, (self.n,))
        size = self.config.shard_size or int(os.environ["LOCAL_WORLD_SIZE"])
        if self.n % size:
            raise UserError(
                f"parallel.shard_size is {size} and there are {self.n} processes: they make no whole groups"
            )
        mesh = init_device_mesh(self.device.type, (self.n // size, size), mesh_dim_names=("replicas", "parts"))
        for group in mesh.get_all_groups():  # which torch makes with a timeout of its own, 30 minutes
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self.config.timeout), group)
        return mesh


def _parts(network: nn.Module) -> list[FSDPModule]:
    return [module for module in network.modules() if isinstance(module, FSDPModule)]
