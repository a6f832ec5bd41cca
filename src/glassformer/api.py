"""The Python interface: `load` a model directory and use it; `train` a run.

Functions import what they need when they are called: who loads a model needs no optimizer, who names a run no torch.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer import files, recipes
from glassformer.config.run import Run
from glassformer.reporting import LaunchReporter, Outcome, Silent

if TYPE_CHECKING:
    from glassformer.model import Model
    from glassformer.training.run import Replay


def load(folder: str | Path, *, step: int | None = None, device: str = "auto", dtype: str | None = None) -> "Model":
    """A model directory, verified, on a device; `step` takes one of a run's checkpoints.

    `dtype` "bf16" or "fp16" converts the weights once, "fp32" keeps them. Without it the weights are in fp32 too, and
    `evaluate` measures in the precision of the run. Raises `UserError` for other names, and for a type that the device
    cannot compute in.
    """
    from glassformer.loading import load_model

    return load_model(folder, step, device, dtype)


def ensemble(models: "Sequence[Model | str | Path]") -> "Model":
    """Several models as one, which translates, classifies or tags with the mean of their probabilities.

    Members are models or model directories. Of numbers it says the mean. It is the first model in all but the
    networks: its settings, and its own data. Raises `UserError` where members learned different things, have other
    labels or other tokenizers, and for models that go on with a text or fill masks.
    """
    from glassformer.loading import voting_model

    return voting_model(models)


def merge(folder: str | Path, out: str | Path, *, step: int | None = None) -> int:
    """Writes an adapted model (LoRA) as a plain one, every update added to its weight; how many layers were merged.

    `step` takes one of a run's checkpoints. `UserError` when `out` exists, and when there is nothing to merge.
    """
    from glassformer.store.merging import merge_directory

    return merge_directory(files.as_path(folder, "folder"), files.as_path(out, "out"), step)


def training_cost(folder: str | Path) -> tuple[float | None, int | None]:
    """Seconds of training steps and target tokens behind a run's newest checkpoint; None where none is kept."""
    from glassformer.loading import stored_progress

    progress = stored_progress(files.as_path(folder, "folder"))
    return (None, None) if progress is None else (progress.seconds, progress.n_targets)


class Trained(Outcome):
    """A finished run, and the model that it trained."""

    @cached_property
    def model(self) -> "Model":
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
    with the nearest one, and for a short name of several keys. Without a `reporter` the progress is shown on a terminal
    and in a notebook, and nowhere else.
    """
    chosen = run if isinstance(run, Run) else recipes.run_of(files.as_path(run, "run"))
    start = {} if init is None else {"init.path": files.as_path(init, "init")}
    if start or changes or settings:
        chosen = recipes.with_changes(chosen, {**start, **(changes or {})}, **settings)
    from glassformer.terminal import reporter_or_default
    from glassformer.training.run import train_run

    folder = Path("runs") / chosen.name if out is None else files.as_path(out, "out")
    with reporter_or_default(reporter) as shown:
        return Trained(**vars(train_run(chosen, folder, shown)))


def resume(
    folder: str | Path, reporter: LaunchReporter | None = None, flags: Mapping[str, str] | None = None, **settings: Any
) -> Trained:
    """Continue a run from its newest intact checkpoint, exactly; `flags` change where it runs and for how long.

    `settings` are keys of `[train]` without the section: `max_time=60` is `flags={"train.max_time": "60"}`.
    """
    from glassformer.terminal import reporter_or_default
    from glassformer.training.run import resume_run

    changed = {f"train.{name}": str(value) for name, value in settings.items()}
    with reporter_or_default(reporter) as shown:
        return Trained(**vars(resume_run(files.as_path(folder, "folder"), shown, {**(flags or {}), **changed})))


def replay(folder: str | Path, reporter: LaunchReporter | None = None) -> "Replay":
    """Takes the steps between the two newest checkpoints of a run again, and compares, to the bit."""
    from glassformer.training.run import replay_run

    return replay_run(files.as_path(folder, "folder"), reporter or Silent())
