"""What the loop remembers beside weights and optimizer, and how it is read back."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from glassformer.config.schema import from_dict
from glassformer.errors import UserError
from glassformer.evaluation.loss import LossReport
from glassformer.store import checkpoint
from glassformer.store.manifest import Manifest
from glassformer.training.non_finite import LossScale


@dataclass
class TrainerState:
    """All that the loop remembers beside weights and optimizer; JSON."""

    step: int = 0
    seconds: float = 0.0
    """Spent on steps alone."""
    n_targets: int = 0
    best: float | None = None
    best_step: int | None = None
    n_without_improvement: int = 0
    plateau: dict[str, Any] | None = None
    scaler: dict[str, Any] | None = None
    """Of the loss, in fp16."""
    unlogged: list[tuple[float, int]] = field(default_factory=list)
    """Nats and targets of the steps since the last line of the log: a resumed run writes the same next line."""
    finished: bool = False
    valid: dict[str, float | int | None] = field(default_factory=dict)
    data_digest: str = ""
    rate_factor: float = 1.0
    """Of the learning rate: halved by each rollback."""
    n_rollbacks: int = 0
    scheduled: list[int] = field(default_factory=list)
    """Steps of the newest checkpoints that the recipe asks for; a signal's is none of them."""
    n_skipped: int = 0
    """Steps in a row, up to now, whose loss or gradient was not finite."""
    made_with: dict[str, Any] = field(default_factory=dict)
    """The machine and the versions: bits are promised for the same ones."""


@dataclass(frozen=True)
class _PlateauState:
    factor: float
    best: float | None
    n_worse: int


_TABLES: dict[str, type] = {"scaler": LossScale, "plateau": _PlateauState, "valid": LossReport}
_LATER = ("scaler", "scheduled", "rate_factor", "n_rollbacks", "n_skipped", "made_with")
"""What older checkpoints do not have yet."""


def read_progress(folder: Path) -> TrainerState:
    """The progress that a checkpoint keeps; `UserError` naming what is missing, unknown, or not what it must be."""
    numbers, where = checkpoint.load_numbers(folder), folder / checkpoint.STATE
    for entry in fields(TrainerState):
        if entry.name not in numbers and entry.name not in _LATER:
            raise UserError(f"{entry.name} is missing (in {where})")
    state = from_dict(TrainerState, numbers, str(where))
    parts: list[Any] = [state]
    for name, cls in _TABLES.items():
        table = getattr(state, name)
        if table is not None and not (name == "valid" and not table):  # {}: nothing was measured yet
            parts.append(from_dict(cls, table, f"{name} of {where}"))
    for name, value in (item for part in parts for item in vars(part).items()):
        if not all(0 <= number < 1 << 53 for number in _whole_numbers(value)):
            raise UserError(f"{name} is {value!s:.60} and must be at least 0 and below 2^53 (in {where})")
    if state.step != (step := Manifest.read(folder).step):
        raise UserError(f"{where}: step is {state.step}, and the checkpoint is that of step {step}")
    return state


def _whole_numbers(value: Any) -> Iterator[int]:
    """Those in a value: what is no count has been read as a float."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _whole_numbers(item)
    elif isinstance(value, int):
        yield value
