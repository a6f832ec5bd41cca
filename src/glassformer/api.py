"""The Python interface: `load` a model directory and use it; `train` a run.

A function imports its dependencies when it is called. So `load` imports no optimizer code, and a `Run` needs no torch.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.common import files
from glassformer.common.errors import Log, UserError, nearest_name, no_attribute, once, require_type, suggestion, warn
from glassformer.config import presets, recipes
from glassformer.config.presets import PRESETS, preset
from glassformer.config.run import LabelData, MaskedConfig, Run
from glassformer.config.schema import to_dict
from glassformer.config.train import require_changeable
from glassformer.config.written import to_toml
from glassformer.cost.hardware import MFU, find_gpu, require_mfu
from glassformer.data import own_data
from glassformer.data.addresses import is_pattern
from glassformer.data.formats import HUB
from glassformer.data.in_memory import Given, path_or_rows
from glassformer.evaluation.compare import ComparedModel, Comparison, describe_model, mean_of_seeds
from glassformer.evaluation.metrics import METRICS
from glassformer.loading import ensemble as ensemble
from glassformer.loading import load as load
from glassformer.loading import stored_progress
from glassformer.store.model_directory import RUN, read_run
from glassformer.tasks.reporting import LaunchReporter, Outcome, Silent

if TYPE_CHECKING:
    from glassformer.cost.plan import Plan
    from glassformer.evaluation.pairs import PairScores
    from glassformer.model import Model
    from glassformer.tasks.batches import Place
    from glassformer.training.replay import Replay


def merge(folder: str | Path, out: str | Path, *, step: int | None = None) -> int:
    """Merge the LoRA updates of an adapted model into its weights, and save it; return the number of merged layers.

    `step` selects one of a run's checkpoints. Raises `UserError` if `out` exists, or if there is nothing to merge.
    """
    from glassformer.store.checkpoint import merge_directory

    return merge_directory(files.as_path(folder, "folder"), files.as_path(out, "out"), step)


class Trained(Outcome):
    """A finished run and its trained model."""

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of the run's `metrics.jsonl`: training losses, evaluations and rates, each with its `step`."""
        from glassformer.training.metrics_log import NAME, read_lines

        return read_lines(self.folder / NAME)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an error that names the attribute to use in place of a guessed one."""
            from glassformer.model import Model

            guessed = {"metrics": "history", "log": "history", "loss": 'reports["valid"].loss', "scores": "history"}
            instead = guessed.get(name)
            if instead is None and hasattr(Model, name):
                instead = f"model.{name}"
            raise no_attribute("a finished run", name, instead and f"outcome.{instead}")

    @cached_property
    def model(self) -> "Model":
        """The trained model, loaded from the run folder on first access."""
        return load(self.folder, device=self.run.train.device)


def train(
    run: "Run | str | Path | Iterable[Any] | None" = None,
    out: str | Path | None = None,
    reporter: LaunchReporter | None = None,
    *,
    kind: own_data.Kind | None = None,
    init: str | Path | None = None,
    teacher: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Trained:
    """Train a run in a folder, by default `runs/NAME`, and return the outcome with the trained model.

        outcome = train("mybook.txt", max_steps=500)
        print(outcome.model.generate("Once"))
        train("reviews.tsv"), train(source="train.en", target="train.de"), train([("a dog", "ein Hund")])

    `run` is a `Run`, a recipe's name, a TOML file, or own data: a file, a folder or a pattern (as for `glassformer
    train`), or data in memory. Data in memory is a list of texts, of (source, target), of (text, label) or of
    dictionaries, a DataFrame, or a `datasets.Dataset`; its records are written into the folder of the run. Two files of
    pairs are `source` and `target`; the second argument is the folder of the run. A note names the recognised kind of a
    table. `kind` sets the kind instead: text, pairs or labels.

    `init` is a model directory to start from. `teacher` is a model directory whose probabilities the model also learns.
    `changes` and `settings` replace keys of the run, by full or short name: `changes={"train.max_steps": 500}` and
    `max_steps=500` are equivalent. Raises `UserError` for an unknown key (and suggests the nearest one), and for a
    short name that several keys share. Without a `reporter`, progress is shown on a terminal and in a notebook only.
    """
    if run is not None and out is not None and (place := files.as_path(out, "out")).is_file():
        raise UserError(
            f"out is the folder of the run, and {place} is a file: two files of pairs are "
            f"train(source='train.en', target={str(out)!r})"
        )
    from glassformer.training.checks import for_start, run_of

    # 1. The run: the given one, a named one, or one that is made for the data
    models = {
        f"{name}.path": files.as_path(place, name)
        for name, place in (("init", init), ("teacher", teacher))
        if place is not None
    }
    given = {**(changes or {}), **settings}
    records, evidence, notes = None, "", ""
    if isinstance(run, Run):
        chosen = run
    elif run is None or isinstance(run, (str, os.PathLike)):
        chosen, notes = run_of(*(() if run is None else (run,)), kind=kind, changes=models | given)
    else:
        chosen, records, evidence = own_data.run_in_memory(run, kind, given)
        chosen, notes = for_start(chosen, models | given)
    # 2. Replace keys of the run
    if models or given:
        chosen = recipes.with_changes(chosen, {**models, **(changes or {})}, **settings)
    # 3. What can be checked before torch is imported, and then the training
    from glassformer.training.checks import check_new_run
    from glassformer.training.run_folder import RECORDS, with_records

    folder = Path("runs") / chosen.name if out is None else files.as_path(out, "out")
    with with_records(chosen, records, folder) as complete:
        check_new_run(complete, folder)  # imports no torch
        own_data.note(evidence and f"{evidence}; they are written to {folder / RECORDS}")
        own_data.note(notes)
        from glassformer.training.run import train_run
        from glassformer.training.terminal import reporter_or_default

        with reporter_or_default(reporter) as shown:
            return Trained(**vars(train_run(complete, folder, shown)))


def resume(
    folder: str | Path, reporter: LaunchReporter | None = None, flags: Mapping[str, str] | None = None, **settings: Any
) -> Trained:
    """Resume a run exactly from its newest intact checkpoint.

    `flags` replace the settings in `config.train.CHANGEABLE`; `settings` are keys of `[train]` without the section:
    `max_steps=500` is `flags={"train.max_steps": "500"}`. With another `max_steps`, the result equals the result of a
    run that was started with this `max_steps`. Raises `UserError` if this is not possible: if the learning rate of the
    steps so far depends on `max_steps`.
    """
    changed = {**(flags or {}), **{f"train.{name}": str(value) for name, value in settings.items()}}
    require_changeable(changed)
    from glassformer.training.checks import check_stored_run

    path = files.as_path(folder, "folder")
    check_stored_run(path)
    from glassformer.training.run import resume_run
    from glassformer.training.terminal import reporter_or_default

    with reporter_or_default(reporter) as shown:
        return Trained(**vars(resume_run(path, shown, changed)))


def replay(folder: str | Path, reporter: LaunchReporter | None = None) -> "Replay":
    """Repeat the steps between the two newest checkpoints of a run, and compare the results bit by bit."""
    from glassformer.training.checks import check_stored_run

    path = files.as_path(folder, "folder")
    check_stored_run(path)
    from glassformer.training.replay import replay_run

    return replay_run(path, reporter or Silent())


def plan(
    run: Run | str | Path,
    gpu: str = "h200",
    n_gpus: int = 1,
    *,
    mfu: float = MFU,
    **options: Any,
) -> "Plan":
    """Predict the parameters, memory, FLOPs and time of a run on GPUs, before it starts.

        planned = plan("gpt2", "a100-80gb", 8)
        print(planned.memory.total, planned.seconds / 3600, planned.to_dict())

    `run` is a `Run`, or what `glassformer plan` takes: a preset, a recipe, a TOML file, own data, or a model directory.
    `gpu` is a name of `cost.hardware.GPUS`, or memory and TFLOP/s such as `24GB,80TF`. `mfu` is the utilisation of a
    GPU. `options` are those of `cost.plan.plan_run`. Raises `UserError` as `plan_run` does, for numbers out of range,
    and for an unknown name.
    """
    require_mfu(mfu)
    from glassformer.cost.plan import plan_run

    if not isinstance(run, Run):
        run, _ = run_to_plan(run, {})
    return plan_run(run, find_gpu(gpu), n_gpus, mfu=mfu, **options)


def run_to_plan(source: str | Path, given: Mapping[str, str]) -> tuple[Run, str]:
    """Return the run of a preset, a recipe, a TOML file or a model directory, or the run of `train` for own data.

    The second result is a text that describes how own data was recognised.
    """
    place = str(source)
    if place in presets.names():
        run = Run(name=place, model=preset(place))
        if place in PRESETS and PRESETS[place].decoder is None:
            run = replace(run, objective=MaskedConfig())
        return run, ""
    if place.endswith(".toml") or place in recipes.names():
        return recipes.load(place), ""
    path = files.as_path(source, "run")
    if (path / RUN).exists():
        return read_run(path), ""
    if not (files.exists(path) or is_pattern(place) or place.startswith(HUB)):
        near = nearest_name(place, [*presets.names(), *recipes.names()], cutoff=0.4)
        hint = suggestion(near, "; see `glassformer presets` and `glassformer recipes`")
        raise UserError(f"no preset, recipe, file or model directory is named {place!r}{hint}")
    from glassformer.training.checks import run_of

    try:
        return run_of(path, changes=given)
    except UserError as error:
        if path.is_dir():
            raise UserError(f"{place} is not a model directory: it has no {RUN}, and no text: {error}") from None
        raise


def compare(
    models: "Sequence[Model | str | Path]",
    score: str | None = None,
    reporter: LaunchReporter | None = None,
    *,
    path: Given = None,
    source: "Place" = None,
    target: "Place" = None,
    **search: Any,
) -> Comparison:
    """Return a table with a row per model, measured on the model's own validation data or on the same data.

        print(compare(["runs/small", "runs/large"]))

    A row has the parameters, training time and tokens, loss, score, and the speed of decoding (after a warm-up with one
    sentence). Runs that differ in the seed only are one row, with means and the standard error of the score.
    `score` is by default BLEU or word errors for pairs, accuracy or RMSE for labels, bits per byte for texts. `path`
    (or data in memory), `source` and `target` are those of `Model.evaluate`; `search` has settings of the beam search.
    """
    from glassformer.model import Model

    loaded = [load(model) if isinstance(model, (str, Path)) else model for model in models]
    for model in loaded:
        require_type(model, Model, "models", "Models or their folders")
    names = [model.run.name if model.folder is None else model.folder.resolve().name for model in loaded]
    if len(set(names)) < len(names):
        names = [model.name for model in loaded]
    scores = [_score_of(model, score) for model in loaded]
    places = {"path": path_or_rows(path), "source": source, "target": target}
    shown = reporter or Silent()
    shown.facts({name: describe_model(model.config) for name, model in zip(names, loaded, strict=True)})
    rows = zip(names, loaded, scores, strict=True)
    measured = [_compared(name, model, score, shown, places, search) for name, model, score in rows]
    return Comparison(
        mean_of_seeds(loaded[group[0]].run.name, [measured[n] for n in group]) if len(group) > 1 else measured[group[0]]
        for group in _groups_of_seeds(loaded)
    )


def _groups_of_seeds(models: "Sequence[Model]") -> list[list[int]]:
    """Return the places of models in groups: runs that differ in the seed only are a group."""
    from glassformer.training.metrics_log import NAME, read_lines

    groups: dict[str, list[int]] = {}
    for n, model in enumerate(models):
        alike = to_toml(to_dict(replace(model.run, name="", train=replace(model.run.train, seed=0))))
        seeds = [models[place].run.train.seed for place in groups.get(alike, ())]
        lines = read_lines(model.folder / NAME) if model.folder is not None else []
        train = model.run.train  # a run that was stopped is no seed of one that ended
        is_run = bool(lines) and (train.early_stopping is not None or lines[-1]["step"] == train.max_steps)
        groups.setdefault(alike if is_run and model.run.train.seed not in seeds else f"{n}", []).append(n)
    return list(groups.values())


def _score_of(model: "Model", asked: str | None) -> str:
    """Return the score to show for a model; raise `UserError`, before decoding, if the model lacks that score."""
    from glassformer.tasks.task import trainable_task

    task = trainable_task(model.run)
    if (pair_scores := task.pair_scores(model.run)) is not None:
        pair_scores.require()
    known = task.metrics(model.run)
    if asked is not None and asked not in known:
        raise UserError(f"{model.name} has no score {asked!r}; choose one of {', '.join(known)}")
    return asked or task.first_metric(model.run)


def _compared(
    name: str, model: "Model", score: str, reporter: LaunchReporter, places: dict[str, Any], search: dict[str, Any]
) -> ComparedModel:
    """Return the row of a model in the comparison."""
    # 1. The training time and tokens, if they are recorded
    seconds = tokens = None
    if model.folder is not None and (stored := stored_progress(model.folder)) is not None:
        seconds, tokens = stored.seconds, stored.n_targets

    # 2. The loss, and the scores of decoded pairs or of the task
    log = once(warn)
    with reporter.phase(f"{name}: loss") as progress:
        report = model.evaluate(progress=progress, log=log, loss_only=True, **places)
    rate: float | None = None
    found: dict[str, Any] = report.to_dict()
    n = report.n_tokens if score in found or isinstance(model.run.data, LabelData) else None
    if (pair_scores := model.pair_scores) is not None:
        with reporter.phase(f"{name}: decoding") as progress:
            scores, rate, n_pairs = _decoded(model, pair_scores, places, search, progress, log)
        n = n if score in found else n_pairs
        found |= scores
    elif score not in found:
        found |= model.scores(log=log, **places)

    # 3. The row
    value = found[score]
    if value is None and score in METRICS and (why := METRICS[score].undefined):
        reporter.log(f"{name}: {score} is undefined, because {why}")
    return ComparedModel(
        name=name,
        kind=describe_model(model.config),
        n_parameters=model.network.n_parameters(),
        train_seconds=seconds,
        train_tokens=tokens,
        valid_loss=report.loss,
        score_name=score,
        score=None if value is None else float(value),
        sentences_per_s=rate,
        n_scored=n,
    )


def _decoded(
    model: "Model",
    pair_scores: "PairScores",
    places: dict[str, Any],
    search: dict[str, Any],
    progress: Callable[[int, int], None],
    log: Log,
) -> tuple[dict[str, Any], float, int]:
    """Return the scores of the targets that the model decodes, the sources per second, and the number of pairs."""
    from glassformer.evaluation.pairs import distinct_sources

    pairs = model.pairs(log=log, **places)
    sources = distinct_sources(pairs)
    model.translations(sources[:1], **search)  # warm-up: the first call includes one-time setup
    began = time.perf_counter()
    written = model.translations(sources, progress=progress, **search)
    rate = len(sources) / (time.perf_counter() - began)
    outputs = {source: best[0].text for source, best in zip(sources, written, strict=True)}
    return pair_scores.of_outputs(outputs, pairs), rate, len(pairs)
