"""Memory that a training step will take, estimated before the run starts, and how its micro-batches are made to fit."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from glassformer.common.errors import UserError
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import GroupPolicyConfig, Run
from glassformer.config.transformer import TransformerConfig
from glassformer.cost.activations import Activations, Kernels, activations_of
from glassformer.cost.flops import Shape
from glassformer.cost.hardware import GIB
from glassformer.cost.memory import HALF, Memory, sharded, training_memory
from glassformer.cost.parameters import parameter_counts, with_least_sizes
from glassformer.cost.plan import full_shape
from glassformer.models.devices import WHOLE, Fit, doubled
from glassformer.tasks.preparation import micro_batch
from glassformer.tasks.task import unknown_loss

MARGIN = 1.5
"""A step is refused if its estimated memory is more than this factor × the total memory. The estimate is at most a
fifth too high."""
MOST_PARTS = 1024
"""Largest number of parts per micro-batch. A step that needs more parts is refused, because its batch size is a
mistake."""
_CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Version 2 and version 1 of Linux's control groups: the folder, the file with the limit, the file with the used bytes,
and an entry of `memory.stat`. The entry counts those used bytes that only cache files; the system can free them."""


@dataclass(frozen=True)
class Room:
    """Memory of a device, in bytes."""

    name: str
    """Name of the device in messages."""
    total: int
    free: int | None
    """Free bytes; None if the system does not report them."""
    is_cpu: bool

    def __str__(self) -> str:
        """Describe the memory for a message."""
        free = "" if self.free is None else f" ({self.free / GIB:,.1f} GiB free)"
        return f"{self.name} has {self.total / GIB:,.1f} GiB{free}"


def room_of_machine() -> Room | None:
    """Return the memory and swap of this machine or of its container; None if it cannot be read."""
    swap, free = 0, None
    try:
        text = Path("/proc/meminfo").read_text("utf-8")
        table = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in text.splitlines()}
        swap = table["SwapTotal"]
        total, free = table["MemTotal"] + swap, table["MemAvailable"] + table["SwapFree"]
    except (OSError, ValueError, KeyError, IndexError):
        if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
            return None
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder, *names in _CGROUPS:
        container = _container(Path(folder), *names)
        if container is not None and free is not None:
            total, free = min(total, container[0] + swap), min(free, container[1])
    return Room("this machine", total, free, is_cpu=True)


def _container(folder: Path, limit: str, used: str, cached: str) -> tuple[int, int] | None:
    """Return the limit and the free bytes of a control group; None if a file is missing or has no limit."""
    try:
        most, n_used = (int((folder / name).read_text("utf-8")) for name in (limit, used))
        table = dict(line.split() for line in (folder / "memory.stat").read_text("utf-8").splitlines())
        return most, max(0, most - n_used + int(table[cached]))
    except (OSError, ValueError, KeyError):
        return None


def require_memory(config: ModelConfig) -> None:
    """Raise `UserError` if the weights of a model alone, in fp32, exceed the memory of this machine."""
    needed, room = 4 * parameter_counts(config).total, room_of_machine()
    if room is not None and needed > room.total:
        raise UserError(f"the model's weights take {needed / GIB:,.0f} GiB in fp32, and {room}: use a smaller model")


def least_memory(run: Run, on_cpu: bool, fit: Fit = WHOLE) -> Memory:
    """Estimate the minimum bytes of one step in one process, before the data is read.

    A size that the data decides counts with its smallest value (`with_least_sizes`): a row as one token, a number of
    rows as one row. Activations are not counted if part of the model is frozen, the step is compiled, or another
    package defines the loss. In these cases, autograd may save fewer activations.
    """
    config, train = with_least_sizes(run.model), run.train
    batch = micro_batch(run)
    n_tokens = (batch.row_length or config.max_len) if batch.is_full else 1
    n_scored = max(1, int(batch.scored_share * n_tokens)) if batch.scored_share < 1 else 0
    shape = Shape(batch.n_rows or 1, n_tokens, int(config.is_encoder_decoder), n_scored)
    is_frozen = run.lora is not None or bool(run.init.freeze)
    activations = _activations(run, config, shape, on_cpu, fit)
    if train.compile is True or is_frozen or unknown_loss(run) is not None:
        activations = Activations(0, 0)
    memory = training_memory(config, train, activations)
    is_shared = run.parallel.strategy != "ddp"
    if is_shared:
        memory = replace(memory, weights=0)
    if is_shared or is_frozen:
        memory = replace(memory, gradients=0, optimizer=0, average=0, half_copies=0)
    return memory


