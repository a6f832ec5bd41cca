"""Folders of earlier versions load, resume and give their recorded numbers."""

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from compatibility.make import MADE_IN, numbers
from glassformer import api
from glassformer.store.manifest import NAME, Manifest

HERE = Path(__file__).parent
ARCHIVES = sorted(HERE.glob("made_at_*.tar.xz"))
CLOSE = {"rel": 1e-5, "abs": 1e-5}
pytestmark = pytest.mark.filterwarnings("ignore:.* has former names of settings")


def close(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(close, found, expected))
    return bool(found == (pytest.approx(expected, **CLOSE) if isinstance(expected, float) else expected))


@pytest.fixture(scope="session", params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def old(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked folders, with recipes that name the data at its current place."""
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(request.param) as tar:
        tar.extractall(folder, filter="data")
    for recipe in folder.rglob("run.toml"):
        recipe.write_text(recipe.read_text("utf-8").replace(str(MADE_IN), str(folder)), "utf-8")
        written = Manifest.read(recipe.parent)
        Manifest.of(recipe.parent, written.kind, written.step, list(written.entries)).write(recipe.parent, NAME)
    return folder


def names() -> list[str]:
    with tarfile.open(ARCHIVES[0]) as tar:
        return sorted(json.loads(tar.extractfile("./numbers.json").read()))  # type: ignore[union-attr]


@pytest.mark.parametrize("name", names())
def test_an_old_model_gives_its_recorded_numbers(old: Path, name: str) -> None:
    expected = json.loads((old / "numbers.json").read_text("utf-8"))[name]
    found = numbers(old / name / "run")
    wrong = {key: (found[key], value) for key, value in expected.items() if not close(found[key], value)}
    assert not wrong


def test_former_names_are_reported_once(old: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"run\.toml has former names of settings: .*tokenizer\.flavour is now scheme"
    ) as warnings_:
        api.load(old / "masked" / "run")
    assert len(warnings_) == 1


@pytest.mark.parametrize("name", [name for name in names() if name != "vectors"])
def test_an_old_run_resumes_to_its_recorded_weights(old: Path, name: str, tmp_path: Path) -> None:
    before = old / name / "run"
    folder = tmp_path / "run"
    shutil.copytree(before, folder)
    api.resume(folder)
    expected, found = load_file(before / "model.safetensors"), load_file(folder / "model.safetensors")
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-4, atol=1e-6, msg=lambda text, key=key: f"{key}: {text}")
    assert any(
        not torch.equal(tensor, load_file(before / "checkpoints" / "step-3" / "model.safetensors")[key])
        for key, tensor in found.items()
    ), "steps were taken"
