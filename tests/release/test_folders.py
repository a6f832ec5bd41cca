"""Folders that a released version wrote load from then on, and give the same values.

`make_folders.py` made them. A format may change only if the folders of all releases still load.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer.common import files
from glassformer.store import checkpoint
from glassformer.store.manifest import FORMAT_VERSION
from glassformer.training.trainer_state import read_progress
from tolerances import NETWORK, near

from .make_folders import FOLDERS, RUNS, values

pytestmark = pytest.mark.filterwarnings("ignore:.* was not trained to start a text")
STORED = [pytest.param(path, id=f"{path.parent.name}-{path.name}") for path in sorted(FOLDERS.glob("*/*"))]


def test_every_kind_has_a_folder_of_the_first_release() -> None:
    assert {path.name for path in (FOLDERS / "0.1.0").iterdir()} == {*RUNS, "run"}


@pytest.mark.parametrize("folder", STORED)
def test_a_folder_of_a_release_gives_the_values_that_it_gave(folder: Path) -> None:
    expected: dict[str, Any] = json.loads((folder / "expected.json").read_text())
    found = values(glassformer.load(folder, device="cpu"), folder.name)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == near(value, terms=NETWORK)


@pytest.mark.parametrize("version", sorted(path.name for path in FOLDERS.iterdir()))
def test_a_checkpoint_of_a_release_has_its_training_state(version: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDERS / version / "run", tmp_path / "run")
    [step] = checkpoint.steps(folder)
    stored = checkpoint.path_of(folder, step)
    progress, state = read_progress(stored), checkpoint.load_state(stored)
    assert progress.step == 2
    assert {name.rpartition("/")[2] for name in state.optimizer} >= {"exp_avg", "exp_avg_sq"}
    assert glassformer.load(stored, device="cpu").run.train.max_steps == 2
    numbers = files.read_json(stored / checkpoint.STATE)
    assert [*progress.stored().items()] == [*numbers.items()], "the names in state.json stay"


def test_the_formats_of_the_first_release_have_the_version_one() -> None:
    for path in (FOLDERS / "0.1.0").rglob("manifest.json"):
        assert json.loads(path.read_text())["format_version"] == 1 <= FORMAT_VERSION
