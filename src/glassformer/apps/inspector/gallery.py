"""The gallery: four tiny models that ship as recipes, trained on first use in a process of their own."""

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.common.errors import UserError, did_you_mean
from glassformer.config import recipes
from glassformer.store import checkpoint
from glassformer.training.metrics_log import NAME as METRICS
from glassformer.training.metrics_log import read_lines

RECIPES = {name: name for name in ("reverse-bahdanau", "reverse-transformer", "copy-task", "python-docs")}
"""Names in the gallery, and the recipe or TOML file of each."""


class Gallery:
    """Models in the folders `FOLDER/RECIPE`. Only one model is trained at a time."""

    def __init__(self, folder: Path, sources: Mapping[str, str] = RECIPES) -> None:
        self.folder, self.sources = folder, sources
        self.training: str | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def list(self) -> list[dict[str, Any]]:
        """Return each model with its state: absent, training, stopped or ready."""
        return [self._entry(name) for name in self.sources]

    def _entry(self, name: str) -> dict[str, Any]:
        folder, run = self.folder / name, recipes.load(self.sources[name])
        steps = [line["step"] for line in read_lines(folder / METRICS)]
        step, last = max(steps, default=0), run.train.max_steps
        state = "stopped" if steps else "absent"
        if self.is_training(name):
            state = "training"
        elif last in checkpoint.steps(folder):
            state = "ready"
        entry = {"name": name, "doc": run.description, "folder": str(folder), "state": state}
        return entry | {"step": step, "max_steps": last}

    def is_training(self, name: str) -> bool:
        """Return True while the process of this model runs."""
        return self.training == name and self._process is not None and self._process.poll() is None

    def _folder(self, name: str) -> Path:
        if name not in self.sources:
            raise UserError(f"the gallery has no model {name!r}: {did_you_mean(name, self.sources)}")
        return self.folder / name

    def ready(self, name: str) -> Path:
        """Return the folder of a trained model; raise `UserError` if it is not trained yet."""
        folder = self._folder(name)
        if not checkpoint.steps(folder):
            raise UserError(f"{name} has no checkpoint yet: train it first")
        return folder

    def train(self, name: str) -> Path:
        """Start or continue the training of a model in a process; return its folder.

        Raises `UserError` if another model is being trained.
        """
        folder = self._folder(name)
        if self.is_training(name) or self._entry(name)["state"] == "ready":
            return folder
        if self.training is not None and self.is_training(self.training):
            raise UserError(f"{self.training} is being trained: wait until it is ready")
        verb = ["train", self.sources[name], "--out", str(folder)]
        if checkpoint.steps(folder):
            verb = ["resume", str(folder)]
        command = [sys.executable, "-m", "glassformer", *verb, "--quiet"]
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.training = name
        group = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # Windows sends CTRL_BREAK_EVENT to a group only
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, start_new_session=True, creationflags=group
        )
        return folder

    def close(self) -> None:
        """Stop the training process. It saves a checkpoint, so the next start continues the training."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(getattr(signal, "CTRL_BREAK_EVENT", signal.SIGINT))
            self._process.wait()