def way_that_fits(run: Run, room: Room | None) -> Fit:
    """Return the fastest way to compute a micro-batch with which a step fits in the memory.

    The function tries 1, 2, 4, … parts, up to single rows or `MOST_PARTS`, and returns the smallest number that fits.
    If none fits and `train.activation_checkpointing` is "auto", it tries them again with activation checkpointing. The
    estimate is not exact, so the last try allows `MARGIN` × the memory. Raises `UserError` if a step does not fit then.
    """
    if room is None:
        return WHOLE
    counts = list(doubled(1, _most_parts(run)))
    is_auto = run.train.activation_checkpointing == "auto" and isinstance(run.model, TransformerConfig)
    ways = {False: [Fit(n_parts) for n_parts in counts]}
    if is_auto:
        ways[True] = [Fit(n_parts, True) for n_parts in counts]
    for limit, on in [*((room.total, on) for on in ways), (MARGIN * room.total, is_auto)]:
        for fit in ways[on]:
            if least_memory(run, room.is_cpu, fit).total <= limit:
                return fit
    least = least_memory(run, room.is_cpu, ways[is_auto][-1])
    of_state = least.state + least.half_copies
    if of_state > room.total:
        raise UserError(
            f"the weights, gradients and optimizer take {of_state / GIB:,.1f} GiB, and {room}: lower model.d_model or "
            "the number of layers"
        )
    in_parts = f" in {counts[-1]:,} parts" if counts[-1] > 1 else ""
    raise UserError(
        f"a step of {run.train.batch_size:,} rows takes at least {least.total / GIB:,.1f} GiB{in_parts}, and {room}: "
        "lower train.batch_size (and raise train.grad_accumulation to keep the step size) or model.max_len"
    )


def _most_parts(run: Run) -> int:
    return min(micro_batch(run).n_rows or 1, MOST_PARTS)


def smallest_part(run: Run) -> str:
    """Describe the smallest part of a micro-batch that `way_that_fits` tries.

    >>> from glassformer.config.train import TrainConfig
    >>> smallest_part(Run(train=TrainConfig(batch_size=8))), smallest_part(Run(train=TrainConfig(batch_size=5000)))
    ('a single row', 'a part of 5 rows')
    """
    n_rows = -(-(micro_batch(run).n_rows or 1) // _most_parts(run))
    return "a single row" if n_rows == 1 else f"a part of {n_rows:,} rows"


def step_memory(run: Run, on_cpu: bool, fit: Fit, trained_share: float, n_shards: int) -> Memory:
    """Estimate the bytes of one step in one process, for a run whose `model` has all sizes set.

    All rows have the largest length that the settings allow. `trained_share` is the fraction of the parameters that are
    trained, and `n_shards` the number of processes that divide the state. The bytes of an `unknown_loss` are left out.
    """
    config, train = run.model, run.train
    memory = training_memory(
        config, train, _activations(run, config, full_shape(micro_batch(run), config), on_cpu, fit)
    )
    trained = {name: int(getattr(memory, name) * trained_share) for name in ("gradients", "optimizer")}
    if isinstance(run.objective, GroupPolicyConfig):
        trained["weights"] = int(memory.weights * (1 + trained_share))  # the reference model copies the trained weights
    memory = replace(memory, **trained)
    return sharded(memory, config, train, n_shards) if n_shards > 1 else memory


def _activations(run: Run, config: ModelConfig, shape: Shape, on_cpu: bool, fit: Fit) -> Activations:
    """Return the activation bytes of one part of a micro-batch of this shape."""
    train = run.train
    shape = replace(shape, n_rows=-(-shape.n_rows // fit.n_parts))
    every = 1 if fit.recomputes else train.recompute_every
    return activations_of(run, config, shape, Kernels(train.precision in HALF, on_cpu), every)
