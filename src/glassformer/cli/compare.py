"""glassformer compare DIR…"""

import json
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.cli.arguments import Dirs, Search
from glassformer.cli.evaluate import already_reported
from glassformer.cli.inputs_outputs import Measured, require_output
from glassformer.errors import UserError
from glassformer.evaluation.compare import ComparedModel, comparison_table, describe_model
from glassformer.inspection.figures import figure_paths, save_figure
from glassformer.tasks.registry import trainable_task
from glassformer.tasks.task import HasPairs
from glassformer.terminal import TerminalReporter, show

if TYPE_CHECKING:
    from glassformer.model import Model


def main(
    *directories: Dirs,
    score: str | None = None,
    plot: Path | None = None,
    device: str = "auto",
    quiet: bool = False,
    json_: bool = False,
    data: Measured,
    search: Search,
) -> int:
    """Compare models in one table: parameters, training time and tokens, loss, score, and decoding speed.

    Sentences per second measure decoding only, in batches, after a warm-up with one sentence.

    Args:
        directories: Model directories.
        score: The score to show; default: bleu or wer for pairs, accuracy or rmse for labels, bits per byte for text.
        plot: Plot score against training time to this file (PNG and SVG, or the format of its suffix).
        device: auto, cpu, cuda, cuda:N or mps.
        quiet: Show no progress, only messages.
        json_: Print one JSON object per model.
    """
    from glassformer import api
    from glassformer.plot import comparison

    if not directories:
        raise UserError("give at least one model directory")
    if plot is not None:
        for path in figure_paths(plot):
            require_output(path, [*directories, *data.places.values()])
    models = [api.load(directory, device=device) for directory in directories]
    scores = [_score_of(model, directory, score) for model, directory in zip(models, directories, strict=True)]
    names = [directory.resolve().name for directory in directories]
    if len(set(names)) < len(names):
        names = [str(directory) for directory in directories]
    rows = []
    with TerminalReporter(is_quiet=quiet) as reporter:
        if reporter.live:
            kinds = {name: describe_model(model.config) for name, model in zip(names, models, strict=True)}
            reporter.facts(kinds | {"data": data.name})
        for directory, model, name, score_name in zip(directories, models, names, scores, strict=True):
            rows.append(_row(name, directory, model, data.places, score_name, search, reporter))
    if json_:
        for row in rows:
            print(json.dumps(row.to_dict()))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        show(comparison_table(rows, width))
    if plot is not None:
        for path in save_figure(comparison(rows), plot):
            print(path, file=sys.stderr)
    return 0


def _score_of(model: "Model", directory: Path, asked: str | None) -> str:
    """Return the score to show for a model; raise `UserError`, before decoding, if the model lacks that score."""
    if isinstance(model.task, HasPairs):
        model.task.require_scores(model.run)
    known = trainable_task(model.run).metrics(model.run)
    if asked is not None and asked not in known:
        raise UserError(f"{directory} has no score {asked!r}; choose one of {', '.join(known)}")
    return asked or known[0]


def _row(
    name: str,
    directory: Path,
    model: "Model",
    places: dict[str, Any],
    score: str,
    settings: dict[str, Any],
    reporter: TerminalReporter,
) -> ComparedModel:
    from glassformer import api
    from glassformer.evaluation.text import distinct_sources

    seconds, tokens = api.training_cost(directory)
    with reporter.phase(f"{name}: loss") as progress:
        report = model.evaluate(progress=progress, log=reporter.log, **places)
    rate: float | None = None
    found: dict[str, Any] = dict(report.to_dict())
    if isinstance(model.task, HasPairs):
        pairs = model.pairs(log=already_reported, **places)
        sources = distinct_sources(pairs)
        model.translations(sources[:1], **settings)  # warm-up: the first call includes one-time setup
        began = time.perf_counter()
        with reporter.phase(f"{name}: decoding") as progress:
            written = model.translations(sources, progress=progress, **settings)
        rate = len(sources) / (time.perf_counter() - began)
        outputs = {source: best[0].text for source, best in zip(sources, written, strict=True)}
        found |= model.task.output_scores(model.run, outputs, pairs)
    elif score not in found:
        found |= model.scores(log=already_reported, **places)
    value = found[score]
    return ComparedModel(
        name=name,
        kind=describe_model(model.network.config),
        n_parameters=model.network.n_parameters(),
        train_seconds=seconds,
        train_tokens=tokens,
        valid_loss=report.loss,
        score_name=score,
        score=float("nan") if value is None else float(value),
        sentences_per_s=rate,
    )
