"""glassformer course start|check|hint|case|solution|grade|break|story"""

import sys
from csv import writer as csv_writer
from pathlib import Path
from typing import Annotated, Literal

from glassformer.apps.cli.arguments import Dir, Group
from glassformer.apps.cli.progress import print_json, reporting
from glassformer.apps.course.workshop.tables import every_table, require_checked, require_exercise
from glassformer.common.errors import UserError
from glassformer.common.formatting import show


def start(folder: Dir, /, *, notebooks: Literal["", "write", "read"] = "") -> int:
    """Write the package `mytransformer` into a folder, with functions and classes to write.

    Args:
        folder: The folder; files that exist are never replaced.
        notebooks: In place of the package, write the chapters as Jupyter notebooks: with stubs, or to read.

    Examples:
        glassformer course start mycourse
        glassformer course start mycourse --notebooks write
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is not a folder: choose another name")
    if notebooks:
        from glassformer.apps.course.notebooks import write_notebooks  # imports torch

        paths, what = write_notebooks(folder, is_written=notebooks == "write"), "open them:  jupyter lab"
    else:
        from glassformer.apps.course.workshop.folder import start

        paths, what = start(folder), "write a function, then:  glassformer course check"
    for path in paths:
        print(path)
    print(f"{what} {folder}")
    return 0


def check(folder: Dir, /, *names: Annotated[str, "[NAME …]"], json_: bool = False) -> int:
    """Check what you wrote, and name the mistakes that are known; exit with 0 only if all that was asked for is right.

    The files of the folder are executed.

    Args:
        folder: The folder of `course start`.
        names: Exercises, files or numbers of chapters; by default all.
        json_: Print the verdicts as JSON.

    Examples:
        glassformer course check mycourse
        glassformer course check mycourse masked_softmax
        glassformer course check mycourse attention.py 9
    """
    require_folder(folder)
    for name in names:
        require_checked(name)
    from glassformer.apps.course.workshop.folder import check  # imports torch

    progress = check(folder, names)
    if json_:
        print_json(progress.as_json())
    else:
        show(str(progress))
    return int(not progress.is_right)


def hint(name: Annotated[str, "EXERCISE"], /, *, more: bool = False) -> int:
    """Print a hint for an exercise.

    Args:
        name: The function or class.
        more: Print the second hint too.

    Examples:
        glassformer course hint causal_mask
        glassformer course hint causal_mask --more
    """
    require_exercise(name)
    hints = every_table()[name].hints
    if not hints:
        raise UserError(f"{name} has no hint; its docstring states what it computes")
    for text in hints if more else hints[:1]:
        show(text)
    return 0


def case(name: Annotated[str, "EXERCISE"], number: Annotated[int, "[NUMBER]"] = 1, /) -> int:
    """Print the arguments of a test, as Python; of a class, the code that uses it.

    In a notebook, `course.case(NAME, NUMBER)` returns them.

    Args:
        name: The function or class.
        number: The number of the test, as a check counts them.

    Examples:
        glassformer course case masked_softmax 2
    """
    from glassformer.apps.course import case

    for value in case(name, number):
        print(getattr(value, "code", value))  # a use has code
    return 0


def solution(name: Annotated[str, "EXERCISE"], /) -> int:
    """Print the solution of an exercise.

    Args:
        name: The function or class.

    Examples:
        glassformer course solution masked_softmax
    """
    require_exercise(name)
    from glassformer.apps.course.workshop.exercises import exercise_of  # imports torch

    print(exercise_of(name).source(), end="")
    return 0


def grade(
    *folders: Annotated[Path, "DIR…"],
    only: str = "",
    json_: bool = False,
    csv: bool = False,
    seed: int = 0,
    jobs: int = 2,
    seconds: float = 120.0,
) -> int:
    """Check the folders of a class, each in a process with limits of time and memory, and print a table.

    Args:
        folders: The folders of the students.
        only: Exercises, files or numbers of chapters, with commas between them; by default all.
        json_: Print JSON.
        csv: Print comma-separated values, with a column for each exercise.
        seed: Test each folder with other numbers, drawn by this number and its name; 0: with those of `check`.
        jobs: How many folders are checked at once.
        seconds: How long the check of a folder may take.

    Examples:
        glassformer course grade students/*
        glassformer course grade students/* --only attention.py,9 --csv > grades.csv
    """
    names = [name for name in only.split(",") if name]
    for name in names:
        require_checked(name)
    for folder in folders:
        require_folder(folder)
    from glassformer.apps.course.workshop.exercises import every_exercise  # imports torch
    from glassformer.apps.course.workshop.grading import Limits, grades, table

    chosen = [one for one in every_exercise().values() if one.is_named(names)]
    found = []
    with reporting(is_quiet=True) as reporter, reporter.phase("checking folders") as progress:
        for one in grades(folders, names, seed, jobs, Limits(seconds)):
            found.append(one)
            progress(len(found), len(folders))
    if json_:
        print_json(
            [
                {"folder": one.folder, "right": one.n_right, "states": one.states, "problem": one.problem}
                for one in found
            ]
        )
    elif csv:
        writer = csv_writer(sys.stdout, lineterminator="\n")
        writer.writerow(["folder", "right", "problem", *(exercise.name for exercise in chosen)])
        for one in found:
            states = [one.states.get(exercise.name, "") for exercise in chosen]
            writer.writerow([one.folder, one.n_right, one.problem, *states])
    else:
        chapters: dict[int, list[str]] = {}
        for exercise in chosen:
            chapters.setdefault(exercise.chapter, []).append(exercise.name)
        show(table(found, chapters))
    return 0


def break_(number: Annotated[int, "NUMBER"], folder: Annotated[Path, "DIR"], /) -> int:
    """Write a whole package that works and has one planted fault, which you find with tests of your own.

    Args:
        number: Which fault, from 1 to 8.
        folder: A new folder.

    Examples:
        glassformer course break 1 broken
    """
    from glassformer.apps.course.workshop.breaking import fault_of, write_broken

    print(write_broken(number, folder))
    show(fault_of(number).symptom)
    print(f"when you have found it:  glassformer course story {number}")
    return 0


def story(number: Annotated[int, "NUMBER"], /) -> int:
    """Print where the planted fault of `course break` is, and what it does.

    Args:
        number: Which fault, from 1 to 8.

    Examples:
        glassformer course story 1
    """
    from glassformer.apps.course.workshop.breaking import fault_of

    fault = fault_of(number)
    show(f"{fault.file}\n\nright:\n{fault.old}\n\nbroken:\n{fault.new}\n\n{fault.story}")
    return 0


def require_folder(folder: Path) -> None:
    """Raise `UserError` without a folder of this name."""
    if not folder.is_dir():
        raise UserError(f"no such folder: {folder}; glassformer course start {folder} writes the stubs")


main = Group("Write your own Transformers, and check them.", (start, check, hint, case, solution, grade, break_, story))
