"""Finished tiny runs in `.venv/tiny`, which also the next run of the tests reads: each is trained once for its key.

The key is made of everything that the runs depend on: the sources of training, the versions of the libraries, the
processor, and the folder, because a run has the path of its data. Nothing may be written into these folders.
"""

import hashlib
import json
import shutil
import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch

import processors
from glassformer import api
from glassformer.evaluation.loss import LossReport
from glassformer.nn.kernels import processor
from glassformer.store.model_directory import read_run
from glassformer.tasks.reporting import Outcome
from runs import TINY

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "glassformer"
KEPT = TESTS.parent / ".venv" / "tiny"
WITHOUT = ("apps", "inspection")
"""Folders of the source that no run of `TINY` needs."""
N_KEYS = 6
"""Keys that stay: those of a few kinds of processor, before and after a change."""


def sources() -> list[Path]:
    """Return the files that a kept run depends on."""
    found = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in WITHOUT]
    return [*sorted(found), *(TESTS / name for name in ("conftest.py", "kept.py", "processors.py", "runs.py"))]


def key_of(files: list[Path], *facts: object) -> str:
    """Return a key that differs if the name or the content of a file differs, or a fact."""
    made = hashlib.sha256(repr(facts).encode())
    for path in files:
        made.update(f"{path}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return made.hexdigest()[:16]


@cache
def key() -> str:
    versions = sys.version, torch.__version__, np.__version__
    return key_of(sources(), *versions, processor.this, processors.chosen, KEPT)


def kept_run(name: str, under: Path | None = None) -> Path:
    """Return the folder of a run of `TINY`: its data, the finished run in `run`, and its outcome.

    The first process that needs the run trains it for all. `under` is the folder of the key.
    """
    from filelock import FileLock

    under = under or KEPT / key()
    folder = under / name
    under.mkdir(parents=True, exist_ok=True)
    with FileLock(under / f"{name}.lock"):
        if not (folder / "run").exists():
            train(name, folder)
            forget_old_keys(under)
    return folder


def train(name: str, folder: Path) -> None:
    """Train a run; the folder `run` exists when all else is complete."""
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was stopped
    folder.mkdir()
    # Neither the later draws of a test nor the weights of the run depend on which test trained it.
    with torch.random.fork_rng(devices=[]), processors.order_of_all_tests():
        outcome = api.train(TINY[name](folder), folder / "unfinished")
    found = {"reports": {split: vars(report) for split, report in outcome.reports.items()}, "notes": outcome.notes}
    (folder / "outcome.json").write_text(json.dumps(found), "utf-8")
    outcome.folder.rename(folder / "run")


def forget_old_keys(under: Path) -> None:
    """Remove all keys but the last ones that trained a run."""
    under.touch()
    newest = sorted(under.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest[N_KEYS:]:
        shutil.rmtree(path, ignore_errors=True)


def outcome_of(name: str) -> Outcome:
    """Return the outcome of a kept run, with its folder."""
    folder = kept_run(name)
    found = json.loads((folder / "outcome.json").read_text("utf-8"))
    reports = {split: LossReport(**values) for split, values in found["reports"].items()}
    return Outcome(folder / "run", reports, read_run(folder / "run"), tuple(found["notes"]))


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the time of the last change of each file."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): ((stat := path.stat()).st_size, stat.st_mtime_ns) for path in files}
