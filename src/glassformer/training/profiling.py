"""`trace.json`: every operation of some training steps, by `torch.profiler`."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from glassformer.common.errors import Log
from glassformer.config.train import UNPROFILED

NAME = "trace.json"


@contextmanager
def profiling(n_steps: int, folder: Path, device: torch.device, log: Log) -> Iterator[Callable[[], None]]:
    """Yield the function to call after each step; write the trace of `n_steps` steps of this process into the folder.

    The first `UNPROFILED` steps are not in the trace. A run that ends earlier writes the steps up to its end. If it has
    no step after the first ones, `log` receives a note.
    """
    if not n_steps:
        yield lambda: None
        return

    is_written = False

    def write(profiler: profile) -> None:
        nonlocal is_written
        if profiler.step_num <= UNPROFILED:
            return
        is_written = True
        profiler.export_chrome_trace(str(folder / NAME))
        log(f"trace of up to {n_steps:,} steps in {folder / NAME}: open it in https://ui.perfetto.dev")

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise two lines for developers are printed
    kinds = [ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(ProfilerActivity.CUDA)
    steps = schedule(wait=UNPROFILED - 1, warmup=1, active=n_steps, repeat=1)
    with profile(activities=kinds, schedule=steps, on_trace_ready=write, record_shapes=True) as profiler:
        yield profiler.step
    if not is_written:
        log(f"no new {NAME}: at most {UNPROFILED} steps were left, and the first {UNPROFILED} are not profiled")
