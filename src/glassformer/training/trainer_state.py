"""The state of the training loop besides weights and optimizer, and the checkpoint from which a run continues."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from glassformer.common.errors import Log, UserError
from glassformer.config.schema import from_dict
from glassformer.config.train import NEW_RUN, TrainConfig
from glassformer.evaluation.loss import LossReport
from glassformer.models.devices import Fit
from glassformer.store import checkpoint
from glassformer.store.manifest import Manifest
from glassformer.training.non_finite import LossScale
from glassformer.training.schedules import PlateauState, schedule_factor


@dataclass
class TrainerState:
    """State of the training loop besides weights and optimizer; stored as JSON."""

    step: int = 0
    seconds: float = 0.0
    """Time spent on steps."""
    n_targets: int = 0
    best: float | None = None
    """Smallest watched value so far: the metric, such as the loss. If a higher metric is better, the value is negative,
    such as -BLEU (`Evaluations.conclude`)."""
    best_step: int | None = None
    n_without_improvement: int = 0
    plateau: dict[str, Any] | None = None
    scaler: dict[str, Any] | None = None
    """Loss scale in fp16."""
    unlogged: list[tuple[float, int]] = field(default_factory=list)
    """Nats and targets per step since the last line of the log, so that a resumed run writes the same next line."""
    finished: bool = False
    valid: dict[str, float | int | None] = field(default_factory=dict)
    data_digest: str = ""
    rate_factor: float = 1.0
    """Factor of the learning rate; each rollback halves it."""
    n_rollbacks: int = 0
    scheduled: list[int] = field(default_factory=list)
    """Steps of the newest checkpoints that the recipe schedules; a checkpoint after a signal is not included."""
    n_skipped: int = 0
    """Number of consecutive steps, up to now, with a non-finite loss or gradient."""
    n_parts: int = 1
    """Number of parts in which each micro-batch is computed so that it fits in memory."""
    recomputes: bool = False
    """True if blocks are recomputed in the backward pass so that a micro-batch fits in memory."""
    made_with: dict[str, Any] = field(default_factory=dict)
    """Machine and versions; equal bits are guaranteed only on the same machine with the same versions."""

    @property
    def fit(self) -> Fit:
        return Fit(self.n_parts, self.recomputes)

    def stored(self) -> dict[str, Any]:
        """Return the fields as in `state.json`; later steps do not change the copy."""
        return vars(self) | {"unlogged": list(self.unlogged), "valid": dict(self.valid)}


_TABLES: dict[str, type] = {"scaler": LossScale, "plateau": PlateauState, "valid": LossReport}


def read_progress(folder: Path) -> TrainerState:
    """Return the progress in a checkpoint; raise `UserError` for a missing, unknown or invalid field."""
    numbers, where = checkpoint.load_numbers(folder), folder / checkpoint.STATE
    for entry in fields(TrainerState):
        if entry.name not in numbers:
            raise UserError(f"{entry.name} is missing (in {where})")
    state = from_dict(TrainerState, numbers, str(where))
    parts: list[Any] = [state]
    for name, cls in _TABLES.items():
        table = getattr(state, name)
        if table is not None and not (name == "valid" and not table):  # {}: no evaluation yet
            parts.append(from_dict(cls, table, f"{name} of {where}"))
    for name, value in (item for part in parts for item in vars(part).items()):
        if not all(0 <= number < 1 << 53 for number in _whole_numbers(value)):
            raise UserError(f"{name}: expected at least 0 and below 2^53, got {value!s:.60} (in {where})")
    if state.step != (step := Manifest.read(folder).step):
        raise UserError(f"{where}: expected step {step} as in the manifest, got {state.step}")
    return state


def _whole_numbers(value: Any) -> Iterator[int]:
    """Yield the integers in a value; numbers that are not counts were read as floats."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _whole_numbers(item)
    elif isinstance(value, int):
        yield value


# A resumed run with another number of steps is allowed if it gives the result of a run that began with this number


def checkpoint_for(folder: Path, newest: Path, old: TrainConfig, new: TrainConfig, log: Log) -> Path:
    """Return the checkpoint from which a run continues with `new.max_steps`.

    This is the newest checkpoint, unless the run has ended with actions that a run of `new.max_steps` does not take at
    that step. Raises `UserError` if no checkpoint equals a checkpoint of a run that was started with `new.max_steps`.
    """
    done, n_steps = Manifest.read(newest).step, new.max_steps
    if n_steps == old.max_steps:
        return newest
    if n_steps <= done:
        raise UserError(f"train.max_steps: expected more than the {done:,} steps done, got {n_steps:,}; {NEW_RUN}")
    if not all(_rate(old, step) == _rate(new, step) for step in range(done)):
        raise UserError(
            f"train.max_steps cannot change from {old.max_steps:,} to {n_steps:,}: the learning rate of the {done:,} "
            f"steps done depends on it ({old.schedule.kind}); {NEW_RUN}, or use a constant schedule"
        )
    if done < old.max_steps or _is_scheduled(done, old, read_progress(newest).best_step):
        return newest
    for step in reversed(checkpoint.steps(folder)):
        if step < done and checkpoint.is_intact(folder, step, log):
            path = checkpoint.path_of(folder, step)
            best = read_progress(path).best_step
            if old.select != "best" or best is None or checkpoint.path_of(folder, best).is_dir():
                log(f"steps {step + 1} to {done} are repeated: a run of {n_steps:,} steps does not end there")
                return path
    raise UserError(
        f"train.max_steps cannot change: the run was evaluated at its end, step {done}, and no checkpoint before it is "
        f"left; {NEW_RUN}"
    )


def delete_later(folder: Path, step: int) -> None:
    """Delete the checkpoints after `step`, so that a run that continues from there is never resumed from them."""
    for later in checkpoint.steps(folder):
        if later > step:
            shutil.rmtree(checkpoint.path_of(folder, later))


def _rate(config: TrainConfig, step: int) -> float:
    return schedule_factor(config.schedule, step, config.max_steps)


def _is_scheduled(step: int, config: TrainConfig, best_step: int | None) -> bool:
    """Return True if a longer run also logs, evaluates and saves at this step, and neither run does anything else."""
    is_saved = best_step == step or step % (config.checkpoint_every or config.eval_every) == 0
    is_reported = step % config.eval_every == 0 and step % config.log_every == 0
    return is_saved and is_reported and config.select != "average"
