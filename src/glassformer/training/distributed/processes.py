"""The start and the end of a process group that `torchrun` has started.

A process that ends with a `UserError` writes its message to the store of the process group. The others read it when
their exchange with that process fails. One process cannot repeat a step while the others wait for its gradients, so the
error ends the run.
"""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from glassformer.common.errors import UserError, first_line
from glassformer.config.train import ParallelConfig, TrainConfig
from glassformer.training.distributed.environment import is_several
from glassformer.training.distributed.process_group import Replicated, Sharded
from glassformer.training.distributed.ranks import Ranks

_FAILURE = "glassformer/failure"
"""Key in the store of the processes for the sentence of a process that failed."""


def own_device(device: torch.device) -> torch.device:
    """Return the device of this process: its own GPU if `torchrun` started several processes."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", local_rank) if device.type == "cuda" and is_several() else device


@contextmanager
def processes(config: ParallelConfig, train: TrainConfig, device: torch.device) -> Iterator[Ranks]:
    """Yield the process group for the block; raise `UserError` if another process fails, is lost or hangs.

    The sentence of a process that fails is left in the store of the processes, for the others.
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
        kind = Replicated if config.strategy == "ddp" else Sharded
        yield kind(config, device)
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
    """Return the number and the sentence of a process that failed; None if no process failed, or the store is lost."""
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
