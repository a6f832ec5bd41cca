"""Convert the chapters of the course to Jupyter notebooks; `make course` opens them, `make notebooks` runs them.

The chapters are MyST Markdown files, so a difference between two versions can be read. `make docs` also runs each one
alone in an empty folder, with a kernel of its own, and keeps its results. `make notebooks` keeps no results, and runs
the first cell too, which installs.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import nbclient
import nbformat

import glassformer
from glassformer.apps import course
from glassformer.apps.course.notebooks import ANSWER, cells_of, chapters, to_read

PROGRAMS = Path(__file__).parent / "from-notebooks"
"""Programs of teaching notebooks, written with the package."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "glassformer" / "course"
RENDERED = ("01",)
"""Chapters that a short build runs: this one has a widget. `tests/course` runs the code of all."""
WEEK = 7 * 24 * 3600
PICTURE = "hide-input"
"""The tag of a cell whose code makes a picture. The site shows it, and an `ANSWER`, after a click."""
CELL_TIMEOUT_S = 3600
"""Time limit of one cell. On two busy cores, the longest training of a chapter took over 15 minutes."""
WORDS_PER_MINUTE, LINES_PER_MINUTE = 120, 10
"""The speed of a reader, in prose and in code."""


def cache_folder() -> Path:
    """Return the folder of results for this version of the package's source; remove those older than a week."""
    source = Path(glassformer.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for path in source.rglob("*") if path.suffix in (".py", ".js", ".toml")):
        digest.update(path.relative_to(source).as_posix().encode() + b"\0" + path.read_bytes())
    short = "short" if course.is_short() else "full"
    folder = CACHE / f"{short}-{digest.hexdigest()[:16]}"
    for other in CACHE.glob("*-*"):
        if other != folder and time.time() - other.stat().st_mtime > WEEK:
            shutil.rmtree(other)
    return folder


def programs() -> list[Path]:
    """Return the files of the programs in their order."""
    return sorted(PROGRAMS.glob("[0-9]-*.md"))


def not_rendered() -> list[str]:
    """Return the pages that a short build does not run."""
    left = [chapter for chapter in chapters() if chapter.name[:2] not in RENDERED]
    return [f"{page.parent.name}/{page.stem}*" for page in [*left, *programs()]]


def reading_minutes(chapter: str) -> int:
    """Return the time to read a chapter, in steps of 5 minutes, without what the site hides."""
    minutes = 0.0
    for cell in cells_of(chapter):
        if not cell.is_code:
            shown = re.sub(r"<details>.*?</details>", "", cell.source, flags=re.DOTALL)
            minutes += len(shown.split()) / WORDS_PER_MINUTE
        elif not {ANSWER, PICTURE} & set(cell.tags):
            minutes += len([line for line in cell.source.splitlines() if line.strip()]) / LINES_PER_MINUTE
    return 5 * max(1, round(minutes / 5))


def below_title(chapter: str, text: str) -> str:
    """Return a chapter with a paragraph below its title."""
    return re.sub(r"^# .+$", lambda title: f"{title[0]}\n\n{text}", chapter, count=1, flags=re.MULTILINE)


def reading_time(chapter: str) -> str:
    """Return the sentence that states the time to read a chapter."""
    return f"Reading time: about {reading_minutes(chapter)} minutes, without the exercises."


def notebook(chapter: Path) -> str:
    """Return a chapter as the text of a Jupyter notebook, with its reading time and hidden answers."""
    text = chapter.read_text("utf-8")
    return to_read(below_title(text, reading_time(text)))


def write_notebooks(folder: Path, pages: Iterable[Path] | None = None, *, replace: bool = True) -> list[Path]:
    """Write pages, by default every chapter, as notebooks; return the paths. If not `replace`, existing files stay."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for page in chapters() if pages is None else pages:
        paths.append(folder / f"{page.stem}.ipynb")
        if replace or not paths[-1].exists():
            paths[-1].write_text(notebook(page), "utf-8")
    return paths


def run_alone(chapter: Path) -> None:
    """Run a chapter as a notebook in a folder with nothing else; an error of a cell is raised."""
    with tempfile.TemporaryDirectory() as folder:
        made = nbformat.reads(notebook(chapter), as_version=4)
        nbclient.NotebookClient(made, timeout=CELL_TIMEOUT_S, resources={"metadata": {"path": folder}}).execute()


if __name__ == "__main__" and "--run" in sys.argv:
    for one in [*chapters(), *programs()]:
        begin = time.perf_counter()
        run_alone(one)
        print(f"{one.stem:32}{time.perf_counter() - begin:6.0f} s", flush=True)
elif __name__ == "__main__":
    here = Path("runs/course")
    write_notebooks(here, replace=False)
    print(f"the chapters are in {here}; files that exist are not replaced")
    sys.exit(subprocess.run([sys.executable, "-m", "jupyterlab", str(here)]).returncode)
