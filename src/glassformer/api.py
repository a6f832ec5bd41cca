"""The Python interface: `load` a model directory and use it; `train` a run.

Functions import their dependencies when called: `load` needs no optimizer code, and naming a run needs no torch.
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


def load(
    folder: str | Path,
    *,
    step: int | None = None,
    device: str = "auto",
    dtype: str | None = None,
    fused: bool = False,
) -> "Model":
    """Load and verify a model directory; `step` selects one of a run's checkpoints.

    `dtype` "bf16", "fp16" or "int8" converts the weights once, for inference; "fp32" keeps them. By default the weights
    are in fp32 too, and `evaluate` uses the precision of the run. `fused` joins the matrices of queries, keys and
    values, and those of gated feed-forward layers, which is a little faster. Raises `UserError` for an unknown type,
    and for a type that the device does not support.
    """
    from glassformer.loading import load_model

    return load_model(folder, step, device, dtype, fused)


def ensemble(models: "Sequence[Model | str | Path]") -> "Model":
    """Combine several models into one that translates, classifies or tags with the mean of their probabilities.

    Members are models or model directories. Regression outputs are averaged. Settings and data come from the first
    model. Raises `UserError` if the members differ in task, labels or tokenizers, and for models that continue a text
    or fill masks.
    """
    from glassformer.loading import voting_model

    return voting_model(models)


def merge(folder: str | Path, out: str | Path, *, step: int | None = None) -> int:
    """Merge the LoRA updates of an adapted model into its weights, and save it; return the number of merged layers.

    `step` selects one of a run's checkpoints. Raises `UserError` if `out` exists, or if there is nothing to merge.
    """
    from glassformer.store.merging import merge_directory

    return merge_directory(files.as_path(folder, "folder"), files.as_path(out, "out"), step)


def training_cost(folder: str | Path) -> tuple[float | None, int | None]:
    """Return the training seconds and target tokens of a run's newest checkpoint; (None, None) if not stored."""
    from glassformer.loading import stored_progress

    progress = stored_progress(files.as_path(folder, "folder"))
    return (None, None) if progress is None else (progress.seconds, progress.n_targets)


class Trained(Outcome):
    """A finished run and its trained model."""

    @cached_property
    def model(self) -> "Model":
        """The trained model, loaded from the run folder on first access."""
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
    """Train a run in a folder, by default `runs/NAME`, and return the outcome with the trained model.

        outcome = train("mybook.txt", max_steps=500)
        print(outcome.model.generate("Once"))

    `run` is a `Run`, a recipe's name, a TOML file, a text file or a folder of texts (as for `glassformer train`).
    `init` is a model directory to start from. `changes` and `settings` replace keys of the run, by full or short name:
    `changes={"train.max_steps": 500}` and `max_steps=500` are equivalent. Raises `UserError` for an unknown key (and
    suggests the nearest one), and for a short name that several keys share. Without a `reporter`, progress is shown on
    a terminal and in a notebook only.
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
    """Resume a run exactly from its newest intact checkpoint; `flags` change its device, time limit and the like.

    `settings` are keys of `[train]` without the section: `max_time=60` is `flags={"train.max_time": "60"}`.
    """
    from glassformer.terminal import reporter_or_default
    from glassformer.training.run import resume_run

    changed = {f"train.{name}": str(value) for name, value in settings.items()}
    with reporter_or_default(reporter) as shown:
        return Trained(**vars(resume_run(files.as_path(folder, "folder"), shown, {**(flags or {}), **changed})))


def replay(folder: str | Path, reporter: LaunchReporter | None = None) -> "Replay":
    """Repeat the steps between the two newest checkpoints of a run, and compare the results bit by bit."""
    from glassformer.training.run import replay_run

    return replay_run(files.as_path(folder, "folder"), reporter or Silent())
