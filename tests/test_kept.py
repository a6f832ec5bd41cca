"""Tiny runs that several runs of the tests share: their key, and who trains them."""

import os
from pathlib import Path

import pytest
import torch

import changed
import kept
import processors
from faults.children import fork, wait
from glassformer import api
from glassformer.store import checkpoint


def test_the_key_depends_on_every_source_of_training() -> None:
    training = changed.PACKAGE / "training"
    start = {training / "run.py", training / "checks.py", changed.PACKAGE / "tasks" / "task.py"}
    files = set(kept.sources())
    assert changed.closure({changed.TESTS / "runs.py", *start}) <= files and changed.PACKAGE / "api.py" in files
    assert not [path for path in files if "inspector" in path.parts], "a change there trains nothing again"


def test_a_changed_source_gives_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "a.py", tmp_path / "b.py"
    path.write_text("x = 1\n")
    other.write_text("x = 1\n")
    found = {kept.key_of([path]), kept.key_of([other]), kept.key_of([path, other]), kept.key_of([path], "2.9")}
    assert len(found) == 4 and kept.key_of([path]) in found
    path.write_text("x = 2\n")
    assert kept.key_of([path]) not in found
    real = kept.key.__wrapped__()
    assert kept.key.__wrapped__() == real
    monkeypatch.setattr(processors, "chosen", "sums-3")
    assert kept.key.__wrapped__() != real


def test_two_processes_train_a_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    (tmp_path / "key" / "text").mkdir(parents=True)  # as a stopped process leaves it
    train = kept.train

    def counted(name: str, folder: Path) -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        train(name, folder)

    monkeypatch.setattr(kept, "train", counted)
    children = [fork(lambda: kept.kept_run("text", tmp_path / "key")) for _ in range(2)]
    assert [wait(child) for child in children] == [0, 0]
    assert len(log.read_text().splitlines()) == 1
    folder = kept.kept_run("text", tmp_path / "key") / "run"
    assert checkpoint.steps(folder) == [10, 20] and api.load(folder).evaluate().n_tokens > 100
    assert len(log.read_text().splitlines()) == 1


def test_training_changes_no_later_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "train", lambda run, folder: (torch.rand(3), 1 / 0))
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        kept.kept_run("text", tmp_path / "key")
    assert torch.equal(torch.get_rng_state(), before)
    assert not (tmp_path / "key" / "text" / "run").exists(), "it is not taken for a finished run"


def test_only_the_last_keys_stay(tmp_path: Path) -> None:
    for i in range(kept.N_KEYS + 3):
        (tmp_path / str(i) / "text").mkdir(parents=True)
        os.utime(tmp_path / str(i), (i, i))
    kept.forget_old_keys(tmp_path / "0")
    stay = {"0", *(str(i + 4) for i in range(kept.N_KEYS - 1))}
    assert {path.name for path in tmp_path.iterdir()} == stay
