"""A resumed run with another number of steps: allowed if the result is that of a run that was started with it."""

import shutil
from pathlib import Path

from glassformer.common.errors import Log, UserError
from glassformer.config.train import NEW_RUN, TrainConfig
from glassformer.store import checkpoint
from glassformer.store.manifest import Manifest
from glassformer.training.schedules import schedule_factor
from glassformer.training.trainer_state import read_progress


def checkpoint_for(folder: Path, newest: Path, old: TrainConfig, new: TrainConfig, log: Log) -> Path:
    """Return the checkpoint from which a run continues with `new.max_steps`.

    This is the newest one, unless the run has ended with actions that a run of `new.max_steps` does not take at that
    step. Raises `UserError` if no checkpoint is equal to that of a run that was started with `new.max_steps`.
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
    """Return True if a longer run logs, evaluates and saves at this step too, and does nothing else."""
    is_saved = best_step == step or step % (config.checkpoint_every or config.eval_every) == 0
    is_reported = step % config.eval_every == 0 and step % config.log_every == 0
    return is_saved and is_reported and config.select != "average"
