"""Pictures of models and runs, as matplotlib figures: `glassformer.plot.attention(model, "a text")`.

A figure is shown in a notebook; `save` writes it to a file. These functions need the extra `plot`.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from glassformer.common import figures, files
from glassformer.common.errors import UserError, require_type
from glassformer.common.figures import (
    COLOURS,
    GREY,
    end_labels,
    new_figure,
    plain,
    quiet_axes,
    title,
)
from glassformer.common.figures import save_figure as save
from glassformer.evaluation.metrics import METRICS, axis
from glassformer.evaluation.sweep_table import SweepTable
from glassformer.evaluation.verdict import interval
from glassformer.inspection import attention_maps, plots
from glassformer.inspection.atlas import atlas
from glassformer.inspection.attention_maps import Kind
from glassformer.inspection.capture import Trace, capture
from glassformer.inspection.head_scores import transformer_of
from glassformer.inspection.measures import answer_position
from glassformer.inspection.texts import Given
from glassformer.model import Model
from glassformer.tasks.batches import Place
from glassformer.tasks.requirements import no_classes
from glassformer.tasks.trained_model import TrainedModel
from glassformer.training.metrics_log import NAME, read_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "alignment",
    "attention",
    "confusion",
    "curves",
    "flow",
    "heads",
    "positions",
    "save",
    "sweep",
]

LEAST_SHOWN = 0.001
"""Smallest probability of a token that `flow` shows."""
QUERY_KEY = ("query", "key")
"""Names of the rows and columns of attention weights."""

# A model


def attention(
    model: Model,
    text: str | None = None,
    *,
    source: str | None = None,
    target: str | None = None,
    stack: Kind | None = None,
    layer: int | None = None,
    head: int | None = None,
) -> "Figure":
    """Plot the attention weights of every head of a layer, or of one head, when the model reads a text or a pair.

    `stack` is "encoder" or "decoder" for self-attention, and "cross" for the attention of the decoder to the source. An
    encoder-decoder has the default "cross". Layers and heads count from 0. `inspection.default_layer` gives the default
    layer. Raises `UserError` if the model has no such attention, layer or head.
    """
    _require_model(model)
    trace = capture(model, text, source=source, target=target, names=["*.weights"])
    kind = stack or _default_kind(model)
    layers = attention_maps.attention_layers(trace, kind)
    n = attention_maps.layer_or_default(layer, len(layers))
    weights = layers[n][0]  # (H, T, S)
    heads = list(range(len(weights)))
    if head is not None:
        heads = [attention_maps.checked("head", head, len(weights))]
    where = "cross-attention" if kind == "cross" else f"self-attention of the {kind}"
    titles, name = [f"head {head}" for head in heads], f"{model.name}: {where}, layer {n}"
    weights = weights.masked_fill(weights == 0, math.nan)  # a mask gives exactly 0
    return plots.heat_maps(weights[heads], *trace.axes(kind), titles, name, QUERY_KEY)


def _require_model(model: Any) -> None:
    require_type(model, TrainedModel, "model", "a Model, such as glassformer.load(DIR)")


def _default_kind(model: Model) -> Kind:
    if model.is_seq2seq:
        return "cross"
    return "decoder" if model.is_causal_lm else "encoder"


def alignment(
    model: Model, source: str, target: str | None = None, *, layer: int | None = None, head: int | None = None
) -> "Figure":
    """Plot the decoder's attention to each source token when it predicts each target token.

    `target` is by default the model's translation. A recurrent decoder has one attention. For a Transformer, the plot
    shows the mean of the heads of one layer, or one `head` (`inspection.alignment`).
    """
    _require_model(model)
    trace = capture(model, source=source, target=target, names=["*.weights"])
    matrix = attention_maps.alignment(trace, layer, head)
    layers = attention_maps.attention_layers(trace, "cross")
    n_heads, which = layers[0].shape[1], ""
    if len(layers) > 1 or n_heads > 1:
        heads = f"mean of {n_heads} heads" if head is None else f"head {head}"
        which = f", layer {attention_maps.layer_or_default(layer, len(layers))}, {heads}"
    return plots.heat_map(matrix, *trace.axes("cross"), f"{model.name}: alignment{which}", ("target", "source"))


def flow(
    model: Model, text: str | None = None, *, source: str | None = None, target: str | None = None, layers: int = 4
) -> "Figure":
    """Plot how a text becomes a prediction: the vectors of its tokens after each block, and the attention between them.

    A strip has the vector of a token; each of its cells is the mean of neighbouring components. A map has the mean of
    the weights of the heads; the mask hides grey keys. Of a deep model, `layers` blocks at equal distances are drawn.
    The bars are the probabilities of the next token, of the token at the first `[MASK]`, or of the labels. An
    encoder-decoder shows its decoder. Raises `UserError` for a recurrent model and for one without probabilities.
    """
    _require_model(model)
    network = transformer_of(model)
    stack = network.config.head_stack_name
    names = [f"{stack}.embeddings", f"{stack}.blocks.*.residual", f"{stack}.blocks.*.weights", "logits"]
    trace = capture(model, text, source=source, target=target, names=names)
    n = max(int(name.split(".")[2]) for name in trace if name.endswith(".residual")) + 1
    shown = {round(i * (n - 1) / max(1, min(layers, n) - 1)) for i in range(min(layers, n))}

    # 1. Tensors of the shown blocks, in the order of the computation
    columns, keys = dict[str, Tensor](), dict[str, Sequence[str]]()
    for name, x in trace.items():
        if name == "logits" or (".blocks." in name and int(name.split(".")[2]) not in shown):
            continue
        if name.endswith(".weights"):
            what = f"{'source' if '.cross_attn.' in name else 'attention'} {name.split('.')[2]}"
            columns[what], keys[what] = x[0].mean(dim=0), trace.axes(attention_maps.kind_of(name))[1]
        else:
            columns[f"after block {name.split('.')[2]}" if ".blocks." in name else "embedding"] = x[0]
    # 2. Predictions
    predictions, where = _predictions(model, trace)
    tokens = trace.source if stack == "encoder" else trace.target
    drawn = plots.Flow(tokens, columns, keys, predictions, where)
    return plots.plot_flow(drawn, f"{model.name}: from text to prediction; attention is the mean of the heads")


def _predictions(model: Model, trace: Trace, most: int = 8) -> tuple[list[tuple[str, float]], str]:
    """Return the most probable labels or tokens of a trace with their probabilities, and a title for them."""
    logits = trace["logits"][0]
    if model.classes:
        if logits.ndim > 1:
            raise UserError(f"{model.name} predicts a label for each token: plot its attention")
        values = logits.sigmoid() if model.is_multi_label else logits.softmax(dim=-1)
        best = sorted(zip(model.classes, values.tolist(), strict=True), key=lambda one: -one[1])
        return best[:most], "labels"
    if logits.ndim < 2:
        raise UserError(f"{model.name} predicts no probabilities: plot its attention")
    position = answer_position(model, trace.inputs, None)
    values, ids = logits[position].softmax(dim=-1).topk(min(most, logits.shape[-1]))
    tokens = zip(model.tokenizer.tokens(ids.tolist()), values.tolist(), strict=True)
    where = "next token after" if model.is_causal_lm or model.is_seq2seq else "token at"
    read = figures.label((trace.target or trace.source)[position])
    shown = [(token, value) for i, (token, value) in enumerate(tokens) if value >= LEAST_SHOWN or i == 0]
    return shown, f"{where} {read}"


def heads(model: Model, texts: str | Sequence[Given]) -> "Figure":
    """Plot the patterns of each head over texts, and the change of the loss without the head (`inspection.atlas`).

    The 40 heads with the largest effect are drawn, the largest first. A bar has the standard error over the texts.
    """
    _require_model(model)
    return plots.plot_atlas(atlas(model, [texts] if isinstance(texts, str) else texts))


def positions(model: Model, stack: Literal["encoder", "decoder"] | None = None) -> "Figure":
    """Plot the position encoding of a model: a table, angles, or a bias added to the attention scores."""
    _require_model(model)
    return plots.plot_positions(model.network, stack)


def confusion(model: Model, path: Place = None) -> "Figure":
    """Plot the confusion matrix of classes or tags on labelled texts, by default the run's validation data."""
    _require_model(model)
    if not model.classes:
        raise no_classes(model.name)
    report = model.scores(path)["report"]
    return plots.plot_confusion(report.matrix, report.names)


