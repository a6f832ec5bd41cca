"""A process joins the others that `torchrun` has started, and leaves them."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from glassformer.config.train import ParallelConfig, TrainConfig
from glassformer.distributed.environment import is_several
from glassformer.distributed.process_group import Replicated, Sharded
from glassformer.distributed.ranks import Ranks
from glassformer.errors import UserError, first_line


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
        yield Replicated(config, device) if config.strategy == "ddp" else Sharded(config, device)
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
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
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
    signs = (
        *("timed out", "timeout", "timing out", "connection closed", "connection reset", "connection refused"),
        *("broken pipe", "communicator was aborted", "remote process exited", "ncclremoteerror"),
    )
    of_group = isinstance(error, dist.DistError) or "gloo" in str(error).lower() or "nccl" in str(error).lower()
    return first_line(error)[:200] if of_group and any(sign in str(error).lower() for sign in signs) else None
