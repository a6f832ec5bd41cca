"""The Python interface: `load` a model directory and use it; `train` a run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from glassformer import files, recipes
from glassformer.config.run import Run
from glassformer.devices import choose_device
from glassformer.errors import UserError
from glassformer.model import Model
from glassformer.models.half_precision import convert, weights_dtype
from glassformer.models.transforms import merge_lora
from glassformer.reporting import LaunchReporter, Silent
from glassformer.store import checkpoint
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import model_files, own_paths, read_model, weights_of, write_model_files
from glassformer.tasks.task import Votes
from glassformer.training.launch import Outcome, Replay, launch, relaunch
from glassformer.training.launch import replay as replay_run
from glassformer.training.trainer_state import TrainerState
from glassformer.training.trainer_state_file import read_progress


def load(folder: str | Path, *, step: int | None = None, device: str = "auto", dtype: str | None = None) -> Model:
    """A model directory, verified, on a device; `step` takes one of a run's checkpoints.

    `dtype` "bf16" or "fp16" converts the weights once, "fp32" keeps them. Without it the weights are in fp32 too, and
    `evaluate` measures in the precision of the run. Raises `UserError` for other names, and for a type that the device
    cannot compute in.
    """
    path = files.as_path(folder, "folder")
    if step is not None:
        path = checkpoint.find(path, step)
    where = choose_device(device)
    weights = None if dtype is None else weights_dtype(dtype, where)
    stored = read_model(path)
    source_tokenizer = stored.source_tokenizer or stored.tokenizer
    network = stored.network.to(where)
    if weights is not None and weights != torch.float32:
        convert(network, weights)
    progress = _progress(path)
    return Model(
        network,
        stored.tokenizer,
        source_tokenizer,
        stored.generation,
        stored.run,
        where,
        stored.labels,
        folder=Path(folder),
        step=stored.manifest.step,
        data_digest=None if progress is None else progress.data_digest,
        dtype=dtype,
    )


def ensemble(models: Sequence[Model | str | Path]) -> Model:
    """Several models as one, which translates, classifies or tags with the mean of their probabilities.

    Members are models or model directories. Of numbers it says the mean. It is the first model in all but the
    networks: its settings, and its own data. Raises `UserError` where members learned different things, have other
    labels or other tokenizers, and for models that go on with a text or fill masks.
    """
    if not models or isinstance(models, (str, Path)):
        raise UserError("name at least one model directory, in a list")
    first, *others = (member if isinstance(member, Model) else load(member) for member in models)
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


def merge(folder: str | Path, out: str | Path, *, step: int | None = None) -> int:
    """Writes an adapted model (LoRA) as a plain one, every update added to its weight; how many layers were merged.

    `UserError` when `out` exists, and when there is nothing to merge.
    """
    folder, out = files.as_path(folder, "folder"), files.as_path(out, "out")
    path = folder if step is None else checkpoint.find(folder, step)
    files.require_new_folder(out, own_paths(folder))
    stored = read_model(path)
    n = merge_lora(stored.network)
    if not n:
        raise UserError(f"{folder} has no adapted layers: there is nothing to merge")
    run = replace(stored.run, lora=None)
    with files.new_folder(out) as new:
        write_model_files(
            new, weights_of(stored.network), stored.tokenizer, run, stored.source_tokenizer, stored.labels
        )
        Manifest.of(new, "model", stored.manifest.step, model_files(stored.manifest)).write(new)
    return n


def training_cost(folder: str | Path) -> tuple[float | None, int | None]:
    """Seconds of training steps and target tokens behind a run's newest checkpoint; None where none is kept."""
    progress = _progress(files.as_path(folder, "folder"))
    return (None, None) if progress is None else (progress.seconds, progress.n_targets)


def _progress(folder: Path) -> TrainerState | None:
    """The progress that a run's newest checkpoint, or a checkpoint, keeps."""
    steps = checkpoint.steps(folder)
    state = checkpoint.path_of(folder, steps[-1]) if steps else folder
    return read_progress(state) if (state / checkpoint.STATE).exists() else None


class Trained(Outcome):
    """A finished run, and the model that it trained."""

    @cached_property
    def model(self) -> Model:
        """The trained model, loaded from the run's folder when it is first asked for."""
        return load(self.folder, device=self.run.train.device)


def train(
    run: Run | str | Path,
    out: str | Path | None = None,
    reporter: LaunchReporter | None = None,
    *,
    init: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Trained:
    """Train a run into a folder, `runs/NAME` by default; the result has the model.

        outcome = train("mybook.txt", max_steps=500)
        print(outcome.model.generate("Once"))

    `run` is a `Run`, or what `glassformer train` takes: a recipe's name, a TOML file, a text file or a folder of texts.
    `init` is a model directory to start from. `changes` and `settings` replace keys of the run, by whole or short name:
    `changes={"train.max_steps": 500}` and `max_steps=500` are the same. Raises `UserError` for a key that is unknown,
    with the nearest one, and for a short name of several keys.
    """
    chosen = run if isinstance(run, Run) else recipes.run_of(files.as_path(run, "run"))
    if twice := set(changes or {}) & set(settings):
        raise UserError(f"{min(twice)} is given twice: give it once")
    start = {} if init is None else {"init.path": files.as_path(init, "init")}
    if every := {**start, **(changes or {}), **settings}:
        chosen = recipes.with_changes(chosen, every)
    folder = Path("runs") / chosen.name if out is None else files.as_path(out, "out")
    return _trained(launch(chosen, folder, reporter or Silent()))


def resume(
    folder: str | Path, reporter: LaunchReporter | None = None, flags: Mapping[str, str] | None = None
) -> Trained:
    """Goes on with a run from its newest intact checkpoint, exactly; `flags` say where and for how long."""
    return _trained(relaunch(files.as_path(folder, "folder"), reporter or Silent(), flags))


def _trained(outcome: Outcome) -> Trained:
    return Trained(outcome.folder, outcome.reports, outcome.run)


def replay(folder: str | Path, reporter: LaunchReporter | None = None) -> Replay:
    """Takes the steps between the two newest checkpoints of a run again, and compares, to the bit."""
    return replay_run(files.as_path(folder, "folder"), reporter or Silent())
