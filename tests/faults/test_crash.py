"""Faults 1 to 8 and 19: a run that dies at any moment is resumed, and ends with the same bits."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from faults.children import DIED, at_touch, die, done, fork, killed, wait
from faults.tally import count, record
from glassformer import api
from glassformer.cli import checkpoint as checkpoints
from glassformer.errors import Interrupted, UserError
from glassformer.run_config import Run
from glassformer.store import checkpoint
from glassformer.store.lock import locked
from glassformer.train_config import EarlyStopping
from glassformer.training import launch
from glassformer.training.reporting import Silent
from runs import MODEL, label_run, pair_run, remains, tiny_run, write_text

TIMES = {"max_steps": 12, "eval_every": 4, "checkpoint_every": 2, "log_every": 1}


def dropout_run(folder: Path, **train: Any) -> Run:
    model = replace(MODEL, residual_dropout=0.2, embedding_dropout=0.1)
    return tiny_run(write_text(folder), model=model, ema_decay=0.9, accumulation=2, **(TIMES | train))


KINDS = {
    "text": dropout_run,
    "pairs": lambda folder: pair_run(folder, **TIMES),
    "labels": lambda folder: label_run(
        folder, **TIMES, early_stopping=EarlyStopping("accuracy", patience=50, higher_is_better=True)
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    """A run, and what is left of it when nothing happens to it."""
    folder = tmp_path_factory.mktemp(request.param)
    run = KINDS[request.param](folder)
    assert done(lambda: api.train(run, folder / "whole")) == 0  # threads and all are those of the children below
    return run, remains(folder / "whole")


def go_on(run: Run, folder: Path) -> None:
    """What a person would do: resume, or begin again where there is nothing yet."""
    if checkpoint.steps(folder):
        api.resume(folder)
    else:
        api.train(run, folder)


def end(run: Run, folder: Path) -> dict[str, Any]:
    assert done(lambda: go_on(run, folder)) == 0
    assert not list(folder.rglob("*.tmp*")), "something half-written is left"
    return remains(folder)


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    """All but the manifest, which also vouches for the settings of where and how long."""
    return all(found[name] == expected[name] for name in expected if name != "manifest")


def cases(kind: str, n: int) -> Iterator[random.Random]:
    yield from (random.Random(f"{kind}{seed}") for seed in range(n))


@pytest.mark.parametrize("background", [True, False])
def test_1_and_19_sigkill_while_saving(whole: tuple[Run, dict[str, Any]], background: bool, tmp_path: Path) -> None:
    run, expected = whole
    run = replace(run, train=replace(run.train, background_saving=background))
    n, survived, kills = count(2, 17), 0, 0
    for number, rng in enumerate(cases("save", n)):
        folder = tmp_path / str(number)
        after = rng.randrange(1, 6)

        def is_saving(folder: Path = folder, after: int = after) -> bool:
            there = list((folder / "checkpoints").glob(".step-*"))
            return bool(there) and len(checkpoint.steps(folder)) >= min(after, 2)

        code = killed(lambda folder=folder: api.train(run, folder), is_saving, rng, 0.01)
        assert code in (-signal.SIGKILL, 0)
        kills += code != 0
        survived += same(end(run, folder), expected)
        shutil.rmtree(folder)
    record(19 if background else 1, n, survived, f"save0 to save{n - 1}")
    assert survived == n and kills


def test_2_sigkill_at_random_steps_several_times(whole: tuple[Run, dict[str, Any]], tmp_path: Path) -> None:
    run, expected = whole
    n, survived, kills = count(2, 7), 0, 0
    for number, rng in enumerate(cases("step", n)):
        folder = tmp_path / str(number)
        for _ in range(3):
            began = folder / "metrics.jsonl"
            kills += killed(lambda folder=folder: go_on(run, folder), began.exists, rng, 0.15) == -signal.SIGKILL
        survived += same(end(run, folder), expected)
    record(2, n, survived, f"step0 to step{n - 1}, 3 kills each")
    assert survived == n and kills > 0


def test_3_and_4_the_process_ends_between_any_two_touches_of_the_disk(
    whole: tuple[Run, dict[str, Any]], tmp_path: Path
) -> None:
    """Writing, publishing and deleting: every fsync, rename, replace, mkdir, unlink and rmdir of the run in turn."""
    run, expected = whole
    run = replace(run, train=replace(run.train, background_saving=False))
    api.train(run, tmp_path / "cached")  # so that the touches are those of the run, not of the preparation
    with at_touch(10**9, die) as n_touches:
        api.train(run, tmp_path / "counted")
        total = n_touches()
    places = range(1, total + 1, count(29, 1))
    survived = 0
    for k in places:
        folder = tmp_path / str(k)

        def work(folder: Path = folder, k: int = k) -> None:
            with at_touch(k, die):
                api.train(run, folder)

        assert done(work) == DIED
        survived += same(end(run, folder), expected)
        shutil.rmtree(folder)
    record(3, len(places), survived, f"every {places.step}. of {total} touches")
    record(4, len(places), survived, "among those of 3")
    assert survived == len(places)


def test_5_signals_save_and_say_so_with_their_code(whole: tuple[Run, dict[str, Any]], tmp_path: Path) -> None:
    run, expected = whole
    n, survived, stopped = count(2, 7), 0, 0
    for number, rng in enumerate(cases("signal", n)):
        folder, which = tmp_path / str(number), (signal.SIGTERM, signal.SIGINT)[number % 2]

        def work(folder: Path = folder) -> None:
            try:
                api.train(run, folder)
            except Interrupted as stop:
                os._exit(stop.exit_code)

        code = killed(work, (folder / "metrics.jsonl").exists, rng, 0.1, which)
        assert code in (128 + which, 0)
        assert code == 0 or checkpoint.steps(folder)
        stopped += code != 0
        survived += same(end(run, folder), expected)
    record(5, n, survived, f"signal0 to signal{n - 1}")
    assert survived == n and stopped


def test_5_the_end_of_its_time_is_a_stop_like_a_signal(whole: tuple[Run, dict[str, Any]], tmp_path: Path) -> None:
    run, expected = whole
    short = replace(run, train=replace(run.train, max_time=1e-9))
    with pytest.raises(Interrupted, match=r"train\.max_time: saved at step 1 of 12; go on with") as caught:
        api.train(short, tmp_path / "run")
    assert caught.value.exit_code == 75
    with pytest.raises(Interrupted, match="step 2 of 12"):
        api.resume(tmp_path / "run")
    assert done(lambda: api.resume(tmp_path / "run", flags={"train.max-time": "0"})) == 0
    assert same(remains(tmp_path / "run"), expected)


def test_6_resumed_after_every_step_of_an_epoch_and_at_its_end(
    whole: tuple[Run, dict[str, Any]], tmp_path: Path
) -> None:
    run, expected = whole

    def one_step_a_time() -> None:
        short = replace(run, train=replace(run.train, max_time=1e-9))
        with pytest.raises(Interrupted):
            api.train(short, tmp_path / "run")
        for _ in range(run.train.max_steps - 2):
            with pytest.raises(Interrupted):
                api.resume(tmp_path / "run")
        api.resume(tmp_path / "run")

    assert done(one_step_a_time) == 0
    survived = same(remains(tmp_path / "run"), expected)
    record(6, run.train.max_steps - 1, survived * (run.train.max_steps - 1), "after every step")
    assert survived


def test_7_a_preparation_that_dies_leaves_nothing_that_is_taken_for_whole(
    whole: tuple[Run, dict[str, Any]], tmp_path: Path
) -> None:
    run, expected = whole
    n, survived = 0, 0
    for k in range(1, 100):
        cache = tmp_path / f"cache{k}"
        fresh = replace(run, data=replace(run.data, cache_dir=str(cache))) if hasattr(run.data, "cache_dir") else run

        def work(fresh: Run = fresh, k: int = k) -> None:
            with at_touch(k, die):
                material = launch.material_of(fresh)
                tokenizers = material.tokenizers(fresh, Silent())
                material.prepare(fresh, tokenizers, Silent())

        if done(work) == 0:
            break
        if k % count(4, 1) == 0:
            n += 1
            survived += same(end(fresh, tmp_path / str(k)), expected)
    record(7, n, survived, "between any two touches of the disk")
    assert survived == n


def test_8_a_second_trainer_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path: Path) -> None:
    run = dropout_run(tmp_path)
    api.train(run, tmp_path / "run")
    before = remains(tmp_path / "run")
    ready = tmp_path / "ready"

    def owner() -> None:
        with locked(tmp_path / "run"):
            ready.touch()
            time.sleep(60)

    child = fork(owner)
    while not ready.exists():
        time.sleep(0.01)
    for verb in (lambda: api.resume(tmp_path / "run"), lambda: checkpoints.prune(tmp_path / "run")):
        refused(verb, f"is being trained by process {child} on")
    os.kill(child, signal.SIGKILL)
    wait(child)
    assert (tmp_path / "run" / ".owner.json").exists()
    api.resume(tmp_path / "run")
    assert same(remains(tmp_path / "run"), before)
    record(8, 2, 2, "-")


def refused(work: Callable[[], object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        work()


def test_2_what_a_killed_process_left_half_written_is_in_nobody_s_way(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoints" / ".step-2.tmp-7").mkdir(parents=True)
    for name in (".metrics.jsonl.tmp-7", ".owner.json.tmp-7", ".model.safetensors.tmp"):
        (folder / name).write_text("{")
    run = dropout_run(tmp_path)
    api.train(run, folder)
    assert not list(folder.rglob("*.tmp*"))