# Runs


def curves(*folders: str | Path) -> "Figure":
    """Plot the losses of one or several runs over their steps, and each validation score in a panel of its own."""
    logs = {folder: read_lines(folder / NAME) for folder in (files.as_path(folder, "folder") for folder in folders)}
    for folder, lines in logs.items():
        if not lines:
            raise UserError(f"{folder} has no {NAME} with data: give a run folder")
    keys = {key for lines in logs.values() for line in lines for key in line}
    scores = [name for name, x in METRICS.items() if "losses" not in x.sections and f"eval/valid_{name}" in keys]

    # 1. A panel for the losses, and one for each score
    names = _names([folder.resolve() for folder in logs])
    beside = 0.08 * max(map(len, names)) if len(names) > 1 else 1.2  # width of the names
    figure = new_figure(max(6.4, 4.4 * (1 + len(scores))) + beside, 3.9)
    panels = figure.subplots(1, 1 + len(scores), squeeze=False)[0]
    losses, ends = panels[0], list[tuple[float, str, str]]()

    # 2. The lines of each run
    for lines, name, colour in zip(logs.values(), names, itertools.cycle(COLOURS), strict=False):
        batch, valid = (_series(lines, key) for key in ("train/loss", "eval/valid_loss"))
        losses.plot(*batch, color=colour, linewidth=0.9, alpha=0.45)
        losses.plot(*valid, color=colour, linewidth=1.8, marker="o", markersize=3.5)
        of_name = [(name, valid[1] or batch[1])]
        if len(names) == 1:
            of_name = [("validation", valid[1]), ("training batches", batch[1])]
        ends += [(y[-1], what, colour) for what, y in of_name if y and math.isfinite(y[-1])]
        for axes, score in zip(panels[1:], scores, strict=True):
            axes.plot(*_series(lines, f"eval/valid_{score}"), color=colour, linewidth=1.8, marker="o", markersize=3.5)

    # 3. Titles, axes and names
    title(losses, f"{names[0]}: loss" if len(names) == 1 else "Loss")
    quiet_axes(losses, "optimizer step", "loss, nats per target")
    if len(names) > 1:
        note = "thick: validation   thin: training batches"
        losses.annotate(note, (0, 0), (0, -42), "axes points", fontsize=9, color=GREY)
    for axes, name in zip(panels[1:], scores, strict=True):
        title(axes, "Validation score")
        quiet_axes(axes, "optimizer step", axis(name))
    for axes in panels:
        axes.xaxis.set_major_formatter("{x:,.0f}")
    end_labels(losses, ends, side="right")
    return figure


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of paths that differ from each other.

    >>> _names([Path("/sweeps/0-a/seed-0"), Path("/sweeps/1-b/seed-0")])
    ['0-a/seed-0', '1-b/seed-0']
    """
    n = next(n for n in range(1, 99) if n > 9 or len({folder.parts[-n:] for folder in folders}) == len(set(folders)))
    return ["/".join(folder.parts[-n:]) for folder in folders]


def _series(lines: Sequence[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    points = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
    return [step for step, _ in points], [value for _, value in points]


def sweep(table: SweepTable) -> "Figure":
    """Plot a sweep: the values of the seeds, the differences to the baseline with intervals, and the curves.

    A variant has a point per seed, and a line at the mean. A difference has its verdict and its 95 % interval, which is
    not corrected for the number of variants. A curve is the mean of the seeds, in a band from the smallest to the
    largest value; it is cut at the value of the middle step. `table` is what `glassformer.sweep` returns.
    """
    require_type(table, SweepTable, "table", "what glassformer.sweep returns")
    labels = [label for label, values in table.values.items() if values or label in table.verdicts]
    if not labels:
        raise UserError("no run of the sweep has a value: there is nothing to plot")
    colours = dict(zip(labels, itertools.cycle(COLOURS), strict=False))

    # 1. A panel for values, for differences, and for curves of more than one evaluation
    has_curves = any(len(curve) > 1 for of_seeds in table.curves.values() for curve in of_seeds.values())
    figure = new_figure(14.0 if has_curves else 9.6, max(2.6, 1.3 + 0.45 * len(labels)))
    panels = figure.subplots(1, 3 if has_curves else 2, squeeze=False)[0]

    # 2. Values and differences: a row per variant, the baseline on top
    for row, label in enumerate(labels):
        _points(panels[0], row, list(table.values[label].values()), colours[label])
        verdict, known = table.verdicts.get(label), table.values[table.baseline]
        if verdict is None or not verdict.n:
            continue
        colour = colours[label]
        _points(
            panels[1],
            row,
            [value - known[seed] for seed, value in table.values[label].items() if seed in known],
            colour,
        )
        if verdict.error is not None:
            panels[1].errorbar(
                [verdict.difference],
                [row],
                xerr=interval(verdict.error, verdict.n),
                color=colour,
                capsize=3,
                linewidth=1.4,
            )
        panels[1].annotate(
            verdict.word,
            (1, row),
            (6, 0),
            ("axes fraction", "data"),
            "offset points",
            color=colour,
            fontsize=9,
            va="center",
        )
    panels[1].axvline(0, color=GREY, linewidth=0.8)
    for axes, what, name in (
        (panels[0], axis(table.metric), "Each seed"),
        (panels[1], "difference, 95 % interval", f"Against {table.baseline}"),
    ):
        title(axes, name)
        quiet_axes(axes, what, "")
        axes.set_yticks(
            range(len(labels)), [plain(label) for label in labels] if axes is panels[0] else [""] * len(labels)
        )
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.margins(x=0.12)

    # 3. Curves
    if has_curves:
        ends = [_band(panels[2], list(table.curves.get(label, {}).values()), colours[label]) for label in labels]
        values = [value for end in ends for value in end]
        spare = 0.05 * (max(values) - min(values))
        panels[2].set_ylim(min(values) - spare, max(values) + spare)
        title(panels[2], "Mean, smallest and largest of the seeds")
        quiet_axes(panels[2], "optimizer step", axis(table.metric))
    return figure


def _points(axes: "Axes", row: int, values: Sequence[float], colour: str) -> None:
    """Draw the values of seeds in a row, and a line at their mean."""
    axes.scatter(values, [row] * len(values), s=26, color=colour, alpha=0.55, linewidths=0)
    if values:  # none of a variant that was stopped in the middle
        axes.plot([statistics.fmean(values)] * 2, [row - 0.22, row + 0.22], color=colour, linewidth=2.2)


def _band(axes: "Axes", curves: Sequence[Sequence[tuple[int, float]]], colour: str) -> list[float]:
    """Draw the mean of the curves of several seeds at the steps that all have, in a band of their values.

    Returns the values from the middle step on.
    """
    values = [dict(curve) for curve in curves]
    steps = [step for step in values[0] if all(step in of_seed for of_seed in values)] if values else []
    at_steps = [[of_seed[step] for of_seed in values] for step in steps]
    axes.plot(steps, list(map(statistics.fmean, at_steps)), color=colour, linewidth=1.8)
    axes.fill_between(steps, list(map(min, at_steps)), list(map(max, at_steps)), color=colour, alpha=0.18, linewidth=0)
    return [value for at_step in at_steps[len(steps) // 2 :] for value in at_step]
