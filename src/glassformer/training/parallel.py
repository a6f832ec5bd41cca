"""The processes of a run, as `torchrun` starts them: PyTorch's own engine, applied from outside of the model.

Every process deals with its share of the micro-batches of a step and of the batches of an evaluation. The first one
alone learns the tokenizer, hashes the data, logs, reports and commits checkpoints. What decides the course of a run
(does it stop, is it the best) is decided by the first process, or by all together.
"""

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from glassformer.config.train import MuonConfig, ParallelConfig, TrainConfig
from glassformer.devices import autocast_dtype
from glassformer.errors import UserError
from glassformer.evaluation.division import Division

T = TypeVar("T")
_BACKENDS = {"cuda": "cpu:gloo,cuda:nccl"}
_FAILED = -1
"""Sent in place of the length of a text by a process that has none to send."""


class Ranks(Division):
    """The one process of a run, or, as `ProcessGroup`, one of several."""

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


class ProcessGroup(Ranks):
    """One process of several."""

    def __init__(self, config: ParallelConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.holds_parts = config.strategy != "ddp"

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

    def distribute(self, network: nn.Module, config: TrainConfig) -> None:
        if not self.holds_parts:
            return
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
        for part in self._parts(network):
            part.reshard()

    @contextmanager
    def gathered(self, network: nn.Module) -> Iterator[None]:
        for part in self._parts(network):
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        yield
        for part in self._parts(network):
            part.reshard()
            part.set_reshard_after_forward(id(part) != id(network), recurse=False)

    def _parts(self, network: nn.Module) -> list[FSDPModule]:
        return [module for module in network.modules() if isinstance(module, FSDPModule)] if self.holds_parts else []

    def _mesh(self) -> Any:
        if self.config.strategy == "fsdp":
            return init_device_mesh(self.device.type, (self.n,))
        mesh = self._mesh_of_groups()
        for group in mesh.get_all_groups():  # which torch makes with a timeout of its own, 30 minutes
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self.config.timeout), group)
        return mesh

    def _mesh_of_groups(self) -> Any:
        size = self.config.shard_size or int(os.environ["LOCAL_WORLD_SIZE"])
        if self.n % size:
            raise UserError(
                f"parallel.shard_size is {size} and there are {self.n} processes: they make no whole groups"
            )
        return init_device_mesh(self.device.type, (self.n // size, size), mesh_dim_names=("replicas", "parts"))

    def wrapped(self, network: nn.Module) -> nn.Module:
        return network if self.holds_parts else DistributedDataParallel(network, gradient_as_bucket_view=True)


def is_several() -> bool:
    """Whether `torchrun` has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Whether this is the process that speaks, before there is a group."""
    return os.environ.get("RANK", "0") == "0"


def was_restarted() -> bool:
    """Whether `torchrun` has started this process anew because one of the run had ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def own_device(device: torch.device) -> torch.device:
    """Of the accelerators of a machine, the one of this process."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", local_rank) if device.type == "cuda" and is_several() else device


@contextmanager
def processes(config: ParallelConfig, train: TrainConfig, device: torch.device) -> Iterator[Ranks]:
    """The group of this process inside the block. A process that is lost or hangs ends it with a `UserError`."""
    if not is_several():
        yield Ranks()
        return
    n = int(os.environ["WORLD_SIZE"])
    if train.grad_accumulation % n:
        raise UserError(
            f"train.grad_accumulation is {train.grad_accumulation} and there are {n} processes, which share the "
            f"micro-batches of a step: give a multiple of {n}, such as --train.grad-accumulation "
            f"{n * -(-train.grad_accumulation // n)}, and "
            "smaller micro-batches if the step is to stay the same"
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _join(config, device)
    try:
        yield ProcessGroup(config, device)
    except RuntimeError as error:
        lost = _lost(error)
        if lost is None:
            raise
        raise UserError(
            f"process {os.environ['RANK']} of {n} lost another one, which ended or did not answer within "
            f"{config.timeout:g} s (parallel.timeout): {lost}; go on with glassformer resume"
        ) from error
    dist.destroy_process_group()


def watchdog_note(config: ParallelConfig, device: torch.device, folder: Path) -> str | None:
    """What to know before training with NCCL: its watchdog ends the processes without a sentence of ours.

    NCCL works beside Python: when a collective hangs, a thread of torch aborts the process, and Python code cannot
    catch that. None where errors are raised in Python, with gloo, and for a single process.
    """
    if device.type != "cuda" or not is_several():
        return None
    return (
        f"if a process is lost or hangs, PyTorch aborts the others after {config.timeout:g} s (parallel.timeout) with "
        f"a message of NCCL: go on with glassformer resume {shlex.quote(str(folder))}"
    )


def _join(config: ParallelConfig, device: torch.device) -> None:
    backend = _BACKENDS.get(device.type, "gloo")
    timeout = timedelta(seconds=config.timeout)
    one_machine = os.environ.get("GROUP_WORLD_SIZE") == "1"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and one_machine:
        # The agent's store outlives an attempt, and the addresses in it do not: each attempt gets names of its own.
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(*place, is_master=False, timeout=timeout)
        attempt = PrefixStore(f"attempt{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
        rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(backend, store=attempt, rank=rank, world_size=n, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout)


def _lost(error: RuntimeError) -> str | None:
    """What a collective says of a process that is gone; None when the error is another."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    signs = (
        *("timed out", "timeout", "timing out", "connection closed", "connection reset", "connection refused"),
        *("broken pipe", "communicator was aborted", "remote process exited", "ncclremoteerror"),
    )
    of_group = isinstance(error, dist.DistError) or "gloo" in str(error).lower() or "nccl" in str(error).lower()
    return first[:200] if of_group and any(sign in str(error).lower() for sign in signs) else None
