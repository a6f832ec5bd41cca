"""From the kind of an objective to its task. A task's module is imported when its kind is first asked for."""

from importlib import import_module

from glassformer.config.run import Run
from glassformer.config.schema import TASKS, entry_points, register_settings
from glassformer.errors import UserError
from glassformer.tasks.task import Task, TrainableTask

HOMES = {
    "causal": "glassformer.tasks.language_modeling:TASK",
    "masked": "glassformer.tasks.masked_lm:TASK",
    "infilling": "glassformer.tasks.denoising:INFILLING",
    "spans": "glassformer.tasks.denoising:SPANS",
    "seq2seq": "glassformer.tasks.translation:TASK",
    "classification": "glassformer.tasks.classification:TASK",
    "tagging": "glassformer.tasks.tagging:TASK",
    "none": "glassformer.tasks.vectors:TASK",
}
_registered: dict[str, Task] = {}


def register(task: Task) -> None:
    """Make a task known in this process, under the kind of its settings: in a notebook, say.

    A package of its own names the task in its entry points (group `glassformer.tasks`, the kind as the name), so that
    the command line knows it too. Raises `UserError` for a kind that glassformer has itself.
    """
    kind = task.settings.kind
    if kind in HOMES:
        raise UserError(f"the task {kind!r} is glassformer's own: give yours another kind")
    register_settings(TASKS, task.settings)
    _registered[kind] = task


def kinds() -> list[str]:
    """Every kind that has a task: ours, those of installed packages, and those that were registered."""
    return list(dict.fromkeys([*HOMES, *entry_points(TASKS), *_registered]))


def task_of_kind(kind: str) -> Task:
    """The task of a kind of objective; `UserError` for one that is unknown."""
    if kind in HOMES:
        module, name = HOMES[kind].split(":")
        found: Task = getattr(import_module(module), name)
        return found
    if kind in _registered:
        return _registered[kind]
    foreign = entry_points(TASKS)
    if kind not in foreign:
        raise UserError(f"no task is known for the objective {kind!r}; there are {', '.join(kinds())}")
    loaded: Task = foreign[kind].load()
    return loaded


def task_of(run: Run) -> Task:
    """What a model of this run does."""
    return task_of_kind(run.objective.kind)


def trainable_task(run: Run) -> TrainableTask:
    """The task that a run learns; `UserError` for a run in which nothing is learned."""
    task = task_of(run)
    if not isinstance(task, TrainableTask):
        raise UserError(
            f"the objective of {run.name!r} is {run.objective.kind}, so it has nothing to learn: to train its model "
            "on, start a run that learns something from it, with --init"
        )
    return task
