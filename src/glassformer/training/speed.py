"""Numbers of the log for each device: tokens per second, the fraction of the peak rate, and the peak memory."""

from collections.abc import Mapping

import torch

from glassformer.config.run import GroupPolicyConfig, Run
from glassformer.config.train import TrainConfig
from glassformer.cost.hardware import GPUS
from glassformer.cost.plan import step_flops
from glassformer.tasks.preparation import micro_batch
from glassformer.tasks.registry import unknown_loss
from glassformer.training.host import Host


class Speed:
    """The speed of a run on each of its devices."""

    def __init__(self, host: Host, seconds_at_peak: float | None = None) -> None:
        """`seconds_at_peak` is the least time of a step (`seconds_at_peak`), if it is known."""
        self.device, self.n_devices, self.seconds_at_peak = host.device, host.ranks.n, seconds_at_peak

    def values(self, logged: Mapping[str, float]) -> dict[str, float]:
        """Return the numbers that are known, from `tokens_per_s` and `step_ms` of a training line."""
        found: dict[str, float] = {}
        if self.n_devices > 1:
            found["tokens_per_s_per_device"] = logged["tokens_per_s"] / self.n_devices
        if self.seconds_at_peak is not None and logged["step_ms"]:
            found["mfu"] = 1000 * self.seconds_at_peak / logged["step_ms"]
        if self.device.type == "cuda":
            found["peak_memory_bytes"] = torch.cuda.max_memory_allocated(self.device)
        return found


def seconds_at_peak(run: Run, host: Host) -> float | None:
    """Return the time of a step if all devices computed its FLOPs at their peak rate.

    None if the FLOPs are not known (rows of several lengths, frozen weights, a teacher, sampling, a loss of another
    package) or the rate is not (`peak_flops`). A second forward pass of recomputed blocks is not counted.
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
