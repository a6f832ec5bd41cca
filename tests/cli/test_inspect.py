"""The inspector starts, answers, and ends with Ctrl-C; mistakes are one sentence."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Glassformer
from glassformer.apps.inspector import server
from glassformer.apps.inspector.inspector import Inspector
from glassformer.tasks.reporting import Outcome
from runs import write_text

Start = Callable[..., tuple["subprocess.Popen[str]", str]]
WAIT_S = 300
"""Bound of every wait. The process of a page beside a training gives way to all others on a busy machine."""


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Start a command in a process group of its own; return it and the address that it prints."""
    started = []

    def begin(*words: object) -> tuple["subprocess.Popen[str]", str]:
        command = [sys.executable, "-m", "glassformer", *map(str, words)]
        settings: dict[str, Any] = {"text": True, "env": environment, "cwd": tmp_path, "start_new_session": True}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **settings)
        started.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.match(r"inspector: (http://127\.0\.0\.1:\d+/)", line):
                return process, found[1]
        raise AssertionError("the process ended without an address")

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def asked(address: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return json.load(answer)


def test_the_page_is_served_until_ctrl_c(trained: Outcome, start: Start) -> None:
    process, address = start("inspect", trained.folder, "--text", "abc de", "--port", 0, "--no-browser")
    with urllib.request.urlopen(address, timeout=WAIT_S) as answer:
        assert b"<!doctype html>" in answer.read().lower()
    card = asked(address, "api/model")
    assert asked(address, "api/session")["model"] == card["model"]
    assert card["examples"][0] == {"text": "abc de"}
    run = asked(address, "api/run", {"text": "abc de"})
    assert len(run["target"]) > 2
    os.killpg(process.pid, signal.SIGINT)
    output = process.communicate(timeout=WAIT_S)[0]
    assert process.returncode == 0 and "Traceback" not in output


def test_a_training_is_shown_from_its_start(start: Start, tmp_path: Path, tiny_recipe: Path) -> None:
    """`train --inspect` waits for the first checkpoint, shows the log, and keeps the page after the end."""
    text = write_text(tmp_path)
    words = [
        "--data.path",
        text,
        "--train.max-steps",
        40,
        "--train.eval-every",
        20,
        "--out",
        tmp_path / "run",
        "--inspect",
    ]
    process, address = start("train", tiny_recipe, *words)
    deadline = time.monotonic() + WAIT_S
    while asked(address, "api/live")["model_step"] is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert asked(address, "api/open", {})["kind"] == "decoder"
    while asked(address, "api/live")["is_running"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert asked(address, "api/live")["lines"][-1]["step"] == 40
    assert process.poll() is None, "the page stays open"
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0


def test_a_checkpoint_that_is_not_published_yet_is_waited_for(
    glassformer: Glassformer, trained: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page may start in the moment between the two."""
    folder, shown = tmp_path / "run", list[Inspector]()
    shutil.copytree(trained.folder / "checkpoints", folder / "checkpoints")
    monkeypatch.setattr(server, "serve", lambda inspector, *given, **more: shown.append(inspector) or 0)
    monkeypatch.setattr(os, "nice", lambda more: more)
    assert glassformer("inspect", folder, "--wait").code == 0
    assert shown[0].folder == folder and not shown[0].models


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs/nothing"], "runs/nothing"),
        (["a", "b"], "unexpected arguments: 'b'"),
        (["RUN", "--source", "a"], "has no source side: give one text (--text)"),
        (["RUN", "--port", "70000", "--no-browser"], "cannot listen on 127.0.0.1, port 70000"),
        (["SWEEP"], "table.json is not valid JSON"),
    ],
)
def test_mistakes_are_one_sentence(
    glassformer: Glassformer,
    trained: Outcome,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(os, "nice", lambda more: more)
    (tmp_path / "table.json").write_text("{]")
    places = {"RUN": trained.folder, "SWEEP": tmp_path}
    shown = glassformer("inspect", *(places.get(word, word) for word in words))
    assert shown.code == 2 and message in shown.err and shown.err.count("\n") == 1, shown.err
