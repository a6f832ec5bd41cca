"""The host of a run: device, processes, reporter, memory, recorded versions, and the signals that stop the run."""

import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from glassformer.common.errors import enough_memory
from glassformer.config.run import Run
from glassformer.config.transformer import TransformerConfig
from glassformer.cost.room import Room, require_memory, room_of_machine
from glassformer.models.devices import choose_device, emulation_note, runs_ahead
from glassformer.nn.kernels import processor
from glassformer.tasks.preparation import micro_batch
from glassformer.tasks.reporting import LaunchReporter, Silent
from glassformer.training.distributed import is_several
from glassformer.training.distributed.process_group import own_device, processes, watchdog_note
from glassformer.training.distributed.ranks import Ranks
from glassformer.trial.choice import earned_device


@dataclass(frozen=True)
class Host:
    """The environment of a trainer, besides its network and data."""

    device: torch.device
    ranks: Ranks = field(default_factory=Ranks)
    reporter: LaunchReporter = field(default_factory=Silent)
    """Reporter of rank 0; the reporters of other ranks are silent."""
    began: float = field(default_factory=time.monotonic)
    """Time of the clock (`time.monotonic`) from which `train.max_time` counts."""
    advice: str = "use smaller batches"
    """Settings to change if memory is not sufficient."""

    def __str__(self) -> str:
        """Return the device, or the number of processes and their kind of device."""
        return str(self.device) if self.ranks.n == 1 else f"{self.ranks.n} processes of {self.device.type}"

    @property
    def runs_ahead(self) -> bool:
        """True if the program continues while the device computes."""
        return runs_ahead(self.device)


@contextmanager
def host_of(run: Run, folder: Path, reporter: LaunchReporter, began: float) -> Iterator[Host]:
    """Yield the device and the process group of this process, which `torchrun` may have started, for the block.

    Errors for lack of memory and for a lost process become a `UserError` with the way to continue.
    """
    if is_several():  # a trial in each process would take longer, and might not end alike
        device = own_device(choose_device(run.train.device))
    else:
        require_memory(run.model)
        device = own_device(earned_device(run.train.device, run.model, reporter.log))
    advice = _advice(run, folder)
    with processes(run.parallel, run.train, device) as ranks, enough_memory(advice):
        if not ranks.is_first:
            reporter = Silent()
        if is_several():
            share_gains(ranks)
        notes = watchdog_note(run.parallel, device, folder), emulation_note(run.train.precision, device)
        for note in notes:
            if note is not None:
                reporter.log(note)
        yield Host(device, ranks, reporter, began, advice)


def share_gains(ranks: Ranks) -> None:
    """Let all processes choose their products by the measurement of rank 0: copies of weights must stay equal."""
    gains = processor.Gains(*ranks.of_first(*astuple(processor.this.gains)))
    processor.this = replace(processor.this, known=gains)


def _advice(run: Run, folder: Path) -> str:
    """Return which settings to lower if a run does not fit in memory, and where its checkpoints are."""
    batch = f"train.batch_size (now {run.train.batch_size:,}), model.max_len (now {run.model.max_len:,})"
    if budget := micro_batch(run).budget:
        batch = f"data.batch_tokens (now {budget:,})"
    width = f"model.d_model (now {run.model.d_model:,})" if isinstance(run.model, TransformerConfig) else "the widths"
    setting = run.train.activation_checkpointing
    was_tried = setting is True or (setting == "auto" and not is_several())
    other = ", or set train.activation_checkpointing to true, also with resume" * (not was_tried)
    return f"lower {batch}, {width} or the number of layers{other}; earlier checkpoints stay in {folder}"


def room_of(device: torch.device) -> Room | None:
    """Return the memory of a device; MPS shares the machine's memory."""
    if device.type != "cuda":
        return room_of_machine()
    free, total = torch.cuda.mem_get_info(device)
    return Room(f"the GPU {torch.cuda.get_device_name(device)}", total, free, is_cpu=False)


def made_with(device: torch.device, n_processes: int) -> dict[str, Any]:
    """Return the versions and the hardware that determine the bits of a run, besides configuration and data."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "glassformer": version("glassformer"),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": f"{device.type}: {name}",
        "cpu": str(processor.this),
        "threads": torch.get_num_threads(),
        "processes": n_processes,
    }


# Ctrl-C, SIGTERM or the time limit stop a run after its step; a second signal ends it at once

LATE = 1.25
"""Seconds after a signal until a run that has not stopped yet prints when it will stop."""

_HANDLED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name))
"""Signals that stop a run. SIGBREAK exists on Windows only, where it is the only signal between processes."""


class StopRequest:
    """A request to stop, set by a signal or by the time limit, and read by the loop after each step."""

    def __init__(self, deadline: float = float("inf")) -> None:
        self.signal: signal.Signals | None = None
        self.deadline = deadline

    @property
    def code(self) -> int:
        """0 = continue, 1 = the time limit is reached, else 1 + the signal's number."""
        return int(time.monotonic() >= self.deadline) if self.signal is None else 1 + self.signal


@contextmanager
def stop_on_signals(
    deadline: float = float("inf"), tell_late: Callable[[signal.Signals], None] = lambda which: None
) -> Iterator[StopRequest]:
    """Handle SIGINT, SIGTERM and SIGBREAK inside the block; outside the main thread, change no signal handler.

    The request is also set when the clock (`time.monotonic`) reaches the deadline. `tell_late` is called in another
    thread if the block has not ended `LATE` seconds after a signal.
    """
    request = StopRequest(deadline)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[signal.Signals, Any] = {}
    timers: list[threading.Timer] = []

    def ask(number: int, frame: FrameType | None) -> None:
        request.signal = signal.Signals(number)
        for which, handler in before.items():
            signal.signal(which, handler)
        timers.append(threading.Timer(LATE, tell_late, [request.signal]))
        timers[-1].daemon = True
        timers[-1].start()

    for which in _HANDLED:
        before[which] = signal.signal(which, ask)
    try:
        yield request
    finally:
        for timer in timers:
            timer.cancel()
        for which, handler in before.items():
            signal.signal(which, handler)
