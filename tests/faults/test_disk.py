"""Faults 9 to 12: errors of the disk in written files and during writes."""

import errno
import itertools
import os
import random
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.children import at_touch, done
from faults.tally import count, injected
from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config.run import Run
from glassformer.store import checkpoint
from glassformer.store.manifest import NAME, Manifest
from glassformer.store.model_directory import read_model
from glassformer.training.trainer_state import read_progress
from runs import Recording, remains, tiny_run, write_text

FILES = [
    "config.json",
    "generation.json",
    "manifest.json",
    "model.safetensors",
    "run.toml",
    "tokenizer.json",
    "training_state/average.safetensors",
    "training_state/optimizer.safetensors",
    "training_state/state.json",
    "training_state/weights.safetensors",
]


N_STEPS = 4


def small_run(folder: Path, **train: Any) -> Run:
    times = {"max_steps": N_STEPS, "eval_every": 2, "checkpoint_every": 1, "log_every": 1}
    return tiny_run(write_text(folder), ema_decay=0.9, **(times | train))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disk")
    return api.train(small_run(folder), folder / "run").folder


@pytest.fixture
def run_folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def is_seen(folder: Path) -> bool:
    """Return whether the manifest of a checkpoint detects damage, before any file is parsed."""
    try:
        Manifest.read(folder).verify(folder)
    except UserError:
        return True
    return False


def damaged_in_turn(folder: Path, file: str, damages: list[Callable[[bytes], bytes]]) -> int:
    """Return how many damages to a file are detected."""
    path = folder / file
    whole, seen = path.read_bytes(), 0
    for damage in damages:
        path.write_bytes(damage(whole))
        seen += is_seen(folder)
    path.write_bytes(whole)
    assert not is_seen(folder)
    return seen


def flipped(rng: random.Random) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        place = rng.randrange(8 * len(data))
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        return bytes(changed)

    return damage


@pytest.mark.parametrize("file", FILES)
def test_9_every_flipped_bit_is_detected(run_folder: Path, file: str) -> None:
    rng, n = random.Random(file), count(60, 300)
    with injected(9, "the file's name", n) as tally:
        tally.survived = damaged_in_turn(checkpoint.path_of(run_folder, N_STEPS), file, [flipped(rng)] * n)
    assert tally.survived == n


@pytest.mark.parametrize("file", FILES)
def test_10_truncated_empty_and_longer_files_are_detected(run_folder: Path, file: str) -> None:
    rng, n = random.Random(file), count(20, 100)
    damages: list[Callable[[bytes], bytes]] = [lambda data: data[: rng.randrange(len(data))]] * n
    damages += [lambda data: b"", lambda data: data + b"\0"]
    with injected(10, "the file's name", len(damages)) as tally:
        tally.survived = damaged_in_turn(checkpoint.path_of(run_folder, N_STEPS), file, damages)
    assert tally.survived == len(damages)


@pytest.mark.parametrize("file", FILES)
def test_10_a_missing_file_is_detected_and_an_extra_file_is_not_read(run_folder: Path, file: str) -> None:
    folder = checkpoint.path_of(run_folder, N_STEPS)
    with injected(10, "-", n=2) as tally:
        (folder / f"{file}.bak").write_bytes(b"\x80\x04 not ours")
        assert not is_seen(folder)
        assert read_model(folder).manifest.step == N_STEPS
        tally.survived += 1
        (folder / file).unlink()
        assert is_seen(folder)
        tally.survived += 1


@pytest.mark.parametrize("file", FILES)
def test_11_the_newest_intact_checkpoint_is_resumed(run_folder: Path, finished: Path, file: str) -> None:
    before = remains(finished)
    path = checkpoint.path_of(run_folder, N_STEPS) / file
    path.write_bytes(flipped(random.Random(file))(path.read_bytes()))
    reporter = Recording()
    with injected(11, "the file's name", n=1) as tally:
        api.resume(run_folder, reporter)
        assert any(f"step-{N_STEPS}" in line and "trying the previous checkpoint" in line for line in reporter.messages)
        assert remains(run_folder) == before
        tally.survived = 1


def test_11_a_run_with_only_damaged_checkpoints_is_unchanged(run_folder: Path) -> None:
    for step in checkpoint.steps(run_folder):
        (checkpoint.path_of(run_folder, step) / NAME).write_text("{}")
    before = {path: path.read_bytes() for path in run_folder.rglob("*") if path.is_file()}
    with injected(11, "-", n=2) as tally:
        for verb in (lambda: api.resume(run_folder), lambda: api.train(small_run(run_folder.parent), run_folder)):
            with pytest.raises(UserError, match=r"no intact checkpoint|already contains a run"):
                verb()
            after = {path: path.read_bytes() for path in run_folder.rglob("*") if path.is_file()}
            assert after == before
            tally.survived += 1


REFUSALS = {
    "ENOSPC": (errno.ENOSPC, False),
    "EACCES": (errno.EACCES, False),
    "EROFS": (errno.EROFS, False),
    "EIO": (errno.EIO, False),
    "EIO once": (errno.EIO, True),
}


@pytest.fixture(scope="module")
def n_touches(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, int]:
    """The number of accesses to the disk of a run that saves in the background, and of one that does not."""
    found = {}
    for background in (True, False):
        with at_touch(10**9, lambda: None) as touches:
            api.train(small_run(finished.parent, background_saving=background), tmp_path_factory.mktemp("n") / "run")
        found[background] = touches.n
    return found


