"""The gallery trains a model in a process of its own, shows its progress, and opens it."""

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glassformer.apps.inspector.gallery import RECIPES, Gallery
from glassformer.common.errors import UserError
from glassformer.config.schema import to_dict
from glassformer.config.written import to_toml
from inspector.direct import Inspector
from runs import tiny_run, write_text


@pytest.fixture
def gallery(tmp_path: Path) -> Iterator[Gallery]:
    run = tiny_run(write_text(tmp_path), max_steps=20)
    for name, steps in (("first", 20), ("second", 100_000)):
        (tmp_path / f"{name}.toml").write_text(to_toml(to_dict(run)).replace("max_steps = 20", f"max_steps = {steps}"))
    found = Gallery(tmp_path / "gallery", {name: str(tmp_path / f"{name}.toml") for name in ("first", "second")})
    yield found
    found.close()


def test_a_model_is_trained_on_first_use_and_opened(gallery: Gallery) -> None:
    inspector = Inspector(None, gallery=gallery)
    assert [entry["state"] for entry in inspector.session()["gallery"]] == ["absent", "absent"]
    with pytest.raises(UserError, match="no model is open: choose one of the gallery"):
        inspector.card()
    with pytest.raises(UserError, match="first has no checkpoint yet"):
        inspector.open("first")
    assert inspector.train("first")["gallery"][0]["state"] == "training"
    with pytest.raises(UserError, match="first is being trained: wait"):
        inspector.train("second")
    while gallery.is_training("first"):
        time.sleep(0.1)
    entry = inspector.session()["gallery"][0]
    assert entry["state"] == "ready" and entry["step"] == entry["max_steps"] == 20
    card = inspector.open("first")
    assert card["step"] == 20 and inspector.run(text="abc", model=card["model"])["run"]
    assert [line["step"] for line in inspector.live(folder=entry["folder"])["lines"]] == [0, 5, 10, 10, 15, 20, 20]
    assert inspector.train("first")["gallery"][0]["state"] == "ready", "it is not trained again"


def test_a_closed_gallery_saves_the_training(gallery: Gallery) -> None:
    inspector = Inspector(None, gallery=gallery)
    folder = inspector.train("second")["gallery"][1]["folder"]
    while not any("train/loss" in line for line in inspector.live(folder=folder)["lines"]):
        assert gallery.is_training("second"), "the training has ended by itself"
        time.sleep(0.1)
    assert gallery.list()[1]["max_steps"] == 100_000
    gallery.close()
    entry = gallery.list()[1]
    assert entry["state"] == "stopped" and entry["step"] > 0
    assert inspector.open("second")["step"] > 0, "the interrupted training has saved a checkpoint"


def test_on_windows_a_closed_gallery_sends_what_windows_can_send(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, Python sends only CTRL_C_EVENT and CTRL_BREAK_EVENT, and the second to a process group."""
    monkeypatch.setattr(signal, "CTRL_BREAK_EVENT", signal.SIGUSR1, raising=False)
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200, raising=False)
    started: dict[str, Any] = {}
    sent: list[int] = []

    class Process:
        def __init__(self, command: list[str], **options: Any) -> None:
            started.update(options)

        def poll(self) -> None:
            return None

        def send_signal(self, number: int) -> None:
            sent.append(number)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(subprocess, "Popen", Process)
    gallery.train("first")
    gallery.close()
    assert started["creationflags"] == 0x200 and sent == [signal.SIGUSR1]


def test_the_shipped_gallery_names_recipes(tmp_path: Path) -> None:
    assert [entry["state"] for entry in Gallery(tmp_path).list()] == ["absent"] * 4
    assert len(RECIPES) == 4
    assert all("on one CPU core" in entry["doc"] for entry in Gallery(tmp_path).list()), "the time of the training"
    with pytest.raises(UserError, match="has no model 'copytask': did you mean copy-task"):
        Gallery(tmp_path).train("copytask")


def test_without_a_gallery_nothing_is_trained() -> None:
    with pytest.raises(UserError, match="there is no gallery"):
        Inspector(None).train("first")
    with pytest.raises(UserError, match="no folder"):
        Inspector(None).open()
