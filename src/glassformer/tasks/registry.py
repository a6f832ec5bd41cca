"""The registry of tasks by the kind of objective. It imports a task's module when its kind is first used."""

from importlib import import_module

from glassformer.common.errors import UserError
from glassformer.config.extensions import TASKS, entry_points, register_settings
from glassformer.config.run import Run
from glassformer.tasks.requirements import BUILT_IN
from glassformer.tasks.task import Task, TrainableTask

_registered: dict[str, Task] = {}


def register(task: Task) -> None:
    """Register a task in this process under the kind of its settings, for example in a notebook.

    An installed package declares its task as an entry point instead (group `glassformer.tasks`, the kind as the name),
    so that the command line finds it too. Raises `UserError` for a built-in kind.
    """
    kind = task.settings.kind
    if kind in BUILT_IN:
        raise UserError(f"the kind {kind!r} is a built-in task of glassformer: choose another kind")
    register_settings(TASKS, task.settings)
    _registered[kind] = task


def unknown_loss(run: Run) -> str | None:
    """Describe the memory of a loss that another package defines, which cannot be predicted; None for a built-in one.

    >>> unknown_loss(Run()) is None
    True
    """
    if run.objective.kind in BUILT_IN:
        return None
    return f"what the loss of objective.kind {run.objective.kind} keeps is unknown: it is not built in"


def kinds() -> list[str]:
    """Return every kind that has a task: built-in, from installed packages, and registered."""
    return list(dict.fromkeys([*BUILT_IN, *entry_points(TASKS), *_registered]))


def task_of_kind(kind: str) -> Task:
    """Return the task of a kind of objective; raise `UserError` for an unknown kind."""
    if kind in BUILT_IN:
        module, name = BUILT_IN[kind].home.split(":")
        return getattr(import_module(f"glassformer.tasks.{module}"), name)
    if kind in _registered:
        return _registered[kind]
    foreign = entry_points(TASKS)
    if kind not in foreign:
        raise UserError(f"objective.kind: expected one of {', '.join(kinds())}, got {kind!r}")
    return foreign[kind].load()


def task_of(run: Run) -> Task:
    """Return the task of a run."""
    return task_of_kind(run.objective.kind)


def trainable_task(run: Run) -> TrainableTask:
    """Return the task that a run learns; raise `UserError` for a run whose model cannot be trained."""
    task = task_of(run)
    if not isinstance(task, TrainableTask):
        raise UserError(
            f"the run {run.name!r} has objective.kind {run.objective.kind} and cannot be trained: to fine-tune its "
            "model, start a run with another objective and --init"
        )
    return task
