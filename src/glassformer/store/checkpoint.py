"""Checkpoints: `DIR/checkpoints/step-N`, each a model directory and what training needs to go on.

A checkpoint appears whole (temporary folder, fsync, manifest, rename) or not at all; the newest whose manifest
agrees is the one to resume from. Tensors are safetensors, the rest is JSON.
"""

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from glassformer import files
from glassformer.errors import UserError
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import WEIGHTS
from glassformer.store.tensors import read_tensors, save_tensors

FOLDER = "checkpoints"
STATE = "training_state/state.json"
OPTIMIZER = "training_state/optimizer.safetensors"
AVERAGE = "training_state/average.safetensors"
UNAVERAGED = "training_state/weights.safetensors"
Tensors = dict[str, Tensor] | Path
"""By name; or a file of them that several processes have written, to be put in place."""


@dataclass(frozen=True)
class TrainingState:
    """What the loop needs beside the weights: numbers as JSON, tensors by name."""

    numbers: dict[str, Any]
    optimizer: Tensors
    average: Tensors | None = None
    """The moving average of the weights, where there is one; the model's file then holds it too."""
    weights: Tensors | None = None
    """Beside an average, the weights that training goes on from."""


def path_of(run_folder: Path, step: int) -> Path:
    return run_folder / FOLDER / f"step-{step}"


def save(run_folder: Path, step: int, write_model: Callable[[Path], None], state: TrainingState) -> Path:
    """Writes one checkpoint; `write_model` puts the model's files into the folder that it is given."""
    final = path_of(run_folder, step)
    with files.new_folder(final) as folder:
        write_model(folder)
        (folder / STATE).parent.mkdir()
        files.write_json(folder / STATE, state.numbers)
        for tensors, name in ((state.optimizer, OPTIMIZER), (state.average, AVERAGE), (state.weights, UNAVERAGED)):
            if isinstance(tensors, dict):
                tensors = {of: x.detach().contiguous() for of, x in tensors.items()}
            if tensors is not None:
                save_tensors(tensors, folder / name)
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        Manifest.of(folder, "checkpoint", step, names).write(folder)
    return final


def load_numbers(checkpoint: Path) -> dict[str, Any]:
    """The numbers of a training state alone."""
    numbers = files.read_json(checkpoint / STATE)
    if not isinstance(numbers, dict):
        raise UserError(f"{checkpoint / STATE} must be a table of numbers")
    return numbers


def load_state(checkpoint: Path) -> TrainingState:
    """The training state of a checkpoint whose manifest has been verified."""
    manifest = Manifest.read(checkpoint)
    manifest.require(checkpoint, [STATE, OPTIMIZER])
    return TrainingState(
        load_numbers(checkpoint),
        read_tensors(checkpoint / OPTIMIZER),
        read_tensors(checkpoint / AVERAGE) if AVERAGE in manifest.entries else None,
    )


def weights_path(checkpoint: Path) -> Path:
    """The weights that training goes on from: the model's own, unless that holds their average."""
    return checkpoint / (UNAVERAGED if UNAVERAGED in Manifest.read(checkpoint).entries else WEIGHTS)


def steps(run_folder: Path) -> list[int]:
    """Steps of the checkpoints of a run, oldest first; verified or not."""
    numbers = (path.name.removeprefix("step-") for path in (run_folder / FOLDER).glob("step-*") if path.is_dir())
    return sorted(int(number) for number in numbers if number.isdecimal())


def newest(run_folder: Path, log: Callable[[str], None]) -> Path:
    """The newest checkpoint whose manifest agrees; damaged ones are passed over, and `log` is told."""
    for step in reversed(steps(run_folder)):
        if is_intact(run_folder, step, log, "trying the checkpoint before it"):
            return path_of(run_folder, step)
    raise UserError(f"{run_folder} has no intact checkpoint to go on from")


def is_intact(run_folder: Path, step: int, log: Callable[[str], None], so: str = "it is left out") -> bool:
    """Whether a checkpoint agrees with its manifest; `log` is told of one that does not, and what is done then."""
    path = path_of(run_folder, step)
    try:
        Manifest.read(path).verify(path)
    except UserError as error:
        log(f"{error}; {so}")
        return False
    return True


def find(run_folder: Path, step: int) -> Path:
    """The checkpoint of one step; `UserError` naming those that there are."""
    path = path_of(run_folder, step)
    if not path.is_dir():
        there = ", ".join(map(str, steps(run_folder))) or "none"
        raise UserError(f"{run_folder} has no checkpoint of step {step}; there are: {there}")
    return path


def prune(run_folder: Path, latest: int, keep: int, always: set[int]) -> None:
    """Deletes all but the newest `keep` checkpoints up to `latest` and those of `always`; verifies `latest` first.

    Raises `OSError` when one cannot be deleted; the others are.

    Later ones are damaged, or the run would have gone on from them; it replaces them when it gets there.
    """
    path = path_of(run_folder, latest)
    Manifest.read(path).verify(path)
    problem: OSError | None = None
    for step in [step for step in steps(run_folder) if step <= latest][:-keep]:
        if step not in always:
            try:
                shutil.rmtree(path_of(run_folder, step))
            except OSError as error:
                problem = error
    if problem is not None:
        raise problem


def clean(run_folder: Path) -> None:
    """Deletes what a process that was killed left half-written."""
    for unfinished in (run_folder / FOLDER).glob(".*.tmp-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    for unfinished in run_folder.glob(".*.tmp*"):
        with suppress(OSError):
            unfinished.unlink()
