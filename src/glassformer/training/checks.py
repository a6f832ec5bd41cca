"""Checks of a run before torch is imported: its settings, its folder, and the beginning of its data."""

from pathlib import Path

from glassformer import files
from glassformer.config.run import AnsweringConfig, NoObjective, Run, TextData, WindowRows
from glassformer.data.first_look import look_at
from glassformer.distributed.environment import is_first
from glassformer.errors import UserError
from glassformer.store import checkpoint, lock
from glassformer.tasks.registry import trainable_task
from glassformer.training.run_folder import is_restarted, require_apart, require_new, require_run


def check_new_run(run: Run, folder: Path) -> None:
    """Raise `UserError` if a run cannot start in a folder; write nothing.

    A run that `torchrun` restarts in its folder was checked at its start.
    """
    if is_restarted(folder):
        return
    if is_first():
        lock.require_free(folder)
    if isinstance(run.objective, (AnsweringConfig, NoObjective)):
        trainable_task(run)  # raises UserError; other tasks import torch
    require_new(folder)
    files.require_writable(folder)
    require_effect(run)
    if run.init.path is not None:
        checkpoint.find(files.as_path(run.init.path, "init.path"))
    for tokenizer in (run.tokenizer, run.source_tokenizer):
        if tokenizer is not None and tokenizer.path is not None:
            with files.reading(Path(tokenizer.path)):
                Path(tokenizer.path).stat()
    require_apart(run, folder)
    if isinstance(run.data, TextData) and run.data.path is None:
        raise UserError(f"the run {run.name!r} has no data.path: give a text with --data.path FILE")
    look_at(run.data, _window(run))


def check_stored_run(folder: Path) -> None:
    """Raise `UserError` if a folder contains no run that can be resumed or repeated now."""
    require_run(folder)
    if is_first():
        lock.require_free(folder)
    if not checkpoint.steps(folder):
        raise UserError(f"{folder} has no intact checkpoint to resume from")


def require_effect(run: Run) -> None:
    """Raise `UserError` for a setting that has no effect with the others."""
    if run.lora is not None and run.init.path is None:
        raise UserError("lora adapts a trained model and needs init.path: set it to the model directory to adapt")
    if run.init.model != "same" and run.init.path is None:
        raise UserError(f"init.model {run.init.model} has no effect without init.path: set init.path, or leave it out")
    for name, strategies in (("cpu_offload", ("fsdp", "hybrid")), ("shard_size", ("hybrid",))):
        if getattr(run.parallel, name) and run.parallel.strategy not in strategies:
            raise UserError(
                f"parallel.{name} has no effect with parallel.strategy {run.parallel.strategy}: it is for "
                f"{' and '.join(strategies)}; leave it out"
            )


def _window(run: Run) -> int:
    """Return the tokens per window of a text; 0 for rows that may be shorter than the context."""
    if isinstance(run.data, TextData) and isinstance(run.data.packing, WindowRows):
        return run.data.context or run.model.max_len
    return 0
