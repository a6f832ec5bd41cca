"""glassformer evaluate DIR…"""

from typing import Any

from glassformer.apps.cli.arguments import Dirs, Search
from glassformer.apps.cli.inputs_outputs import Loading, Measured, no_effect, require_effect
from glassformer.apps.cli.progress import Shown, print_json
from glassformer.common.errors import UserError
from glassformer.common.formatting import show
from glassformer.evaluation.compare import describe_model
from glassformer.evaluation.metrics import METRICS


def main(
    *directories: Dirs,
    loss_only: bool = False,
    pseudo_perplexity: bool = False,
    output: Shown,
    data: Measured,
    search: Search,
    loading: Loading,
) -> int:
    """Measure the loss of a model, counting each target once, and the scores of its outputs in percent.

    A text is cut into consecutive windows of the context length. Scores are BLEU and chrF for sentences (extra:
    eval), word and phoneme error rates for pronunciations, accuracy, F1 and calibration for labels, accuracy for masks.

    Args:
        directories: Model directories; several translators form an ensemble.
        loss_only: Measure only the loss, without decoding and scores.
        pseudo_perplexity: For a model that fills masks, also exp of the mean -log p of each token given all others.

    Examples:
        glassformer evaluate runs/mybook
        glassformer evaluate runs/mybook --data.path other.txt
    """
    # Model and options
    data.look(loading.require(directories, "evaluate"))
    model = loading.ensemble(directories, "evaluate")
    places = data.places
    if search and (loss_only or model.pair_scores is None):
        why = ", because no targets are searched: it is for the scores of a model that generates targets; remove it"
        raise no_effect(next(iter(search)), why)
    require_effect(model, search)
    try:
        if not loss_only and (pair_scores := model.pair_scores) is not None:
            pair_scores.require()
    except UserError as error:
        raise UserError(f"{error}; or measure only the loss: --loss-only") from error
    # Measurements
    with output.reporter() as reporter:
        if reporter.live:
            size = f"{describe_model(model.config)}, {model.network.n_parameters():,} parameters"
            device = f"{model.device}, {model.dtype or model.run.train.precision.replace('auto', 'fp32')}"
            reporter.facts({"model": size, "data": data.name, "device": device})
        with reporter.phase("evaluating") as progress:
            report = model.evaluate(progress=progress, loss_only=True, **places)
        values: dict[str, Any] = dict(report.to_dict())
        if not loss_only:
            with reporter.phase("scoring") as progress:
                values |= model.scores(progress=progress, **places, **search)
        if pseudo_perplexity:
            with reporter.phase("pseudo-perplexity") as progress:
                values["pseudo_perplexity"] = model.pseudo_perplexity(data.data__path, progress)
    # Output
    report = values.pop("report", None)
    if output.json_:
        print_json(values if report is None else values | {"report": report.to_dict()})
        return 0
    nats = f" nats per {model.unit}"
    units = {"loss": nats, "smoothed_loss": f"{nats}, label smoothing included"}
    names = {"n_tokens": f"n {model.unit}s"}
    first = model.trainable_task.first_metric(model.run)
    if first in values:
        values = {first: values[first]} | values
    for name, value in values.items():
        shown = names.get(name, name.replace("_", " "))
        if value is not None:
            show(f"{shown:<21}{_number(value)}{units.get(name, '')}")
        elif name in METRICS and (why := METRICS[name].undefined):
            show(f"{shown:<21}n/a: {why}")
    if report is not None:
        show(f"\n{report}")
    return 0


def _number(value: float | int | str) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int):
        return f"{value:,}"
    return value
