"""The process group of a run under `torchrun`: its start and end, communication, DDP and FSDP2.

A process that ends with a `UserError` writes its message to the store of the process group. The other processes read
the message when their exchange with that process fails. One process cannot repeat a step while the others wait for its
gradients, so the error ends the run.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from glassformer.common.errors import UserError, first_line
from glassformer.config.train import ParallelConfig, TrainConfig
from glassformer.models.devices import autocast_dtype
from glassformer.store.model_directory import weights_of
from glassformer.training.distributed import is_several
from glassformer.training.distributed.parts import local_part, part_of
from glassformer.training.distributed.ranks import Ranks, T

PREPARE_S = 6 * 3600.0
"""Seconds to wait for rank 0 to read the data and learn the tokenizer."""
_FAILED = -1
"""Number that a process sends instead of the length of a text, if it failed to produce the text."""
_FAILURE = "glassformer/failure"
"""Key in the store of the process group for the error message of a failed process."""


class ProcessGroup(Ranks):
    """One of several processes, with the communication between them."""

    repeats_steps = False

    def __init__(self, config: ParallelConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.rank, self.n = dist.get_rank(), dist.get_world_size()

    def sum(self, *numbers: float) -> list[float]:
        values = torch.tensor(numbers, dtype=torch.float64)  # few numbers: always through the CPU
        dist.all_reduce(values)
        return [float(value) for value in values]

    def total(self, x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

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
            raise UserError(f"{n_failed} of {self.n} processes failed; see their errors above")
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
        """A process group with the timeout `PREPARE_S`, because preparing a large text takes long."""
        return dist.new_group(backend="gloo", timeout=timedelta(seconds=PREPARE_S))

    @contextmanager
    def _telling_failure(self) -> Iterator[None]:
        """Notify the other ranks of an exception on rank 0, so that they stop waiting."""
        _ = self._patient  # all ranks create this group at the same time
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # if another process is lost too, raise the first error
                self._text_from(0, None, self._patient)
            raise

    def _await_first(self) -> str:
        try:
            return self._text_from(0, "", self._patient)
        except RuntimeError as error:
            if "timed out" not in str(error).lower() and "timeout" not in str(error).lower():
                raise
            raise UserError(
                f"process {self.rank} of {self.n} waited {PREPARE_S:g} s for process 0 to read "
                "the data and learn the tokenizer: check the log of process 0"
            ) from error

    def _text_from(self, source: int, text: str | None, group: Any = None) -> str:
        """Return the text of one process on all processes; if the text is `None`, raise `UserError` on the others."""
        # The length
        data, n_bytes = b"", _FAILED
        if text is not None and self.rank == source:
            data = text.encode()
            n_bytes = len(data)
        size = torch.tensor([n_bytes])
        dist.broadcast(size, source, group)
        if self.rank == source and text is None:
            return ""
        if int(size) == _FAILED:
            raise UserError(f"process {self.rank} of {self.n} stops because process 0 failed; see its error")
        # The text
        buffer = torch.zeros(int(size), dtype=torch.uint8)
        if data:
            buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if len(buffer):
            dist.broadcast(buffer, source, group)
        return buffer.numpy().tobytes().decode()


class Replicated(ProcessGroup):
    """Data parallelism (DDP): each process has all the weights."""

    def wrapped(self, network: nn.Module) -> nn.Module:
        return DistributedDataParallel(network, gradient_as_bucket_view=True)


class Sharded(ProcessGroup):
    """Sharded data parallelism (FSDP2): each process has a part of the weights."""

    holds_parts = True

    def distribute(self, network: nn.Module, config: TrainConfig) -> None:
        if config.optimizer.traits.needs_whole_matrices:
            raise UserError(
                f"{config.optimizer.kind} needs whole matrices, but parallel.strategy fsdp divides them "
                "among processes: use --parallel.strategy ddp, or --train.optimizer.kind adamw"
            )
        policy: dict[str, Any] = {
            "mesh": init_device_mesh(self.device.type, (self.n,)),
            "mp_policy": MixedPrecisionPolicy(autocast_dtype(config.precision), reduce_dtype=torch.float32),
        }
        for module in network.modules():
            if isinstance(module, nn.ModuleList):
                for block in dict.fromkeys(module):  # a block may be several layers
                    fully_shard(block, **policy)
        fully_shard(network, **policy)
        # Set the order of prefetching in the backward pass: network, last block, …, first block. The default order
        # reverses all forward passes since the last backward pass. After an evaluation that generates outputs, this
        # order differs among processes, so that one process would wait for others to gather a block.
        parts = _parts(network)
        for part, following in zip(parts, parts[-1:] + parts[:-1], strict=True):
            part.set_modules_to_backward_prefetch([following])

    @torch.no_grad()
    def send_weights(self, weights: Mapping[str, Tensor], network: nn.Module) -> None:
        for name, own in weights_of(network).items():
            x = weights[name].contiguous() if self.is_first else torch.empty(own.shape, dtype=own.dtype)
            dist.broadcast(x, src=0)
            local_part(own).copy_(local_part(part_of(x, own)))

    @property
    def n_shards(self) -> int:  # type: ignore[override]
        return self.n

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


def _parts(network: nn.Module) -> list[FSDPModule]:
    return [module for module in network.modules() if isinstance(module, FSDPModule)]


# The start and the end


def own_device(device: torch.device) -> torch.device:
    """Return the device of this process: its own GPU if `torchrun` started several processes."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", local_rank) if device.type == "cuda" and is_several() else device


