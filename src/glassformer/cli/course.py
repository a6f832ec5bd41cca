"""glassformer course start|check|solution"""

from typing import Annotated

from glassformer.cli.arguments import Dir, Group
from glassformer.course.workshop.solutions import require_known
from glassformer.errors import UserError
from glassformer.formatting import show


def start(folder: Dir, /) -> int:
    """Write the exercises of the course into a folder: one file per chapter, with functions to write.

    Args:
        folder: The folder; files that exist are never replaced.

    Examples:
        glassformer course start mycourse
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a folder: choose another name")
    from glassformer.course.workshop.folder import start  # imports torch

    for path in start(folder):
        print(path)
    print(f"write a function, then:  glassformer course check {folder}")
    return 0


def check(folder: Dir, /, *names: Annotated[str, "[FUNCTION …]"]) -> int:
    """Check what you wrote, and name the mistakes that are known; exit with 1 if a written function is wrong.

    The files of the folder are executed.

    Args:
        folder: The folder of `course start`.
        names: The functions to check; by default all.

    Examples:
        glassformer course check mycourse
        glassformer course check mycourse masked_softmax
    """
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}; glassformer course start {folder} writes the stubs")
    for name in names:
        require_known(name)
    from glassformer.course.workshop.folder import check  # imports torch

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
    require_known(name)
    from glassformer.course.workshop.registry import exercise_of  # imports torch

    print(exercise_of(name).source(), end="")
    return 0


main = Group("Build the parts of a Transformer yourself, and check them.", (start, check, solution))
