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

from faults.children import fork, wait
from glassformer import api
from glassformer.apps.cli.main import main
from glassformer.config import recipes
from glassformer.config.schema import to_dict
from glassformer.config.written import to_toml
from glassformer.store import checkpoint
from glassformer.tasks import language_modeling
from held import holding
from runs import MODEL, remains, tiny_run, write_text

from .conftest import Glassformer

COMMAND = [sys.executable, "-m", "glassformer"]
HELD = str(Path(__file__).parents[1] / "held.py")


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_run_after_sigkill_and_ctrl_c_ends_with_equal_weights(
    tmp_path: Path, environment: dict[str, str], glassformer: Glassformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed process is a child of this one, which has torch already. Ctrl-C goes to a process of its own."""
    monkeypatch.setattr(language_modeling, "SAMPLE_LENGTH", 64)  # as in that process
    run = tiny_run(
        write_text(tmp_path),
        model=replace(MODEL, residual_dropout=0.1),
        max_steps=12,
        batch_size=2,
        eval_every=6,
        checkpoint_every=4,
        ema_decay=0.9,
    )
    recipe = tmp_path / "run.toml"
    recipe.write_text(to_toml(to_dict(run)))
    api.train(run, tmp_path / "whole")
    folder = tmp_path / "parts"

    def train() -> None:
        with holding(5, recipe):
            main(["train", str(recipe), "--out", str(folder)])

    killed = fork(train)
    wait_for(lambda: checkpoint.steps(folder) == [4])
    os.kill(killed, signal.SIGKILL)
    assert wait(killed) == -signal.SIGKILL
    assert checkpoint.steps(folder) == [4]

    program = [sys.executable, HELD, "9", str(recipe), "resume", str(folder)]
    with subprocess.Popen(
        program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as stopped:
        wait_for(lambda: checkpoint.steps(folder)[-1] == 8 or stopped.poll() is not None)
        stopped.send_signal(signal.SIGINT)
        out, err = stopped.communicate()
    assert stopped.returncode == 130 and out == "", err
    last = err.splitlines()[-1]
    assert last.startswith("glassformer: SIGINT: saved at step ") and "Traceback" not in err
    assert last.endswith(f"continue with: glassformer resume {folder}")

    done = glassformer(*last.split("continue with: glassformer ")[1].split())
    assert done.code == 0, done.err
    assert remains(folder) == remains(tmp_path / "whole")
    assert not [path.name for path in folder.rglob("*.tmp*")]


def test_the_module_writes_utf8_and_ends_quietly_on_a_closed_pipe(
    environment: dict[str, str],
) -> None:
    """A verb that imports no torch: the streams of all verbs are the same."""
    words = ["recipes", "REFERENCE"]
    in_ascii = environment | {"PYTHONIOENCODING": "ascii"}
    found = subprocess.run([*COMMAND, *words], env=in_ascii, capture_output=True, timeout=120)
    assert (found.returncode, found.stdout.decode(), found.stderr) == (0, recipes.text("REFERENCE"), b"")

    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as broken:
        buffered = environment | {"PYTHONUNBUFFERED": ""}  # what is in the buffer must not be written at the end
        left = subprocess.run([*COMMAND, *words], env=buffered, stdout=broken, stderr=subprocess.PIPE, timeout=120)
    assert left.returncode == 128 + signal.SIGPIPE and left.stderr == b""


def test_a_mistake_is_one_sentence_of_the_process(environment: dict[str, str]) -> None:
    found = subprocess.run([*COMMAND, "trian"], env=environment, capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "glassformer: unknown verb 'trian': did you mean train?\n"


ENDS = """
import atexit, gc, sys
from glassformer.apps.cli.main import main
objects = [[] for _ in range(50_000)]
atexit.register(lambda: print(len(gc.get_objects()) < 10_000))
main(sys.argv[1:])
"""


@pytest.mark.parametrize(("verb", "code", "printed"), [("--version", 0, "glassformer "), ("trian", 2, "")])
def test_the_end_of_a_command_searches_no_cycles_among_all_objects(
    verb: str, code: int, printed: str, environment: dict[str, str]
) -> None:
    """Among those of torch, the search takes a second. Functions that are registered for the end are called."""
    done = subprocess.run([sys.executable, "-c", ENDS, verb], env=environment, capture_output=True, text=True)
    *lines, is_short = done.stdout.splitlines()
    assert done.returncode == code and is_short == "True", done
    assert "".join(lines).startswith(printed)
