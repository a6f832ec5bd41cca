"""Time measurements in a run: the clock of its steps, the speed per device, and a profile (`trace.json`)."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from glassformer.common.errors import Log
from glassformer.config.run import GroupPolicyConfig, Run
from glassformer.config.train import UNPROFILED, TrainConfig
from glassformer.cost.hardware import GPUS
from glassformer.cost.plan import step_flops
from glassformer.tasks.preparation import micro_batch
from glassformer.tasks.task import unknown_loss
from glassformer.training.host import Host
from glassformer.training.step import StepResult
from glassformer.training.trainer_state import TrainerState

TRACE = "trace.json"
"""Name of the file that `profiling` writes."""


class Clock:
    """Time spent on steps, and sums since the last line of the log."""

    def __init__(self, progress: TrainerState) -> None:
        self.progress = progress
        self.n_untimed = len(progress.unlogged)  # steps of an earlier process
        self.gradient_norm = 0.0
        self.figures: dict[str, float] = {}
        self.seconds = 0.0
        self.saving_seconds = 0.0
        self.since = time.perf_counter()

    def count(self, result: StepResult) -> None:
        self.progress.unlogged.append((result.nats, result.n_targets))
        self.gradient_norm, self.figures = result.gradient_norm, result.figures

    def read(self) -> dict[str, float]:
        """Return the values for a log line: averages and speed since the last line, and the last gradient norm."""
        self._tick()
        nats = sum(nats for nats, _ in self.progress.unlogged)
        n_targets = [n_targets for _, n_targets in self.progress.unlogged]
        timed = n_targets[self.n_untimed :]
        values = {
            "train/loss": nats / max(1, sum(n_targets)),
            "gradient_norm": self.gradient_norm,
            "tokens_per_s": sum(timed) / self.seconds,
            "step_ms": 1000 * self.seconds / max(1, len(timed)),
        } | self.figures
        if self.saving_seconds:
            values["save_ms"] = 1000 * self.saving_seconds
        self.progress.unlogged, self.n_untimed = [], 0
        self.seconds = self.saving_seconds = 0.0
        return values

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the block from the time of steps."""
        self._tick()
        try:
            yield
        finally:
            self.since = time.perf_counter()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Exclude the block from the time of steps; the next log line reports the time of the block."""
        began = time.perf_counter()
        with self.paused():
            yield
        self.saving_seconds += self.since - began

    def _tick(self) -> None:
        now = time.perf_counter()
        self.seconds += now - self.since
        self.progress.seconds += now - self.since
        self.since = now


def of_devices(logged: Mapping[str, float], host: Host, seconds_at_peak: float | None) -> dict[str, float]:
    """Return what is known per device: tokens per second and MFU, from the `logged` values, and peak memory."""
    found: dict[str, float] = {}
    if host.ranks.n > 1:
        found["tokens_per_s_per_device"] = logged["tokens_per_s"] / host.ranks.n
    if seconds_at_peak is not None and logged["step_ms"]:
        found["mfu"] = 1000 * seconds_at_peak / logged["step_ms"]
    if host.device.type == "cuda":
        found["peak_memory_bytes"] = torch.cuda.max_memory_allocated(host.device)
    return found


def seconds_at_peak(run: Run, host: Host) -> float | None:
    """Return the time of a step if all devices computed its FLOPs at their peak rate.

    None if the FLOPs are unknown (rows of several lengths, frozen weights, a teacher, sampling, a loss of another
    package), or if the peak rate is unknown (`peak_flops`). A second forward pass of recomputed blocks is not counted.
    """
    trains_all = run.lora is None and not run.init.freeze
    is_plain = run.teacher is None and not isinstance(run.objective, GroupPolicyConfig) and unknown_loss(run) is None
    rate = peak_flops(run.train, host.device)
    if rate is None or not (trains_all and is_plain and micro_batch(run).is_full):
        return None
    return step_flops(run) / (host.ranks.n * rate)


def peak_flops(train: TrainConfig, device: torch.device) -> float | None:
    """Return the peak FLOP/s of a GPU that `plan` knows; None for other devices."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    for gpu in GPUS.values():
        if name in gpu.devices and (gpu.has_bf16 or train.precision != "bf16"):
            return gpu.flops(train.precision)
    return None


@contextmanager
def profiling(n_steps: int, folder: Path, device: torch.device, log: Log) -> Iterator[Callable[[], None]]:
    """Yield the function to call after each step; write the trace of `n_steps` steps of this process into the folder.

    The first `UNPROFILED` steps are not in the trace. A run that ends earlier writes the steps up to its end. If the
    run has no step after those, `log` receives a note.
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
        profiler.export_chrome_trace(str(folder / TRACE))
        log(f"trace of up to {n_steps:,} steps in {folder / TRACE}: open it in https://ui.perfetto.dev")

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise two lines for developers are printed
    kinds = [ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(ProfilerActivity.CUDA)
    steps = schedule(wait=UNPROFILED - 1, warmup=1, active=n_steps, repeat=1)
    with profile(activities=kinds, schedule=steps, on_trace_ready=write, record_shapes=True) as profiler:
        yield profiler.step
    if not is_written:
        log(f"no new {TRACE}: at most {UNPROFILED} steps were left, and the first {UNPROFILED} are not profiled")
