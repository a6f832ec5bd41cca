"""Faults 21 to 23: pickles, code and paths out of a folder. Every manifest is correct, as an attacker can write one."""

import io
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from faults.hostile import edit_json, plant, read_spoiled, refused, sign
from faults.tally import record
from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config import recipes
from glassformer.config.run import LabelData, PairData
from glassformer.data.labels import LabelCorpus
from glassformer.data.pairs import PairCorpus
from glassformer.data.texts import read_documents
from glassformer.store import checkpoint
from glassformer.store.checkpoint import AVERAGE, OPTIMIZER, STATE
from glassformer.store.model_directory import read_model
from glassformer.tokenization.tokenizer import Tokenizer

# 21: pickles


class Payload:
    """A payload that makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.mark),)


def pickles(mark: Path) -> dict[str, bytes]:
    """Return a pickle of every kind; all except the oldest, which is ASCII, are identified by their first bytes."""
    found = {f"protocol {n}": pickle.dumps(Payload(mark), n) for n in (0, 2, 3, 4, 5)}
    objects = np.array([Payload(mark)], dtype=object)
    for name, write in {
        "torch.save": lambda file: torch.save(Payload(mark), file),
        "torch.save, old": lambda file: torch.save(Payload(mark), file, _use_new_zipfile_serialization=False),
        "numpy array": lambda file: np.save(file, objects, allow_pickle=True),
        "numpy archive": lambda file: np.savez(file, weights=objects),
    }.items():
        buffer = io.BytesIO()
        write(buffer)
        found[name] = buffer.getvalue()
    return found


def model_with(name: str) -> Callable[[Path, Path], None]:
    """Return an attack: a file of a model directory is the pickle."""

    def attack(path: Path, directory: Path) -> None:
        plant(directory, name, path.read_bytes())
        read_model(directory)

    return attack


def state_with(name: str) -> Callable[[Path, Path], None]:
    """Return an attack: a file of a checkpoint's training state is the pickle."""

    def attack(path: Path, directory: Path) -> None:
        step = checkpoint.path_of(directory, 5)
        plant(step, name, path.read_bytes())
        checkpoint.load_state(step)

    return attack


def folder_with(name: str) -> Callable[[Path, Path], None]:
    """Return an attack: a folder of another library, with the pickle under the usual name."""

    def attack(path: Path, directory: Path) -> None:
        other = directory.parent / "other"
        other.mkdir(exist_ok=True)
        shutil.copyfile(path, other / name)
        api.load(other)

    return attack


def data_as(suffix: str, read: Callable[[Path], object]) -> Callable[[Path, Path], None]:
    """Return an attack: the data is the pickle."""

    def attack(path: Path, directory: Path) -> None:
        renamed = directory.parent / f"data{suffix}"
        shutil.copyfile(path, renamed)
        read(renamed)

    return attack


PLACES: dict[str, Callable[[Path, Path], None]] = {
    **{name: model_with(name) for name in ("model.safetensors", "config.json", "tokenizer.json", "labels.json")},
    **{name: model_with(name) for name in ("manifest.json", "generation.json", "run.toml")},
    **{name: state_with(name) for name in (STATE, OPTIMIZER, AVERAGE)},
    "pytorch_model.bin": folder_with("pytorch_model.bin"),
    "distributed checkpoint": folder_with(".metadata"),
    "the model directory": lambda path, directory: read_model(path),
    "a tokenizer": lambda path, directory: Tokenizer.load(path) and None,
    "a text": data_as(".txt", lambda path: list(read_documents([path]))),
    "a text called .pt": data_as(".pt", lambda path: list(read_documents([path]))),
    "records": data_as(".jsonl", lambda path: list(read_documents([path]))),
    "pairs": data_as(".tsv", lambda path: PairCorpus(PairData(path=str(path))).whole()),
    "labels": data_as(".csv", lambda path: LabelCorpus(LabelData(path=str(path))).whole()),
}


@pytest.mark.parametrize("place", PLACES)
def test_fault_21_a_pickle_is_refused_with_advice_and_never_runs(directory: Path, tmp_path: Path, place: str) -> None:
    mark = tmp_path / "it ran"
    pickle.loads(pickles(mark)["protocol 4"])
    assert mark.exists(), "the payload must run when it is unpickled"
    mark.rmdir()
    manifest = (directory / "manifest.json").read_bytes()
    for kind, content in pickles(mark).items():
        path = tmp_path / "weights.pt"
        path.write_bytes(content)
        (directory / "manifest.json").write_bytes(manifest)
        if kind == "protocol 0":  # ASCII: valid as a text, and refused for another reason in other files
            try:
                PLACES[place](path, directory)
            except UserError as error:
                assert "\n" not in str(error)
        elif place == "manifest.json":
            (directory / "manifest.json").write_bytes(content)
            refused(read_spoiled(directory), "manifest.json", "pickle")
        else:
            refused(lambda path=path: PLACES[place](path, directory), "is a pickle", "safetensors.torch.save_file")
        assert not mark.exists(), f"a {kind} ran"
    record(21, len(pickles(mark)), len(pickles(mark)), "none: every kind in every place")


