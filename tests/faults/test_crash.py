"""Faults 1 to 8 and 19: a run that dies at any moment is resumed and ends with equal bits."""

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from faults.children import DIED, DIED_DELETING, at_touch, die, done, fork, killed, wait, wait_until
from faults.tally import count, injected
from glassformer import api
from glassformer.apps.cli import checkpoint as checkpoints
from glassformer.common.errors import Interrupted, UserError
from glassformer.config.run import Run
from glassformer.config.train import EarlyStopping
from glassformer.store import checkpoint
from glassformer.store.lock import locked
from glassformer.tasks.reporting import Silent
from glassformer.tasks.task import trainable_task
from held import holding
from runs import MODEL, label_run, pair_run, remains, tiny_run, write_text

N_STEPS = 6
TIMES = {"max_steps": N_STEPS, "eval_every": 3, "checkpoint_every": 1, "log_every": 1}


def dropout_run(folder: Path, **train: Any) -> Run:
    model = replace(MODEL, residual_dropout=0.2, embedding_dropout=0.1)
    return tiny_run(write_text(folder, 30), model=model, ema_decay=0.9, grad_accumulation=2, **(TIMES | train))


LARGE = {"batch_tokens": 400}  # an epoch ends within a run
KINDS = {
    "text": dropout_run,
    "pairs": lambda folder: pair_run(folder, data=LARGE, **TIMES),
    "labels": lambda folder: label_run(
        folder, data=LARGE, **TIMES, early_stopping=EarlyStopping("accuracy", patience=50)
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    """A run, and its result without a fault."""
    folder = tmp_path_factory.mktemp(request.param)
    run = KINDS[request.param](folder)
    assert done(lambda: api.train(run, folder / "whole")) == 0  # with the same threads as the children below
    return run, remains(folder / "whole")


def go_on(run: Run, folder: Path, reporter: Silent | None = None) -> None:
    """Resume a run like a user, or start it if there is no checkpoint."""
    if checkpoint.steps(folder):
        api.resume(folder, reporter)
    else:
        api.train(run, folder, reporter)


def end(run: Run, folder: Path) -> dict[str, Any]:
    assert done(lambda: go_on(run, folder)) == 0
    assert not list(folder.rglob("*.tmp*")), "a partly written file is left"
    return remains(folder)


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Compare all except the manifest, which also covers the settings of device and time."""
    return all(found[name] == expected[name] for name in expected if name != "manifest")


def cases(kind: str, n: int) -> Iterator[random.Random]:
    yield from (random.Random(f"{kind}{seed}") for seed in range(n))


class Counting(Silent):
    """A reporter of a child: every step appends a byte to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def step(self, step: int, max_steps: int, values: dict[str, float]) -> None:
        with self.path.open("ab") as file:
            file.write(b".")

    def has_seen(self, n: int) -> bool:
        return self.path.exists() and self.path.stat().st_size >= n


N_WRITING = 30
"""Accesses to the disk of a save while its folder is partly written; a save has more."""


def waiting_save(step: int, place: int, waits: Path) -> Callable[..., Path]:
    """Return `checkpoint.save` that waits for ever at an access to the disk, after it has made the file `waits`.

    It waits in the save of a step, at one of the accesses of the thread that saves after the first file was begun.
    """
    save = checkpoint.save

    def saved(folder: Path, of_step: int, *others: Any) -> Path:
        n_touches, saver = 0, threading.current_thread()

        def touched() -> None:
            nonlocal n_touches
            if threading.current_thread() is saver and list((folder / "checkpoints").glob(f".step-{step}.tmp-*")):
                n_touches += 1
                if n_touches == place + 1:
                    waits.touch()
                    threading.Event().wait()

        with at_touch(1, touched) if of_step == step else contextlib.nullcontext():
            return save(folder, of_step, *others)

    return saved


@pytest.mark.parametrize("background", [True, False])
def test_1_and_19_a_run_survives_sigkill_during_a_save(
    whole: tuple[Run, dict[str, Any]], background: bool, tmp_path: Path
) -> None:
    """The save waits at one of its accesses to the disk. A partly written file proves that the signal arrived there."""
    run, expected = whole
    run = replace(run, train=replace(run.train, background_saving=background))
    n = count(2, 17)
    with injected(19 if background else 1, "save0 and on", n) as tally:
        for number, rng in enumerate(cases("save", n)):
            folder, waits = tmp_path / str(number), tmp_path / f"{number}.waits"
            step, place = rng.randrange(1, N_STEPS), rng.randrange(N_WRITING)

            def half_written(folder: Path = folder, step: int = step) -> list[Path]:
                return list((folder / "checkpoints").glob(f".step-{step}.tmp-*"))

            def train(folder: Path = folder, step: int = step, place: int = place, waits: Path = waits) -> None:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(checkpoint, "save", waiting_save(step, place, waits))
                    api.train(run, folder)

            assert killed(train, waits.exists, rng, 0.002) == -signal.SIGKILL
            assert half_written()
            assert same(end(run, folder), expected)
            tally.survived += 1
            shutil.rmtree(folder)


def test_2_a_run_survives_several_sigkills_at_random_steps(whole: tuple[Run, dict[str, Any]], tmp_path: Path) -> None:
    """The run is killed three times, each time after new steps and a new checkpoint, in the step or before the next."""
    run, expected = whole
    n, times = count(1, 7), [1, 1, 2]
    held = tmp_path / "held"
    held.touch()
    with injected(2, f"step0 and on, {len(times)} kills in each run", n * len(times)) as tally:
        for number, rng in enumerate(cases("step", n)):
            folder, step = tmp_path / str(number), 0
            for n_steps in rng.sample(times, len(times)):
                step += n_steps

                def work(folder: Path = folder, step: int = step) -> None:
                    with holding(step + 1, held):
                        go_on(run, folder)

                def has_saved(folder: Path = folder, step: int = step) -> bool:
                    return max(checkpoint.steps(folder), default=0) == step

                assert killed(work, has_saved, rng, 0.005) == -signal.SIGKILL
                assert has_saved()
            assert same(end(run, folder), expected)
            tally.survived += len(times)


@pytest.mark.parametrize("background", [True, False])
def test_3_and_4_the_process_dies_between_any_two_disk_accesses(
    whole: tuple[Run, dict[str, Any]], background: bool, tmp_path: Path
) -> None:
    """The process dies before, in and after each write, and before each fsync, rename, replace, mkdir, unlink and
    rmdir."""
    run, expected = whole
    run = replace(run, train=replace(run.train, background_saving=background))
    with at_touch(10**9, die) as touches:
        api.train(run, tmp_path / "counted")  # the whole run has prepared the tokens, so this one only reads them
    every, every_deletion = count(199, 6), count(24, 2)
    kind = ["tiny", "pairs", "labels"].index(run.name)
    first = 1 + (2 * kind + background) * every // 6  # each with different places, together all places
    places = sorted({*range(first, touches.n + 1, every), *touches.deleting[kind::every_deletion]})
    of = f"{touches.n} touches" + (" or so" if background else "")
    with injected(3, f"every {every}. of {of}") as tally, injected(4, f"every {every_deletion}. there") as deletions:
        for k in places:
            folder = tmp_path / str(k)

            def work(folder: Path = folder, k: int = k) -> None:
                with at_touch(k, die):
                    api.train(run, folder)

            code = done(work)
            assert code in (DIED, DIED_DELETING)
            counted = tally if code == DIED else deletions
            counted.injected += 1
            survives = same(end(run, folder), expected)
            counted.survived += survives
            assert survives, f"touch {k}"
            shutil.rmtree(folder)
    assert tally.survived and (deletions.survived or background)  # background saving shifts the touches


def test_5_signals_save_and_exit_with_their_code(whole: tuple[Run, dict[str, Any]], tmp_path: Path) -> None:
    run, expected = whole
    n, held = count(2, 7), tmp_path / "held"
    held.touch()
    with injected(5, "signal0 and on", n) as tally:
        for number, rng in enumerate(cases("signal", n)):
            folder, which = tmp_path / str(number), (signal.SIGTERM, signal.SIGINT)[number % 2]
            counting, n_steps = Counting(tmp_path / f"{number}.steps"), rng.randrange(1, N_STEPS - 1)

            def work(folder: Path = folder, counting: Counting = counting, n_steps: int = n_steps) -> None:
                try:
                    with holding(n_steps + 1, held):
                        api.train(run, folder, counting)
                except Interrupted as stop:
                    os._exit(stop.exit_code)

            code = killed(work, lambda counting=counting, n_steps=n_steps: counting.has_seen(n_steps), rng, 0.01, which)
            assert code == 128 + which and checkpoint.steps(folder)
            assert same(end(run, folder), expected)
            tally.survived += 1


def test_5_the_end_of_max_time_stops_like_a_signal(whole: tuple[Run, dict[str, Any]], tmp_path: Path) -> None:
    run, expected = whole
    short = replace(run, train=replace(run.train, max_time=1e-9))
    with injected(5, "-", n=2) as tally:
        with pytest.raises(
            Interrupted, match=rf"train\.max_time: saved at step 1 of {N_STEPS}; continue with"
        ) as caught:
            api.train(short, tmp_path / "run")
        assert caught.value.exit_code == 75
        with pytest.raises(Interrupted, match=f"step 2 of {N_STEPS}"):
            api.resume(tmp_path / "run")
        assert done(lambda: api.resume(tmp_path / "run", flags={"train.max-time": "0"})) == 0
        assert same(remains(tmp_path / "run"), expected)
        tally.survived = 2


def test_6_a_run_resumes_after_every_step_of_an_epoch(whole: tuple[Run, dict[str, Any]], tmp_path: Path) -> None:
    run, expected = whole

    def one_step_a_time() -> None:
        short = replace(run, train=replace(run.train, max_time=1e-9))
        with pytest.raises(Interrupted):
            api.train(short, tmp_path / "run")
        for _ in range(run.train.max_steps - 2):
            with pytest.raises(Interrupted):
                api.resume(tmp_path / "run")
        api.resume(tmp_path / "run")

    with injected(6, "after every step", n=run.train.max_steps - 1) as tally:
        assert done(one_step_a_time) == 0
        assert same(remains(tmp_path / "run"), expected)
        tally.survived = tally.injected


def test_7_a_preparation_that_dies_leaves_nothing_that_is_used(
    whole: tuple[Run, dict[str, Any]], tmp_path: Path
) -> None:
    run, expected = whole
    every, code = count(13, 1), DIED
    with injected(7, f"every {every}. touch of the disk") as tally:
        for k in range(1, 1000, every):
            cache = tmp_path / f"cache{k}"
            has_cache = hasattr(run.data, "cache_dir")
            fresh = replace(run, data=replace(run.data, cache_dir=str(cache))) if has_cache else run

            def work(fresh: Run = fresh, k: int = k) -> None:
                with at_touch(k, die):
                    material = trainable_task(fresh).open(fresh)
                    tokenizers = material.tokenizers(fresh, Silent())
                    material.prepare(fresh, tokenizers, Silent())

            if (code := done(work)) == 0:  # there are no more
                break
            assert code == DIED
            tally.injected += 1
            survives = same(end(fresh, tmp_path / str(k)), expected)
            tally.survived += survives
            assert survives, f"touch {k}"
    assert code == 0


def test_8_a_second_trainer_is_refused_and_a_dead_one_is_ignored(tmp_path: Path) -> None:
    run = dropout_run(tmp_path)
    api.train(run, tmp_path / "run")
    before = remains(tmp_path / "run")
    ready = tmp_path / "ready"

    def owner() -> None:
        with locked(tmp_path / "run"):
            ready.touch()
            time.sleep(600)

    child = fork(owner)
    wait_until(ready.exists, child)
    with injected(8, "-", n=3) as tally:
        for verb in (lambda: api.resume(tmp_path / "run"), lambda: checkpoints.prune(tmp_path / "run")):
            refused(verb, f"is being trained by process {child} on")
            tally.survived += 1
        os.kill(child, signal.SIGKILL)
        wait(child)
        assert (tmp_path / "run" / ".owner.json").exists()
        api.resume(tmp_path / "run")
        assert same(remains(tmp_path / "run"), before)
        tally.survived += 1


def refused(work: Callable[[], object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        work()


def test_2_partly_written_files_of_a_killed_process_are_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoints" / ".step-2.tmp-7").mkdir(parents=True)
    for name in (".metrics.jsonl.tmp-7", ".owner.json.tmp-7", ".model.safetensors.tmp"):
        (folder / name).write_text("{")
    run = dropout_run(tmp_path)
    api.train(run, folder)
    assert not list(folder.rglob("*.tmp*"))
