"""glassformer compare DIR…"""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import tyro

from glassformer import api
from glassformer.cli.arguments import parse
from glassformer.cli.progress import TerminalReporter
from glassformer.errors import UserError
from glassformer.evaluation.compare import ComparedModel, comparison_table, describe_model
from glassformer.inspection.plots import plot_comparison, save_figure
from glassformer.training.pair_task import pairs_of

MAIN_SCORE = {"sentences": "bleu", "pronunciations": "wer"}


def main(argv: list[str]) -> int:
    return int(parse(compare, argv, "compare") or 0)


def compare(
    directories: tyro.conf.Positional[tuple[Path, ...]],
    data_path: Annotated[str | None, tyro.conf.arg(name="data.path")] = None,
    data_source: Annotated[str | None, tyro.conf.arg(name="data.source")] = None,
    data_target: Annotated[str | None, tyro.conf.arg(name="data.target")] = None,
    score: str | None = None,
    beam: int | None = None,
    plot: Path | None = None,
    device: str = "auto",
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Several models in one table: parameters, training time and tokens, loss, score, and the speed of decoding.

    Args:
        directories: Model directories.
        data_path: A text, or one file of pairs, to measure on; by default each run's own validation data.
        data_source: The source side of pairs.
        data_target: The target side of pairs.
        score: Which score is shown: bleu, chrf, bleu_tok_lc, exact_match, wer or per; by default bleu or wer.
        beam: Hypotheses of a source that live at once; 1 is greedy; by default as each model says.
        plot: A picture of score against training time (PNG and SVG, or by its suffix).
        device: auto, cpu, cuda, cuda:N or mps.
        json_: Print a JSON object a model.
    """
    if not directories:
        raise UserError("name at least one model directory")
    places = {"path": data_path, "source": data_source, "target": data_target}
    settings = {} if beam is None else {"beam": beam}
    with TerminalReporter() as reporter:
        rows = [_row(directory, places, score, settings, device, reporter) for directory in directories]
    if json_:
        for row in rows:
            json.dump(row.to_dict(), sys.stdout)
            print()
    else:
        print(comparison_table(rows))
    if plot is not None:
        for path in save_figure(plot_comparison(rows), plot):
            print(path, file=sys.stderr)
    return 0


def _row(
    directory: Path,
    places: dict[str, str | None],
    score: str | None,
    settings: dict[str, Any],
    device: str,
    reporter: TerminalReporter,
) -> ComparedModel:
    model = api.load(directory, device=device)
    seconds, tokens = api.training_cost(directory)
    with reporter.phase(f"{directory}: loss") as progress:
        report = model.evaluate(progress=progress, **places)
    name, value, rate = "bits_per_byte", report.bits_per_byte, None
    if model.is_seq2seq:
        name = score or MAIN_SCORE[pairs_of(model.run).outputs]
        n_sources = len({pair.source for pair in model.pairs(**places)})
        began = time.perf_counter()
        with reporter.phase(f"{directory}: decoding") as progress:
            scores = model.text_scores(progress=progress, **places, **settings)
        rate = n_sources / (time.perf_counter() - began)
        if not isinstance(scores.get(name), float):
            known = ", ".join(key for key, x in scores.items() if isinstance(x, float))
            raise UserError(f"{directory} has no score {name!r}; there are {known}")
        value = float(scores[name])
    elif score is not None:
        raise UserError(f"{directory} goes on with a text and has no score {score!r}: leave out --score")
    return ComparedModel(
        name=directory.name,
        kind=describe_model(model.network.config),
        n_parameters=model.network.n_parameters(),
        train_seconds=seconds,
        train_tokens=tokens,
        valid_loss=report.loss,
        score_name=name,
        score=float("nan") if value is None else value,
        sentences_per_s=rate,
    )
