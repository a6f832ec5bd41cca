"""Loading of model directories: one model, or several as an ensemble. Paths are checked before torch is loaded."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from glassformer.common import files
from glassformer.common.errors import UserError, require_type, warn
from glassformer.store import checkpoint
from glassformer.store.model_directory import read_model
from glassformer.tasks.requirements import no_ensemble

if TYPE_CHECKING:
    from glassformer.model import Model
    from glassformer.training.trainer_state import TrainerState


def load(
    folder: str | Path,
    *,
    step: int | None = None,
    device: str = "auto",
    dtype: str | None = None,
) -> "Model":
    """Load and verify a model directory; `step` selects one of a run's checkpoints.

    `dtype` "bf16" or "fp16" converts the weights once, for inference; "fp32" keeps them. By default the weights
    are in fp32 too, and `evaluate` uses the precision of the run. Raises `UserError` for an unknown type, and for a
    type that the device does not support.
    """
    # Check the arguments before anything is read
    path = checkpoint.find(files.as_path(folder, "folder"), step)
    import torch

    from glassformer.model import Model
    from glassformer.models.devices import choose_device, emulation_note
    from glassformer.models.transforms import convert, weights_dtype
    from glassformer.trial.choice import earned_device

    where = choose_device(device)
    weights = None if dtype is None else weights_dtype(dtype, where)
    if note := emulation_note(dtype, where):
        warn(note)
    # The network
    stored = read_model(path)
    where = earned_device(device, stored.config, warn)
    network, run = stored.network.to(where), stored.run
    if weights is not None and weights != torch.float32:
        convert(network, weights)
    # The model
    progress = stored_progress(path)
    return Model(
        network,
        stored.tokenizers,
        stored.generation,
        run,
        where,
        stored.labels,
        folder=Path(folder),
        step=stored.manifest.step,
        data_digest=None if progress is None else progress.data_digest,
        dtype=dtype,
    )


def ensemble(models: "Sequence[Model | str | Path]") -> "Model":
    """Combine several translators into one model, which translates with the mean of the members' probabilities.

    Members are models or model directories. Settings and data come from the first model. Raises `UserError`
    for models of other tasks, and if the tokenizers differ.
    """
    if not models or isinstance(models, (str, Path)):
        raise UserError("give at least one model directory; in Python, pass a list")
    members = [files.as_path(member, "models") if isinstance(member, (str, Path)) else member for member in models]
    for member in members:
        if isinstance(member, Path):
            checkpoint.find(member)
    from glassformer.model import Model  # imports torch

    for member in members:
        require_type(member, (Path, Model), "models", "Models or their folders")
    first, *others = (load(member) if isinstance(member, Path) else member for member in members)
    for number, other in enumerate(others, 2):
        if first.task.ensemble(first.run, first.members) is None:
            raise no_ensemble(first.name, first.learned)
        difference = _difference(first, other)
        if difference is not None:
            raise UserError(
                f"model 1 ({first.name}) and model {number} ({other.name}) cannot form an ensemble: {difference}"
            )
    return replace(first, others=tuple(model.network for model in others))


def _difference(one: "Model", other: "Model") -> str | None:
    """Return the reason why two models cannot form an ensemble, or None."""
    if one.learned != other.learned:
        return f"the first learned to {one.learned}, the second to {other.learned}"
    for name in ("tokenizer", "source_tokenizer"):
        if getattr(one, name).fingerprint != getattr(other, name).fingerprint:
            return f"they have different {name.replace('_', ' ')}s"
    return None


def stored_progress(folder: Path) -> "TrainerState | None":
    """Return the training progress stored in a checkpoint, or in a run's newest checkpoint; None if not stored."""
    from glassformer.training.trainer_state import read_progress

    steps = checkpoint.steps(folder)
    if steps:
        folder = checkpoint.path_of(folder, steps[-1])
    if not (folder / checkpoint.STATE).exists():
        return None
    return read_progress(folder)
