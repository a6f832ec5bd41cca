"""Checkpoints: `DIR/checkpoints/step-N`, each a model directory plus the training state needed to resume.

A checkpoint is written completely (temporary folder, fsync, manifest, rename) or not at all. A run resumes from the
newest checkpoint that matches its manifest. Tensors are safetensors, the rest is JSON.
"""

import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.store import model_directory
from glassformer.store.manifest import Manifest

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = "checkpoints"
SMALL_BYTES = 1 << 20
"""Largest file whose content `find` compares with the manifest."""
STATE = "training_state/state.json"
OPTIMIZER = "training_state/optimizer.safetensors"
AVERAGE = "training_state/average.safetensors"
UNAVERAGED = "training_state/weights.safetensors"
Tensors: TypeAlias = "dict[str, Tensor] | Path"
"""Tensors by name, or a file in which several processes have written them, which is moved into place."""


@dataclass(frozen=True)
class TrainingState:
    """State of the training loop besides the weights: numbers as JSON, tensors by name."""

    numbers: dict[str, Any]
    optimizer: Tensors
    average: "Tensors | None" = None
    """Moving average of the weights, if used; the model's file then contains it too."""
    weights: "Tensors | None" = None
    """Weights to resume from, if there is a moving average."""


def path_of(run_folder: Path, step: int) -> Path:
    return run_folder / FOLDER / f"step-{step}"


def save(run_folder: Path, step: int, write_model: Callable[[Path], None], state: TrainingState) -> Path:
    """Write one checkpoint; `write_model` writes the model's files into the folder that it receives."""
    from glassformer.store.tensors import save_tensors

    final = path_of(run_folder, step)
    with files.new_folder(final) as folder:
        write_model(folder)
        (folder / STATE).parent.mkdir()
        files.write_json(folder / STATE, state.numbers)
        for tensors, name in ((state.optimizer, OPTIMIZER), (state.average, AVERAGE), (state.weights, UNAVERAGED)):
            if tensors is not None:
                save_tensors(tensors, folder / name)
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        Manifest.of(folder, "checkpoint", step, names).write(folder)
    return final


def load_numbers(checkpoint: Path) -> dict[str, Any]:
    """Read only the numbers of a training state."""
    numbers = files.read_json(checkpoint / STATE)
    if not isinstance(numbers, dict):
        raise UserError(f"{checkpoint / STATE} must be a table of numbers")
    return numbers


def load_state(checkpoint: Path) -> TrainingState:
    """Read the training state of a checkpoint whose manifest has been verified."""
    from glassformer.store.tensors import read_tensors

    manifest = Manifest.read(checkpoint)
    manifest.require(checkpoint, [STATE, OPTIMIZER])
    numbers, optimizer, average = load_numbers(checkpoint), read_tensors(checkpoint / OPTIMIZER), None
    if AVERAGE in manifest.entries:
        average = read_tensors(checkpoint / AVERAGE)
    return TrainingState(numbers, optimizer, average)


def weights_path(checkpoint: Path) -> Path:
    """Return the file of the weights to resume from: the model's file, unless it contains averaged weights."""
    return checkpoint / (UNAVERAGED if UNAVERAGED in Manifest.read(checkpoint).entries else model_directory.WEIGHTS)


def steps(run_folder: Path) -> list[int]:
    """Return the steps of a run's checkpoints, oldest first, verified or not."""
    files.restore_replaced(run_folder / FOLDER)
    numbers = (path.name.removeprefix("step-") for path in (run_folder / FOLDER).glob("step-*") if path.is_dir())
    return sorted(int(number) for number in numbers if number.isdecimal())


def newest(run_folder: Path, log: Callable[[str], None]) -> Path:
    """Return the newest checkpoint that matches its manifest; report damaged ones to `log`."""
    for step in reversed(steps(run_folder)):
        if is_intact(run_folder, step, log, "trying the previous checkpoint"):
            return path_of(run_folder, step)
    raise UserError(f"{run_folder} has no intact checkpoint to resume from")


def require_one(run_folder: Path) -> None:
    """Raise `UserError` if no checkpoint has the files and sizes of its manifest; `newest` compares their content."""
    damage: list[str] = []
    for step in reversed(steps(run_folder)):
        try:
            find(run_folder, step)
        except UserError as error:
            damage.append(str(error))
        else:
            return
    newest_is = f": {damage[0]}" if damage else ""
    raise UserError(f"{run_folder} has no intact checkpoint to resume from{newest_is}")


def is_intact(run_folder: Path, step: int, log: Callable[[str], None], so: str = "it is skipped") -> bool:
    """Return True if a checkpoint matches its manifest; otherwise report the damage and the action `so` to `log`."""
    path = path_of(run_folder, step)
    try:
        Manifest.read(path).verify(path)
    except UserError as error:
        log(f"{error}; {so}")
        return False
    return True


def find(folder: Path, step: int | None = None) -> Path:
    """Return a model directory, or a run's checkpoint of one step, whose files have the sizes in its manifest.

    The content of small files, such as the configuration, is compared too; `read_model` compares the content of all
    files. Raises `UserError` if the folder is missing, is not a model directory, or is damaged.
    """
    path = folder if step is None else path_of(folder, step)
    if step is not None and folder.is_dir() and step not in (there := steps(folder)):
        raise UserError(
            f"{folder} has no checkpoint of step {step}; existing steps: {', '.join(map(str, there)) or 'none'}"
        )
    model_directory.read_manifest(path if folder.is_dir() else folder, SMALL_BYTES)
    return path


def prune(run_folder: Path, latest: int, keep: int, always: Collection[int | None]) -> None:
    """Verify `latest`; delete the checkpoints up to it, except the newest `keep` and those in `always`.

    Raises `OSError` if one cannot be deleted, after deleting the others. Checkpoints after `latest` are kept. They are
    damaged, because the run did not resume from them, and the run replaces them later.
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
    """Delete the unfinished files of a process that was killed, and restore the checkpoint that it was replacing."""
    files.restore_replaced(run_folder / FOLDER)
    for unfinished in (run_folder / FOLDER).glob(".*.tmp-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    for unfinished in run_folder.glob(".*.tmp*"):
        with suppress(OSError):
            unfinished.unlink()


def merge_directory(folder: Path, out: Path, step: int | None = None) -> int:
    """Write the model of `folder`, or its checkpoint of a step, with every low-rank update added to its weight.

    Returns the number of merged layers. Raises `UserError` if `out` exists, or if there is nothing to merge.
    """
    path = find(folder, step)
    files.require_new_folder(out, model_directory.own_paths(folder))
    from glassformer.models.transforms import merge_lora  # imports torch

    stored = model_directory.read_model(path)
    n = merge_lora(stored.network)
    if not n:
        raise UserError(f"{folder} has no adapted layers: there is nothing to merge")
    run = replace(stored.run, lora=None)
    with files.new_folder(out) as new:
        model_directory.write_model_files(
            new, model_directory.weights_of(stored.network), stored.tokenizers, run, stored.labels
        )
        Manifest.of(new, "model", stored.manifest.step, model_directory.model_files(stored.manifest)).write(new)
    return n
