"""glassformer course start|check|solution|assemble"""

from pathlib import Path
from typing import Annotated

from glassformer.apps.cli.arguments import Dir, Group
from glassformer.apps.course.workshop.solutions import require_checked, require_exercise
from glassformer.common.errors import UserError
from glassformer.common.formatting import show


def start(folder: Dir, /) -> int:
    """Write the exercises of the course into a folder: one file per chapter, with functions to write.

    Args:
        folder: The folder; files that exist are never replaced.

    Examples:
        glassformer course start mycourse
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a folder: choose another name")
    from glassformer.apps.course.workshop.folder import start  # imports torch

    for path in start(folder):
        print(path)
    print(f"write a function, then:  glassformer course check {folder}")
    return 0


def check(folder: Dir, /, *names: Annotated[str, "[NAME …]"]) -> int:
    """Check what you wrote, and name the mistakes that are known; exit with 1 if a function or model is wrong.

    The files of the folder are executed.

    Args:
        folder: The folder of `course start`.
        names: The functions, models or files to check; by default all.

    Examples:
        glassformer course check mycourse
        glassformer course check mycourse masked_softmax
        glassformer course check mycourse ch05_attention gpt
    """
    require_folder(folder)
    for name in names:
        require_checked(name)
    from glassformer.apps.course.workshop.folder import check  # imports torch

    progress = check(folder, names)
    show(str(progress))
    return int(any(verdict.is_written and not verdict.is_right for verdict in progress.verdicts))


def solution(name: Annotated[str, "FUNCTION"], /) -> int:
    """Print the solution of an exercise.

    Args:
        name: The function.

    Examples:
        glassformer course solution masked_softmax
    """
    require_exercise(name)
    from glassformer.apps.course.workshop.exercises import exercise_of  # imports torch

    print(exercise_of(name).source(), end="")
    return 0


def assemble(folder: Dir, /, *, with_solutions: bool = False) -> int:
    """Join your functions to one file with the four lineages: recurrent, the Transformer of 2017, BERT and GPT.

    It writes `lineages.py`, which never replaces a file. Then `course check` compares its models with glassformer's.

    Args:
        folder: The folder of `course start`.
        with_solutions: Take the solutions of functions that are not written yet.

    Examples:
        glassformer course assemble mycourse
    """
    require_folder(folder)
    from glassformer.apps.course.workshop.assembling import assemble  # imports torch

    assembled = assemble(folder, with_solutions)
    path = assembled.path
    print(path)
    if assembled.borrowed:
        print("from the solutions:", ", ".join(assembled.borrowed))
    for statement in assembled.left_out:
        show(f"left out, because it defines nothing: {statement}")
    print(f"compare its models with glassformer's:  glassformer course check {folder} {path.stem}")
    return 0


def require_folder(folder: Path) -> None:
    """Raise `UserError` without a folder of this name."""
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}; glassformer course start {folder} writes the stubs")


main = Group("Build the parts of a Transformer yourself, and check them.", (start, check, solution, assemble))
