"""The machine of a run: its memory, and what the bits of its numbers depend on."""

import platform
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from glassformer import __version__
from glassformer.cost.room import Room, room_of_machine


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


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What is otherwise now, of what is known of before: older checkpoints say less."""
    return [f"{name} {before[name]}, now {now[name]}" for name in now if before.get(name, now[name]) != now[name]]
