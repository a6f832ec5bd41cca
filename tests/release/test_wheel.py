"""The wheel and the sdist work alone: in an empty folder, in an environment without this checkout."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import glassformer
import late

late.optional("build")
late.optional("jupytext")

ROOT = Path(__file__).parents[2]
COURSE = ROOT / "docs" / "course"
FEW_STEPS = ("--max-steps", "2", "--eval-every", "2", "--checkpoint-every", "1", "--model.decoder.n-layers", "1")
SMALLER = {"demo": FEW_STEPS, "train": FEW_STEPS, "generate": ("--max-new-tokens", "4")}
"""Flags that are added to a verb, so that a test takes seconds."""

RUN_COMMANDS = """
import sys
from glassformer.apps.cli.main import run
for command in {commands!r}:
    code = run(command)
    if code:
        sys.exit(f"{{command}} ended with {{code}}")
"""
"""A program that runs commands in one process, which imports torch once."""


class Environment:
    """A virtual environment with a wheel, if any, and the packages of this environment, but not this checkout."""

    def __init__(self, folder: Path, wheel: Path | None) -> None:
        venv.create(folder / "venv", with_pip=False, symlinks=os.name != "nt")
        self.scripts = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        site = next((folder / "venv").rglob("site-packages"))
        to_here = [sys.executable, "-m", "pip", "--python", str(self.scripts / "python"), "--disable-pip-version-check"]
        if wheel is not None:
            subprocess.run([*to_here, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
        (site / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")  # files with .pth in it are not read
        self.work = folder / "empty"
        self.work.mkdir()
        self.settings = os.environ | {"GLASSFORMER_COURSE": "short", "XDG_CACHE_HOME": str(folder / "cache")}
        self.settings.pop("PYTHONPATH", None)

    def python(self, program: str) -> str:
        """Run a program in the empty folder and return its output; warnings are errors."""
        command = [str(self.scripts / "python"), "-W", "ignore::UserWarning", "-c", program]
        done = subprocess.run(command, cwd=self.work, env=self.settings, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from the sdist."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def environment(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    [wheel] = distributions.glob("*.whl")
    return Environment(tmp_path_factory.mktemp("installed"), wheel)


def notebooks() -> ModuleType:
    """Return the module that writes the notebooks."""
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "notebooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def smaller(command: str) -> list[str]:
    """Return the words of a command of a document, with the flags of `SMALLER`."""
    words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)]
    return [*words, *SMALLER.get(words[0], ())]


def test_the_wheel_has_all_files_of_the_package_and_nothing_else(distributions: Path) -> None:
    [wheel], [sdist] = distributions.glob("*.whl"), distributions.glob("*.tar.gz")
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"glassformer-{glassformer.__version__}.dist-info/"
    source = ROOT / "src"
    ours = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    ours = {name for name in ours if "__pycache__" not in name}
    chapters = {f"glassformer/apps/course/chapters/{path.name}" for path in (ROOT / "docs" / "course").glob("*.md")}
    assert {name for name in names if not name.startswith(info)} == ours | chapters
    assert {
        "glassformer/py.typed",
        "glassformer/config/recipes/python-docs.toml",
        "glassformer/apps/inspector/page/main.js",
    } <= names
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in ours} <= files
    assert {"README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "Makefile", "tests/conftest.py"} <= files


def test_the_wheel_is_used_and_has_its_command(environment: Environment) -> None:
    where = environment.python("import glassformer; print(glassformer.__file__)").strip()
    assert Path(where).is_relative_to(environment.scripts.parent)
    done = subprocess.run(
        [environment.scripts / "glassformer", "inspect", "--help"],
        cwd=environment.work,
        env=environment.settings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "glassformer inspect" in done.stdout, done.stderr


def test_the_wheel_is_built_from_what_the_dockerfile_copies(distributions: Path, tmp_path: Path) -> None:
    for line in re.findall(r"^COPY (.*)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE):
        *names, target = line.split()
        for name in names:
            assert f"!{name}\n" in (ROOT / ".dockerignore").read_text("utf-8")
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tmp_path / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, tmp_path / target)
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", str(tmp_path)]
    subprocess.run(command, capture_output=True, check=True)
    [wheel], [again] = distributions.glob("*.whl"), (tmp_path / "dist").glob("*.whl")
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()


def test_the_demo_and_a_tutorial_run(environment: Environment) -> None:
    tutorial = (ROOT / "docs" / "tutorials" / "own-text.md").read_text(encoding="utf-8")
    [write_text, *use_model] = re.findall(r"```python\n(.*?)```", tutorial, re.DOTALL)
    commands = [smaller(line) for line in re.findall(r"^\$ glassformer (.*)$", tutorial, re.MULTILINE)]
    assert ["train", "manual.txt", *FEW_STEPS] in commands and len(commands) >= 6
    program = RUN_COMMANDS.format(commands=[smaller("demo"), *commands])
    write_text = write_text.replace("120_000", "30_000")
    output = environment.python("\n".join([write_text, program, *use_model]))
    assert "longest passage of this text" in output and "bits per byte" in output
    assert (environment.work / "runs" / "manual" / "manifest.json").is_file()


RUN_NOTEBOOK = """
import nbclient, nbformat
made = nbformat.read("chapter.ipynb", as_version=4)
nbclient.NotebookClient(made, timeout=300).execute()
assert "glassformer" in made.cells[0].source and "%pip install" in made.cells[0].source
print(sum(cell.cell_type == "code" for cell in made.cells))
"""


@pytest.mark.parametrize("place", ["folder", "index"])
def test_a_chapter_runs_as_a_notebook(place: str, distributions: Path, tmp_path: Path) -> None:
    """The first cell installs the wheel beside it, or by its name; all other packages are there."""
    [wheel] = distributions.glob("*.whl")
    alone = Environment(tmp_path, None)
    alone.settings |= {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
    alone.settings |= {"JUPYTER_PATH": "", "JUPYTER_DATA_DIR": str(tmp_path / "jupyter")}  # no kernel of the user
    if place == "folder":
        shutil.copy(wheel, alone.work)
    else:
        alone.settings |= {"PIP_FIND_LINKS": str(distributions), "PIP_IGNORE_INSTALLED": "1"}  # the checkout's
    (alone.work / "chapter.ipynb").write_text(notebooks().notebook(COURSE / "05-attention.md"), "utf-8")
    assert int(alone.python(RUN_NOTEBOOK)) > 5
    assert list(tmp_path.rglob("site-packages/glassformer/py.typed")), "the first cell installs the wheel"
