"""Separate processes: killed, interrupted, piped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer import api
from glassformer.config.schema import to_dict, to_toml
from glassformer.reporting import Outcome
from glassformer.store import checkpoint
from runs import MODEL, remains, tiny_run, write_text

COMMAND = [sys.executable, "-m", "glassformer"]
HELD = str(Path(__file__).parents[1] / "held.py")
N_STEPS = 60


def wait_for(process: subprocess.Popen[str], happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert process.poll() is None, f"the process ended early: {process.communicate()}"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_run_after_sigkill_and_ctrl_c_ends_with_equal_weights(tmp_path: Path, environment: dict[str, str]) -> None:
    model = replace(MODEL, residual_dropout=0.1)
    run = tiny_run(
        write_text(tmp_path),
        model=model,
        max_steps=N_STEPS,
        batch_size=2,
        eval_every=N_STEPS // 2,
        checkpoint_every=20,
        ema_decay=0.9,
    )
    recipe = tmp_path / "run.toml"
    recipe.write_text(to_toml(to_dict(run)))
    api.train(run, tmp_path / "whole")
    folder = tmp_path / "parts"

    def held(step: int, *words: str) -> subprocess.Popen[str]:
        """Start a run that waits after a step until it is stopped."""
        program = [sys.executable, HELD, str(step), str(recipe), *words]
        return subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    with held(25, "train", str(recipe), "--out", str(folder)) as killed:
        wait_for(killed, lambda: len(checkpoint.steps(folder)) >= 1)
        killed.kill()
        killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    assert checkpoint.steps(folder) == [20]

    with held(45, "resume", str(folder)) as stopped:
        wait_for(stopped, lambda: checkpoint.steps(folder)[-1] == 40)
        stopped.send_signal(signal.SIGINT)
        out, err = stopped.communicate()
    assert stopped.returncode == 130 and out == "", err
    last = err.splitlines()[-1]
    assert last.startswith("glassformer: SIGINT: saved at step ") and "Traceback" not in err
    assert last.endswith(f"continue with: glassformer resume {folder}")

    words = last.split("continue with: glassformer ")[1].split()
    done = subprocess.run([*COMMAND, *words], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert remains(folder) == remains(tmp_path / "whole")
    assert not [path.name for path in folder.rglob("*.tmp*")]


def test_the_module_writes_utf8_and_ends_quietly_on_a_closed_pipe(
    trained: Outcome, environment: dict[str, str]
) -> None:
    words = [*COMMAND, "generate", str(trained.folder), "--prompt", "é日🙂", "--max-new-tokens", "5"]
    found = subprocess.run(words, env=environment, capture_output=True, timeout=120)
    expected = api.load(trained.folder).generate("é日🙂", max_new_tokens=5)
    assert (found.returncode, found.stdout.decode()) == (0, f"é日🙂{expected}\n")
    assert found.stderr == b""

    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as broken:
        left = subprocess.run(words, env=environment, stdout=broken, stderr=subprocess.PIPE, timeout=120)
    assert left.returncode == 128 + signal.SIGPIPE and left.stderr == b""


def test_a_mistake_is_one_sentence_of_the_process(environment: dict[str, str]) -> None:
    found = subprocess.run([*COMMAND, "trian"], env=environment, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "glassformer: unknown verb 'trian': did you mean train?\n"


ENDS = """
import atexit, gc, sys
import torch
from glassformer.cli.main import main
atexit.register(lambda: print(len(gc.get_objects()) < 10_000))
main(sys.argv[1:])
"""


@pytest.mark.parametrize(("verb", "code", "printed"), [("--version", 0, "glassformer "), ("trian", 2, "")])
def test_the_end_of_a_command_searches_no_cycles_among_the_objects_of_torch(
    verb: str, code: int, printed: str, environment: dict[str, str]
) -> None:
    """The search takes a second. Functions that are registered for the end are called as before."""
    done = subprocess.run([sys.executable, "-c", ENDS, verb], env=environment, capture_output=True, text=True)
    *lines, is_short = done.stdout.splitlines()
    assert done.returncode == code and is_short == "True", done
    assert "".join(lines).startswith(printed)
