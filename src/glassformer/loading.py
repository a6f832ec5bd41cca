"""Model directories as models in use, one or several as one."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import torch

from glassformer import files
from glassformer.devices import choose_device
from glassformer.errors import UserError
from glassformer.model import Model
from glassformer.models.transforms import convert, weights_dtype
from glassformer.store import checkpoint
from glassformer.store.model_directory import read_model
from glassformer.tasks.task import Votes
from glassformer.training.trainer_state import TrainerState, read_progress


def load_model(folder: str | Path, step: int | None = None, device: str = "auto", dtype: str | None = None) -> Model:
    """The model of a directory, or of one of a run's checkpoints; see `api.load`."""
    path = files.as_path(folder, "folder")
    if step is not None:
        path = checkpoint.find(path, step)
    where = choose_device(device)
    weights = None if dtype is None else weights_dtype(dtype, where)
    stored = read_model(path)

    network = stored.network.to(where)
    if weights is not None and weights != torch.float32:
        convert(network, weights)
    progress = stored_progress(path)
    return Model(
        network,
        stored.tokenizer,
        stored.source_tokenizer or stored.tokenizer,
        stored.generation,
        stored.run,
        where,
        stored.labels,
        folder=Path(folder),
        step=stored.manifest.step,
        data_digest=None if progress is None else progress.data_digest,
        dtype=dtype,
    )


def voting_model(models: Sequence[Model | str | Path]) -> Model:
    """Several models as one; see `api.ensemble`."""
    if not models or isinstance(models, (str, Path)):
        raise UserError("name at least one model directory, in a list")
    first, *others = (member if isinstance(member, Model) else load_model(member) for member in models)
    for number, other in enumerate(others, 2):
        if not isinstance(first.task, Votes):
            raise UserError(f"models vote on targets of sources and on labels; {first.name} learned to {first.learned}")
        difference = _difference(first, other)
        if difference is not None:
            raise UserError(
                f"model 1 ({first.name}) and model {number} ({other.name}) cannot vote together: {difference}"
            )
    return replace(first, others=tuple(model.network for model in others))


def _difference(one: Model, other: Model) -> str | None:
    """What keeps two models from voting together, in words."""
    if one.learned != other.learned:
        return f"one learned to {one.learned}, the other to {other.learned}"
    for place, names in enumerate(zip_longest(one.classes, other.classes), 1):
        if names[0] != names[1]:
            shown = ["missing" if name is None else repr(name) for name in names]
            return f"label {place} is {shown[0]} of one and {shown[1]} of the other"
    for name in ("tokenizer", "source_tokenizer"):
        if getattr(one, name).fingerprint != getattr(other, name).fingerprint:
            return f"they differ in their {name.replace('_', ' ')}"
    return None


def stored_progress(folder: Path) -> TrainerState | None:
    """The progress that a run's newest checkpoint, or a checkpoint, keeps."""
    steps = checkpoint.steps(folder)
    state = checkpoint.path_of(folder, steps[-1]) if steps else folder
    return read_progress(state) if (state / checkpoint.STATE).exists() else None
