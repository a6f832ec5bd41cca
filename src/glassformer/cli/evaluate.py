"""glassformer evaluate DIR…"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from glassformer.cli.arguments import parse
from glassformer.cli.members import BY_DEFAULT, Loaded
from glassformer.cli.progress import TerminalReporter
from glassformer.errors import UserError
from glassformer.model import Model
from glassformer.tasks.task import HasPairs


def main(argv: list[str]) -> int:
    return int(parse(evaluate, argv, "evaluate") or 0)


def evaluate(
    directories: tyro.conf.Positional[tuple[Path, ...]],
    data_path: Annotated[str | None, tyro.conf.arg(name="data.path")] = None,
    data_source: Annotated[str | None, tyro.conf.arg(name="data.source")] = None,
    data_target: Annotated[str | None, tyro.conf.arg(name="data.target")] = None,
    beam: int | None = None,
    length_penalty: float | None = None,
    loss_only: bool = False,
    pseudo_perplexity: bool = False,
    loading: Loaded = BY_DEFAULT,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """The loss of a model, every target once, and the scores of what it writes or says, in percent.

    A text is cut into consecutive windows of the context length. Scores are BLEU and chrF for sentences (extra:
    eval), word and phoneme error rates for pronunciations, accuracy, F1 and calibration for labels, accuracy for masks.

    Args:
        directories: Model directories; several vote by their mean, on targets or on labels.
        data_path: A text, pairs in one file, or labelled texts, whole; by default the (first) run's validation data.
        data_source: The source side of pairs: a text file, one sentence a line.
        data_target: The target side: line i is the target of line i.
        beam: Hypotheses of a source that live at once; 1 is greedy; by default as the model says.
        length_penalty: Exponent of the length that divides a target's log probability.
        loss_only: Decode nothing, and score nothing.
        pseudo_perplexity: Of a model that fills masks, also exp of the mean -log p of each token given all others.
        json_: Print one JSON object.
    """
    model = loading.ensemble(directories)
    places: dict[str, Any] = {"path": data_path, "source": data_source, "target": data_target}
    if not loss_only:
        _require_scores(model)
    with TerminalReporter() as reporter:
        with reporter.phase("evaluating") as progress:
            report = model.evaluate(progress=progress, log=reporter.log, **places)
        values: dict[str, Any] = dict(report.to_dict())
        if not loss_only:
            given = {"beam": beam, "length_penalty": length_penalty}
            settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
            with reporter.phase("scoring") as progress:
                values |= model.scores(progress=progress, log=told_already, **places, **settings)
        if pseudo_perplexity:
            with reporter.phase("pseudo-perplexity") as progress:
                values["pseudo_perplexity"] = model.pseudo_perplexity(data_path, progress, told_already)
    report = values.pop("report", None)
    if json_:
        json.dump(values if report is None else values | {"report": report.to_dict()}, sys.stdout)
        print()
        return 0
    nats = f" nats per {model.unit}"
    units = {"loss": nats, "smoothed_loss": f"{nats}, label smoothing included"}
    for name, value in values.items():
        if value is not None:
            shown = f"n {model.unit}s" if name == "n_tokens" else name.replace("_", " ")
            print(f"{shown:<21}{_shown(value)}{units.get(name, '')}")
    if report is not None:
        print(f"\n{report}")
    return 0


def told_already(sentence: str) -> None:
    """The loss of the same pairs was measured before, and said so."""


def _require_scores(model: Model) -> None:
    try:
        if isinstance(model.task, HasPairs):
            model.task.require_scores(model.run)
    except UserError as error:
        raise UserError(f"{error}; or measure the loss alone: --loss-only") from error


def _shown(value: float | int | str) -> str:
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
