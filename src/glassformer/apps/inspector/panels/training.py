"""Training: the lines that a run logs, while it is running."""

from pathlib import Path
from typing import Any

from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.inspector import Inspector, published_step
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.evaluation import metrics
from glassformer.store import checkpoint
from glassformer.store.lock import is_locked, owner
from glassformer.store.model_directory import RUN, read_run
from glassformer.training.metrics_log import NAME as METRICS

MAX_LINES = 1 << 24
"""Largest number of bytes that are read at once."""


@route("GET", "/api/live", is_quick=True)
def live(inspector: Inspector, since: int = 0, folder: str | None = None) -> dict[str, Any]:
    """Answer the lines that a run has logged from byte `since` on, and whether it is running."""
    of_run = inspector.folder_of(folder)
    if since < 0:
        raise UserError(f"since: expected a place in the log, 0 or more, got {since}")
    text, path = b"", of_run / METRICS
    if path.exists():
        with path.open("rb") as file:
            since = min(since, path.stat().st_size)  # a resumed run may have shortened its log
            file.seek(since)
            text = file.read(MAX_LINES)
    whole = text[: text.rfind(b"\n") + 1]
    return {
        "folder": str(of_run),
        "offset": since + len(whole),
        "lines": [files.parse_json(line.decode(errors="replace")) for line in whole.splitlines()],
        "is_running": is_locked(of_run),
        "checkpoints": checkpoint.steps(of_run),
        "max_steps": _max_steps(of_run),
        "model_step": published_step(of_run),
        "metrics": {name: metrics.title(name) for name in metrics.METRICS},
    }


def _max_steps(folder: Path) -> int | None:
    """Return the last step of a run; before its first checkpoint, the owner file of its lock has it."""
    for place in (folder, *(checkpoint.path_of(folder, step) for step in reversed(checkpoint.steps(folder)))):
        if (place / RUN).exists():
            return read_run(place).train.max_steps
    steps = owner(folder).get("max_steps")
    return steps if isinstance(steps, int) else None