# 22: code that a configuration names


@pytest.mark.parametrize("key", ["auto_map", "trust_remote_code", "custom_pipelines", "architectures"])
def test_fault_22_code_in_a_model_folder_never_runs(directory: Path, tmp_path: Path, key: str) -> None:
    mark = tmp_path / "it ran"
    for name in ("modeling_evil.py", "conftest.py", "__init__.py", "setup.py"):
        (directory / name).write_text(f"open({str(mark)!r}, 'w')")
    sign(directory)
    read_model(directory)  # such files are ignored
    (directory / "tokenizer_config.json").write_text(json.dumps({key: "modeling_evil.Tokenizer"}))
    sign(directory)
    read_model(directory)
    edit_json(directory, "config.json", lambda value: value | {key: {"AutoModel": "modeling_evil.Model"}})
    refused(read_spoiled(directory), f"unknown key {key}", "config.json")
    assert not mark.exists() and "modeling_evil" not in sys.modules
    record(22, 3, 3, "none")


# 23: paths out of the folder


def resign(directory: Path, name: str) -> None:
    """Write a manifest that also lists a file of any name, with a correct digest."""
    from glassformer.store import manifest

    value = json.loads((directory / "manifest.json").read_text())
    del value["sha256"]
    value["files"][name] = {"bytes": 1, "sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}
    (directory / "manifest.json").write_text(json.dumps({"sha256": manifest._digest(value), **value}))


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/hostname", "checkpoints/../../x", ".", "", "..", "model.safetensors\0", "\0", "link/x"],
)
def test_fault_23_a_manifest_with_outside_paths_is_refused(directory: Path, name: str) -> None:
    (directory.parent / "x").write_text("x")
    (directory / "link").symlink_to(directory.parent)
    resign(directory, name)
    refused(read_spoiled(directory), "manifest.json", "outside the folder")
    record(23, 1, 1, "none")


@pytest.mark.parametrize(("name", "words"), [("a" * 5000, "File name too long"), ("b\nc", "'b\\nc' is missing")])
def test_fault_23_a_manifest_with_impossible_names_is_refused(directory: Path, name: str, words: str) -> None:
    resign(directory, name)
    refused(read_spoiled(directory), words)
    record(23, 1, 1, "none")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "labels.json", "run.toml"])
def test_fault_23_a_link_is_not_followed_out_of_the_folder(directory: Path, name: str) -> None:
    (directory / name).rename(directory.parent / name)
    (directory / name).symlink_to(directory.parent / name)
    refused(read_spoiled(directory), name, "outside the folder")
    (directory / name).unlink()
    (directory / name).symlink_to(directory / name)  # a link to itself
    refused(read_spoiled(directory), name)
    record(23, 2, 2, "none")


@pytest.mark.parametrize("name", ["source_tokenizer.json", "labels.json", AVERAGE])
def test_fault_23_a_file_missing_in_the_manifest_is_not_read(directory: Path, name: str) -> None:
    folder = checkpoint.path_of(directory, 5) if name == AVERAGE else directory
    (folder / name).unlink(missing_ok=True)
    sign(folder)
    (folder / name).symlink_to("/dev/zero")
    if name == AVERAGE:
        assert checkpoint.load_state(folder).average is None
    else:
        stored = read_model(folder)
        assert stored.tokenizers.separate_source is None or stored.labels == ()
    record(23, 1, 1, "none")


def test_fault_23_names_with_a_nul_are_refused(tmp_path: Path) -> None:
    refused(lambda: api.load("a\0b"), r"folder: expected a path, got a text of 3 characters: 'a\x00b'")
    refused(lambda: Tokenizer.load(Path("a\0b")), r"path: expected a path, got a text of 3 characters: 'a\x00b'")
    run = recipes.parse('[data]\npath = "a\\u0000b"\n', "recipe")
    refused(lambda: api.train(run, tmp_path / "out"), "contains non-printable characters")
    record(23, 3, 3, "none")


def test_fault_23_links_and_pipes_in_a_folder_of_texts_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "a.txt").write_text("open")
    (folder / "b.txt").symlink_to(tmp_path / "secret.txt")
    refused(lambda: list(read_documents([folder])), "b.txt is a link to a file outside")
    (folder / "b.txt").unlink()
    os.mkfifo(folder / "c.txt")
    refused(lambda: list(read_documents([folder])), "c.txt is not a regular file")
    (folder / "c.txt").unlink()
    (folder / "d.txt").symlink_to(folder / "a.txt")
    assert list(read_documents([folder])) == ["open", "open"]
    record(23, 2, 2, "none")
