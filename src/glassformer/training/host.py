"""Where a run runs: its device, its processes, who is told of it, when it began; the machine and its memory."""

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassformer import __version__
from glassformer.config.run import Run
from glassformer.config.transformer import TransformerConfig
from glassformer.cost.room import Room, room_of_machine
from glassformer.devices import choose_device
from glassformer.distributed.processes import own_device, processes
from glassformer.distributed.ranks import Ranks
from glassformer.errors import enough_memory
from glassformer.reporting import LaunchReporter, Silent
from glassformer.tasks.preparation import micro_batch


@dataclass(frozen=True)
class Host:
    """What a trainer needs beside what it trains."""

    device: torch.device
    ranks: Ranks = field(default_factory=Ranks)
    reporter: LaunchReporter = field(default_factory=Silent)
    """Of the first process; the others say nothing."""
    began: float = field(default_factory=time.monotonic)
    """The clock's time (`time.monotonic`) from which `train.max_time` counts."""

    def __str__(self) -> str:
        """The device, or how many processes there are of which kind of device."""
        return str(self.device) if self.ranks.n == 1 else f"{self.ranks.n} processes of {self.device.type}"


@contextmanager
def host_of(run: Run, folder: Path, reporter: LaunchReporter, began: float) -> Iterator[Host]:
    """This process on its device, as one of those that `torchrun` started, until the end of the block.

    Memory that runs out, and a process that is lost, become a `UserError` that says how to go on.
    """
    device = own_device(choose_device(run.train.device))
    with enough_memory(_advice(run, folder)), processes(run.parallel, run.train, device) as ranks:
        yield Host(device, ranks, reporter if ranks.is_first else Silent(), began)


def _advice(run: Run, folder: Path) -> str:
    """What to lower when a run does not fit, and what is left of it."""
    batch = f"train.batch_size (now {run.train.batch_size:,}), model.max_len (now {run.model.max_len:,})"
    if budget := micro_batch(run).budget:
        batch = f"data.batch_tokens (now {budget:,})"
    width = f"model.d_model (now {run.model.d_model:,})" if isinstance(run.model, TransformerConfig) else "the widths"
    return (
        f"lower {batch}, {width} or the number of layers, or set train.activation_checkpointing; "
        f"what was saved before stays in {folder}"
    )


def room_of(device: torch.device) -> Room | None:
    """The memory of a device; of MPS the machine's, which it shares."""
    if device.type != "cuda":
        return room_of_machine()
    free, total = torch.cuda.mem_get_info(device)
    return Room(f"the GPU {torch.cuda.get_device_name(device)}", total, free, is_cpu=False)


def made_with(device: torch.device, n_processes: int) -> dict[str, Any]:
    """What the bits of a run depend on, beside its configuration and data: versions and hardware, in words."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "glassformer": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{device.type}: {name}",
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "processes": n_processes,
    }


def _cpu() -> str:
    """Architecture, model where the system tells it, and what PyTorch uses of it: `x86_64 AMD EPYC AVX512 avx512_bf16`.

    bfloat16 is told apart because Muon uses it where the CPU has it, and a model's name alone does not say.
    """
    model = ""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        model = next((line.partition(":")[2] for line in file if line.startswith("model name")), "")
    can: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older releases of torch cannot be asked
    bf16 = [name for name in ("avx512_bf16", "amx_bf16") if can.get(name)]
    return " ".join([platform.machine(), *model.split(), torch.backends.cpu.get_cpu_capability(), *bf16])
