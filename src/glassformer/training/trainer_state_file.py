"""How the state of the loop is read back, from a file that may say anything."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from glassformer.config.schema import from_dict
from glassformer.errors import UserError
from glassformer.evaluation.loss import LossReport
from glassformer.store import checkpoint
from glassformer.store.manifest import Manifest
from glassformer.training.loss_scale import LossScale
from glassformer.training.trainer_state import TrainerState


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
    for field in fields(TrainerState):
        if field.name not in numbers and field.name not in _LATER:
            raise UserError(f"{field.name} is missing (in {where})")
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