@contextmanager
def processes(config: ParallelConfig, train: TrainConfig, device: torch.device) -> Iterator[Ranks]:
    """Yield the process group for the block; raise `UserError` if another process fails, is lost or hangs.

    A process that fails leaves its error message in the store of the process group, for the others.
    """
    if not is_several():
        yield Ranks()
        return
    n = int(os.environ["WORLD_SIZE"])
    if train.grad_accumulation % n:
        raise UserError(
            f"train.grad_accumulation: expected a multiple of the number of processes ({n}), got "
            f"{train.grad_accumulation}; use --train.grad-accumulation {n * -(-train.grad_accumulation // n)}, with "
            "smaller micro-batches to keep the size of a step"
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _join(config, device)
    try:
        yield (Replicated if config.strategy == "ddp" else Sharded)(config, device)
    except UserError as error:
        with suppress(RuntimeError, ValueError):  # the store is lost, or the process group was never complete
            _default_store().set(_FAILURE, f"{os.environ['RANK']} failed: {error}")
        raise
    except RuntimeError as error:
        lost = _lost(error)
        if lost is None:
            raise
        if (failure := _failure()) is not None:
            raise UserError(f"process {os.environ['RANK']} of {n} stops because process {failure}") from error
        raise UserError(
            f"process {os.environ['RANK']} of {n} lost another process, which ended or did not answer within "
            f"{config.timeout:g} s (parallel.timeout): {lost}; continue with glassformer resume"
        ) from error
    dist.destroy_process_group()


def watchdog_note(config: ParallelConfig, device: torch.device, folder: Path) -> str | None:
    """Return a warning that NCCL's watchdog aborts the processes without an error message of glassformer.

    If a collective hangs, a thread of torch aborts the process, and Python code cannot catch that. Returns `None` for a
    single process and for gloo, which raises its errors in Python.
    """
    if device.type != "cuda" or not is_several():
        return None
    return (
        f"if a process is lost or hangs, PyTorch aborts the others after {config.timeout:g} s (parallel.timeout) with "
        f"an NCCL message: continue with glassformer resume {shlex.quote(str(folder))}"
    )


def _join(config: ParallelConfig, device: torch.device) -> None:
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=config.timeout)
    one_machine = os.environ.get("GROUP_WORLD_SIZE") == "1"
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and one_machine:
        # The agent's store outlives an attempt, but the addresses in it do not: each attempt has its own key prefix.
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(*address, is_master=False, timeout=timeout)
        attempt = PrefixStore(f"attempt{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
        rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group(backend, store=attempt, rank=rank, world_size=n, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout)


def _failure() -> str | None:
    """Return the rank and the message of a failed process; None if no process failed, or the store is lost."""
    try:
        store = _default_store()
        return store.get(_FAILURE).decode() if store.check([_FAILURE]) else None
    except (RuntimeError, ValueError):  # ValueError: the process group is gone
        return None


def _default_store() -> Store:
    return dist.distributed_c10d._get_default_store()


def _lost(error: RuntimeError) -> str | None:
    """Return the message of a collective operation about a lost process; `None` for any other error."""
    signs = (
        *("timed out", "timeout", "timing out", "connection closed", "connection reset", "connection refused"),
        *("broken pipe", "communicator was aborted", "remote process exited", "ncclremoteerror"),
    )
    of_group = isinstance(error, dist.DistError) or "gloo" in str(error).lower() or "nccl" in str(error).lower()
    return first_line(error)[:200] if of_group and any(sign in str(error).lower() for sign in signs) else None