@pytest.mark.parametrize(
    ("refusal", "background"), [*zip(REFUSALS, itertools.cycle([True, False]), strict=False), ("EIO once", False)]
)
def test_12_a_disk_error_at_any_access_loses_no_state(
    refusal: str, background: bool, n_touches: dict[bool, int], finished: Path, tmp_path: Path
) -> None:
    """The run continues or ends with one sentence; the old state is kept, and resuming ends with equal weights."""
    code, once = REFUSALS[refusal]
    expected = remains(finished)
    run = small_run(finished.parent, background_saving=background)

    def refuse() -> None:
        raise OSError(code, os.strerror(code))

    n = n_touches[background]
    every = count(169, 5)
    first = 1 + list(REFUSALS).index(refusal) * every // len(REFUSALS)  # each with different places
    with injected(12, f"every {every}. of {n} touches") as tally:
        for k in range(first, n + 1, every):
            folder = tmp_path / str(k) / "run"
            folder.parent.mkdir()
            tally.injected += 1
            with at_touch(k, refuse, once=once) as touched:
                try:
                    api.train(run, folder)
                except UserError as error:
                    assert os.strerror(code) in str(error) and "\n" not in str(error), f"touch {k}"
            assert touched.n >= k
            if checkpoint.steps(folder):
                checkpoint.newest(folder, lambda text: None)
                api.resume(folder)
            else:
                api.train(run, folder)
            found = remains(folder)
            assert all(found[name] == expected[name] for name in expected if name != "manifest"), f"touch {k}"
            assert not list(folder.rglob("*.tmp*")), f"touch {k}"
            tally.survived += 1
            shutil.rmtree(folder.parent)


@pytest.mark.parametrize("limit", [3_000, 20_000, 60_000])
def test_12_a_limit_of_file_size_is_one_sentence(limit: int, finished: Path, tmp_path: Path) -> None:
    """The system stops a write in the middle, as on a full disk."""
    run = small_run(finished.parent)
    folder = tmp_path / "run"

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        with pytest.raises(UserError, match="cannot write"):
            api.train(run, folder)

    with injected(12, "-", n=1) as tally:
        assert done(work) == 0
        assert checkpoint.steps(folder) == [] and not list(folder.rglob("*.tmp*"))
        assert done(lambda: api.train(run, folder)) == 0
        assert remains(folder)["tensors"] == remains(finished)["tensors"]
        tally.survived = 1


def test_12_a_run_folder_that_disappears_is_named(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = small_run(finished.parent)
    saved = checkpoint.save

    def gone(folder: Path, step: int, *args: Any) -> Path:
        if step == 2:
            shutil.rmtree(folder)
            folder.write_text("a file in its place")
        return saved(folder, step, *args)

    monkeypatch.setattr(checkpoint, "save", gone)
    with injected(12, "-", n=1) as tally:
        with pytest.raises(UserError, match="cannot write"):
            api.train(run, tmp_path / "run")
        tally.survived = 1


class FullDisk:
    """A disk without room for `name`: `shutil.copyfile` writes half of the file and then raises ENOSPC."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        copyfile = shutil.copyfile

        def copied(source: Path, to: Path) -> Path:
            if source.name != name:
                return copyfile(source, to)
            to.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(shutil, "copyfile", copied)


@pytest.mark.parametrize(
    ("name", "background"), [("config.json", True), ("model.safetensors", False), ("run.toml", True)]
)
def test_12_a_full_disk_during_publication_loses_nothing(
    name: str, background: bool, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is kept, no partly written file is left, and the run resumes with its best step."""
    run, folder = small_run(finished.parent, background_saving=background), tmp_path / "run"
    with monkeypatch.context() as patch:
        FullDisk(patch, name)
        with pytest.raises(UserError, match=r"cannot write .*: No space left on device"):
            api.train(run, folder)
        assert checkpoint.steps(folder) == [1] and not list(folder.rglob("*.tmp*"))
        reporter = Recording()
        with pytest.raises(UserError, match=r"cannot write .*: No space left on device"):
            api.resume(folder, reporter)
        assert not [line for line in reporter.messages if "restarts" in line], "nothing was lost"
        assert not list(folder.rglob("*.tmp*"))
    reporter = Recording()
    api.resume(folder, reporter)
    assert not [line for line in reporter.messages if "restarts" in line]
    assert remains(folder)["tensors"] == remains(finished)["tensors"]


def test_12_a_lost_best_checkpoint_is_reported(finished: Path, run_folder: Path) -> None:
    best = read_progress(checkpoint.path_of(run_folder, N_STEPS)).best_step
    (run_folder / NAME).unlink()
    assert best == N_STEPS
    state = checkpoint.path_of(run_folder, N_STEPS) / checkpoint.STATE
    state.write_text(state.read_text().replace('"best_step": 4', '"best_step": 2'))
    names = list(Manifest.read(checkpoint.path_of(run_folder, N_STEPS)).entries)
    Manifest.of(state.parents[1], "checkpoint", N_STEPS, names).write(state.parents[1])
    reporter = Recording()
    api.resume(run_folder, reporter)
    assert [line for line in reporter.messages if "the search for the best step restarts" in line]
    assert Manifest.read(run_folder).step == N_STEPS
