"""glassformer train RECIPE|FILE.toml|FILE…"""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassformer.apps.cli.arguments import with_flags
from glassformer.apps.cli.inspect import page_beside
from glassformer.apps.cli.progress import RunOutput
from glassformer.config.run import Run
from glassformer.data import own_data
from glassformer.training.checks import check_new_run, run_of

if TYPE_CHECKING:
    from glassformer.tasks.reporting import LaunchReporter, Outcome

Source = Annotated[str, "RECIPE|FILE.toml|FILE…"]


def main(
    *sources: Source,
    kind: own_data.Kind | None = None,
    init: str | None = None,
    teacher: str | None = None,
    inspect: bool = False,
    output: RunOutput,
    **keys: str,
) -> int:
    """Train a tokenizer and a model, with progress and validation loss; the result is a model directory.

    Your own data is enough: a text, a folder or a pattern ("src/**/*.py"); pairs as a table or as two files; texts with
    labels as a table. Its kind is recognised, and the sizes are chosen for its amount. Every key of a recipe is an
    option, by its whole name (--train.max-steps) or, if only one key has it, by its short name (--max-steps). Its
    value is a number, a text, true or false, or a list as "a b".

    Args:
        sources: The name of a recipe, a TOML file, or own data.
        kind: The kind of own data, if it is not clear.
        init: A model directory: start from its tokenizer and from all of its weights that fit.
        teacher: A model directory: also learn the probabilities that this model gives (distillation).
        inspect: Show the curves, samples and attention of the run on a page in the browser (glassformer inspect).

    Examples:
        glassformer train mybook.txt
        glassformer train python-docs --max-steps 500 --out runs/docs
    """
    run, notes = run_for(*sources, kind=kind, init=init, teacher=teacher, **keys)
    folder = output.folder(run)
    check_new_run(run, folder)  # imports no torch
    own_data.note(notes)
    with page_beside(folder) if inspect else nullcontext():
        output.trained(lambda reporter: train(run, folder, reporter))
    return 0


def run_for(
    *sources: Source,
    kind: own_data.Kind | None = None,
    init: str | None = None,
    teacher: str | None = None,
    **keys: str,
) -> tuple[Run, str]:
    """Return the run that the arguments of the command line describe, and notes about its data and settings."""
    models = {"init.path": init, "teacher.path": teacher}
    changes = {key: path for key, path in models.items() if path is not None} | keys
    run, notes = run_of(*sources, kind=kind, changes=changes)
    return with_flags(run, changes), notes


def train(run: Run, folder: Path, reporter: "LaunchReporter") -> "Outcome":
    """Train a run that `check_new_run` has accepted."""
    from glassformer.training.run import train_run

    return train_run(run, folder, reporter)
