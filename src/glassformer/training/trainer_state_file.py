"""How the loop's progress is read back, from a file that may say anything."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from glassformer.errors import UserError
from glassformer.evaluation.loss import LossReport
from glassformer.store import checkpoint
from glassformer.store.manifest import Manifest
from glassformer.training.loss_scale import LossScale
from glassformer.training.trainer_state import TrainerState


def read_progress(folder: Path) -> TrainerState:
    """The progress that a checkpoint keeps; `UserError` naming what is missing, unknown, or not what it must be."""
    numbers, where = checkpoint.load_numbers(folder), folder / checkpoint.STATE
    odd = [f"{name} is missing" for name in _RULES if name not in numbers and name not in _LATER]
    odd += [f"{name!r:.60} is unknown" for name in numbers if name not in _RULES]
    if odd:
        raise UserError(f"{where} is no state of a training: {'; '.join(odd[:4])}")
    for name, value in numbers.items():
        fits, what = _RULES[name]
        if not fits(value):
            raise UserError(f"{where}: {name} is {str(value)!r:.60} and must be {what}")
    if numbers["step"] != (step := Manifest.read(folder).step):
        raise UserError(f"{where}: step is {numbers['step']}, and the checkpoint is that of step {step}")
    return TrainerState(**numbers)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _is_steps(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _is_scale(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {f.name for f in fields(LossScale)}:
        return False
    return _is_number(value["factor"]) and _is_count(value["n_good_steps"])


def _is_plateau(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"factor", "best", "n_worse"}:
        return False
    return _is_number(value["factor"]) and _or_none(_is_number)(value["best"]) and _is_count(value["n_worse"])


def _is_unlogged(value: Any) -> bool:
    """Pairs of nats and targets."""
    pairs = isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
    return pairs and all(_is_number(nats) and _is_count(n_targets) for nats, n_targets in value)


def _is_report(value: Any) -> bool:
    """The fields of a `LossReport`, or nothing yet."""
    if not isinstance(value, dict) or value.keys() not in (set(), {f.name for f in fields(LossReport)}):
        return False
    return all(map(_or_none(_is_number), value.values()))


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "step": (_is_count, "a number of steps"),
    "seconds": (_is_number, "a number"),
    "n_targets": (_is_count, "a number of tokens"),
    "best": (_or_none(_is_number), "a number"),
    "best_step": (_or_none(_is_count), "a step"),
    "n_without_improvement": (_is_count, "a number of evaluations"),
    "plateau": (_or_none(_is_plateau), "the state of a plateau schedule"),
    "unlogged": (_is_unlogged, "pairs of nats and targets"),
    "finished": (lambda value: isinstance(value, bool), "true or false"),
    "valid": (_is_report, "a report of a loss"),
    "data_digest": (lambda value: isinstance(value, str), "a text"),
    "scaler": (_or_none(_is_scale), "the state of a scale"),
    "rate_factor": (_is_number, "a number"),
    "n_rollbacks": (_is_count, "a number of rollbacks"),
    "scheduled": (_is_steps, "a list of steps"),
    "n_skipped": (_is_count, "a number of steps"),
    "made_with": (_is_table, "a table"),
}
_LATER = ("scaler", "scheduled", "rate_factor", "n_rollbacks", "n_skipped", "made_with")
"""What older checkpoints do not have yet."""
