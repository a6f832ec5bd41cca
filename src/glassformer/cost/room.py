"""Memory check before a run starts, with a low estimate of the memory of one training step."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from glassformer.config.run import Run
from glassformer.config.transformer import SPECIAL_IDS
from glassformer.cost.activations import Activations, Kernels, activations
from glassformer.cost.flops import Shape
from glassformer.cost.hardware import GIB
from glassformer.cost.memory import HALF, Memory, training_memory
from glassformer.errors import UserError
from glassformer.tasks.preparation import micro_batch

MARGIN = 1.5
"""A step is refused if it needs more than this × the total memory; the estimate is within a fifth, or too low."""
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Room:
    """Memory of a device, in bytes."""

    name: str
    """Name of the device in messages."""
    total: int
    free: int
    is_cpu: bool


def room_of_machine() -> Room | None:
    """Return the memory and swap of this machine or the limit of its container; None if it cannot be read."""
    swap = 0
    try:
        text = Path("/proc/meminfo").read_text("utf-8")
        table = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in text.splitlines()}
        swap = table["SwapTotal"]
        total, free = table["MemTotal"] + swap, table["MemAvailable"] + table["SwapFree"]
    except (OSError, ValueError, KeyError, IndexError):
        if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
            return None
        total = free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        try:
            limit = int(Path(path).read_text("utf-8"))
        except (OSError, ValueError):  # another cgroup version, or no limit
            continue
        total, free = min(total, limit + swap), min(free, limit)
    return Room("this machine", total, free, is_cpu=True)


def least_memory(run: Run, on_cpu: bool) -> Memory:
    """Estimate the minimum bytes of one step in one process, from what is known before the data is read.

    If the data decides the vocabulary, its size counts as the smallest that holds the special ids; undecided labels
    count as 0, undecided row lengths as one token, and an undecided number of rows as one row. Activations are not
    counted if part of the model is frozen or the step is compiled, because both may save fewer of them.
    """
    config, train = run.model, run.train
    ids = [getattr(config, name) for name in SPECIAL_IDS if getattr(config, name) is not None]
    config = replace(config, vocab_size=config.vocab_size or 1 + max(ids, default=0))
    batch = micro_batch(run)
    n_tokens = (batch.row_length or config.max_len) if batch.is_full else 1
    n_scored = max(1, int(batch.scored_share * n_tokens)) if batch.scored_share < 1 else 0
    shape = Shape(batch.n_rows or 1, n_tokens, int(config.is_encoder_decoder), n_scored)
    kept = activations(config, shape, Kernels(train.precision in HALF, on_cpu), train.activation_checkpointing)
    if train.compile or run.lora is not None or run.init.freeze:
        kept = Activations(0, 0)
    memory = training_memory(config, train, kept)
    is_shared = run.parallel.strategy != "ddp" or run.parallel.cpu_offload
    if is_shared or run.lora is not None or run.init.freeze:
        memory = replace(memory, weights=0 if is_shared else memory.weights, gradients=0, optimizer=0, average=0)
        memory = replace(memory, half_copies=0)
    return memory


def require_room(run: Run, room: Room | None) -> None:
    """Raise `UserError` if one step of a run needs clearly more memory than the device has."""
    if room is None:
        return
    memory = least_memory(run, room.is_cpu)
    if memory.total <= MARGIN * room.total:
        return
    there = f"{room.name} has {room.total / GIB:,.1f} GiB ({room.free / GIB:,.1f} GiB free)"
    of_state = memory.state + memory.half_copies
    if of_state > room.total:
        raise UserError(
            f"the weights, gradients and optimizer take {of_state / GIB:,.1f} GiB, and {there}: lower model.d_model or "
            "the number of layers"
        )
    raise UserError(
        f"a step of {run.train.batch_size:,} rows takes at least {memory.total / GIB:,.1f} GiB, and {there}: lower "
        "train.batch_size (and raise train.grad_accumulation to keep the step size) or model.max_len"
    )
