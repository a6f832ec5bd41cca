"""Memory of a training step before a run starts: what it will take, and in how many parts it fits."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from glassformer.config.run import Run
from glassformer.config.transformer import SPECIAL_IDS
from glassformer.cost.activations import Activations, Kernels, activations
from glassformer.cost.flops import Shape
from glassformer.cost.hardware import GIB
from glassformer.cost.memory import HALF, Memory, sharded, training_memory
from glassformer.cost.plan import full_shape
from glassformer.errors import UserError
from glassformer.tasks.preparation import micro_batch

MARGIN = 1.5
"""A step is refused if it needs more than this × the total memory; the estimate is within a fifth, or too low."""
MOST_PARTS = 1024
"""A step that does not fit in this many parts per micro-batch is refused: its batch size is a mistake."""
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


def least_memory(run: Run, on_cpu: bool, n_parts: int = 1) -> Memory:
    """Estimate the minimum bytes of one step in one process, from what is known before the data is read.

    Each micro-batch is computed in `n_parts` parts.

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
    shape = Shape(-(-(batch.n_rows or 1) // n_parts), n_tokens, int(config.is_encoder_decoder), n_scored)
    kept = activations(config, shape, Kernels(train.precision in HALF, on_cpu), train.activation_checkpointing)
    if train.precision in HALF:  # the loss of a few rows at a time keeps logits and their gradient in half precision
        kept = replace(kept, logits=kept.logits // 2)
    if train.compile or run.lora is not None or run.init.freeze:
        kept = Activations(0, 0)
    memory = training_memory(config, train, kept)
    is_shared = run.parallel.strategy != "ddp" or run.parallel.cpu_offload
    if is_shared or run.lora is not None or run.init.freeze:
        memory = replace(memory, weights=0 if is_shared else memory.weights, gradients=0, optimizer=0, average=0)
        memory = replace(memory, half_copies=0)
    return memory


def parts_that_fit(run: Run, room: Room | None) -> int:
    """Return the smallest number of parts of a micro-batch (1, 2, 4, …) with which a step fits in the memory.

    If none fits by the estimate, which is not exact, this is the smallest one that needs at most `MARGIN` × the memory.
    Raises `UserError` if there is no such number, up to single rows and `MOST_PARTS`.
    """
    if room is None:
        return 1
    most = min(micro_batch(run).n_rows or 1, MOST_PARTS)
    counts = [1 << i for i in range(most.bit_length()) if 1 << i < most] + [most]
    memories = [least_memory(run, room.is_cpu, n_parts) for n_parts in counts]
    for limit in (room.total, MARGIN * room.total):
        for n_parts, memory in zip(counts, memories, strict=True):
            if memory.total <= limit:
                return n_parts
    least = memories[-1]
    there = f"{room.name} has {room.total / GIB:,.1f} GiB ({room.free / GIB:,.1f} GiB free)"
    of_state = least.state + least.half_copies
    if of_state > room.total:
        raise UserError(
            f"the weights, gradients and optimizer take {of_state / GIB:,.1f} GiB, and {there}: lower model.d_model or "
            "the number of layers"
        )
    in_parts = f" in {most:,} parts" if most > 1 else ""
    raise UserError(
        f"a step of {run.train.batch_size:,} rows takes at least {least.total / GIB:,.1f} GiB{in_parts}, and {there}: "
        "lower train.batch_size (and raise train.grad_accumulation to keep the step size) or model.max_len"
    )


def step_memory(run: Run, on_cpu: bool, n_parts: int, trained_share: float, n_shards: int) -> Memory:
    """Estimate the bytes of one step in one process for a run whose model is complete.

    All rows have the largest length that the settings allow. `trained_share` is the fraction of the parameters that are
    trained, and `n_shards` the number of processes that divide the state.
    """
    config, train = run.model, run.train
    shape = full_shape(micro_batch(run), config)
    shape = replace(shape, n_rows=-(-shape.n_rows // n_parts))
    kept = activations(config, shape, Kernels(train.precision in HALF, on_cpu), train.activation_checkpointing)
    memory = training_memory(config, train, kept)
    trained = {name: int(getattr(memory, name) * trained_share) for name in ("gradients", "optimizer")}
    memory = replace(memory, **trained)
    return sharded(memory, config, train, n_shards) if n_shards > 1 else memory
