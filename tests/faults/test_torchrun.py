"""`torchrun` with two processes: one is killed and the run restarts (fault 15); SIGTERM stops and saves the run."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from distributed.test_processes import require_equal
from faults.children import done, fork, ranks_done, wait, wait_until
from faults.tally import count, record
from glassformer import api
from glassformer.apps.cli.main import run as run_command
from glassformer.config.schema import to_dict
from glassformer.config.written import to_toml
from glassformer.store import checkpoint
from held import holding
from runs import MODEL, tiny_run, write_text

N_STEPS = 9
TIMES = {"max_steps": N_STEPS, "eval_every": N_STEPS, "checkpoint_every": 3, "grad_accumulation": 2}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
HELD = str(Path(__file__).parents[1] / "held.py")
HELD_AT = 5
"""The step after which a run waits until it is stopped."""


def children_of(process: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=True)
    return [int(word) for word in found.stdout.split()]


def launched(work: Callable[[], object]) -> None:
    """Do the work in two processes that torchrun's own agent forks, and starts once more if one is lost."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    place = {"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0", "run_id": str(os.getpid())}
    config = LaunchConfig(1, 1, 2, max_restarts=1, start_method="fork", monitor_interval=0.1, **place)
    elastic_launch(config, work)()


def test_15_a_run_recovers_from_a_killed_process(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = replace(MODEL, residual_dropout=0.1)
    run = tiny_run(write_text(tmp_path), model=model, **TIMES)
    assert done(lambda: api.train(run, tmp_path / "whole")) == 0
    (tmp_path / "run.toml").write_text(to_toml(to_dict(run)))
    n, survived = count(1, 10), 0
    for seed in range(n):
        folder, rng = tmp_path / str(seed), random.Random(seed)
        strategy = ("fsdp", "ddp")[seed % 2]
        held = tmp_path / f"{seed}.held"
        held.touch()
        words = ["train", str(tmp_path / "run.toml"), "--out", str(folder)]
        words += ["--parallel.strategy", strategy, "--parallel.timeout", "60"]

        def train(words: list[str] = words, held: Path = held) -> None:
            with holding(HELD_AT, held):
                assert run_command(words) == 0

        agent = fork(lambda train=train: launched(train))  # type: ignore[misc]
        wait_until(lambda folder=folder: bool(checkpoint.steps(folder)), agent)  # type: ignore[misc]
        time.sleep(rng.random() * 0.2)
        victims = children_of(agent)
        os.kill(victims[rng.randrange(len(victims))], signal.SIGKILL)
        held.unlink()
        assert wait(agent) == 0
        assert "resumed at step" in capfd.readouterr().err
        require_equal(folder, tmp_path / "whole", step=N_STEPS)
        survived += 1
    record(15, n, survived, f"0 to {n - 1}, fsdp and ddp in turn")
    assert survived == n


def test_sigterm_to_torchrun_saves_the_run(
    tmp_path: Path, environment: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """The processes stop after the same step, and the resumed run ends with equal weights."""
    run = tiny_run(write_text(tmp_path), **TIMES)
    assert done(lambda: api.train(run, tmp_path / "whole")) == 0
    recipe, folder = tmp_path / "run.toml", tmp_path / "run"
    recipe.write_text(to_toml(to_dict(run)))
    words = [*TORCHRUN, HELD, str(HELD_AT), str(recipe), "train", str(recipe), "--out", str(folder)]
    words += ["--parallel.strategy", "ddp"]
    with subprocess.Popen([sys.executable, *words], env=environment, stderr=subprocess.PIPE, text=True) as torchrun:
        while not checkpoint.steps(folder):
            assert torchrun.poll() is None, torchrun.communicate()
            time.sleep(0.01)
        torchrun.terminate()
        _, err = torchrun.communicate(timeout=300)
    saved = checkpoint.steps(folder)[-1]
    assert torchrun.returncode != 0 and saved < N_STEPS
    assert f"glassformer: SIGTERM: saved at step {saved} of {N_STEPS}; continue with: glassformer resume" in err
    capfd.readouterr()

    def resume() -> None:
        assert run_command(["resume", str(folder)]) == 0

    assert ranks_done(2, resume) == [0, 0]
    assert f"resumed at step {saved} of {N_STEPS}" in capfd.readouterr().err
    require_equal(folder, tmp_path / "whole", step=N_STEPS)
