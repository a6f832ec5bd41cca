"""The scripts of docs/how-to/read-curves.md send all numbers of a run to W&B, MLflow and trackio.

The packages are stand-ins that keep what they are given.
"""

import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from glassformer.training.metrics_log import MetricsLog

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-curves.md"
SCRIPTS = dict(re.findall(r"`to_(\w+)\.py`:\n\n```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))
Sent = list[tuple[int, dict[str, float]]]


class Tracker(ModuleType):
    """A module with the functions of the three packages that the scripts call."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.sent: Sent = []
        self.settings: list[str] = []
        self.log = self.log_metrics = lambda numbers, step: self.sent.append((step, numbers))
        self.config = SimpleNamespace(update=lambda table: self.settings.extend(table))
        self.log_artifact = lambda path: self.settings.append(path.name)

    def init(self, project: str, name: str) -> Any:
        return nullcontext(self)

    def start_run(self, run_name: str) -> Any:
        return nullcontext(self)

    def set_experiment(self, name: str) -> None: ...

    def finish(self) -> None: ...


@pytest.mark.parametrize(("name", "settings"), [("wandb", ["train"]), ("mlflow", ["run.toml"]), ("trackio", [])])
def test_a_script_sends_every_number(
    name: str, settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.toml").write_text("[train]\nmax_steps = 10\n")
    with MetricsLog(tmp_path, 0) as log:
        log.write(5, **{"train/loss": 3.5, "learning_rate": 0.1})
        log.write(10, **{"eval/valid_loss": 2.5, "sample": "text", "eval/valid_smoothed_loss": None})
    tracker = Tracker(name)
    monkeypatch.setitem(sys.modules, name, tracker)
    monkeypatch.setattr(sys, "argv", [f"to_{name}.py", str(tmp_path)])
    exec(compile(SCRIPTS[name], f"to_{name}.py", "exec"), {})
    assert tracker.sent == [(5, {"train/loss": 3.5, "learning_rate": 0.1}), (10, {"eval/valid_loss": 2.5})]
    assert tracker.settings == settings
