"""Plots of weights, positions, schedules, runs and comparisons; each function returns a matplotlib figure."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from glassformer.config.run import Run
from glassformer.config.train import MuonConfig
from glassformer.errors import UserError
from glassformer.evaluation.compare import ComparedModel
from glassformer.formatting import count
from glassformer.inspection.figures import (
    COLOURS,
    GREY,
    SIGNED_MAP,
    WEIGHTS_MAP,
    figure_paths,
    label,
    labels_apart,
    legend,
    new_figure,
    plain,
    quiet_axes,
    save_figure,
    title,
)
from glassformer.models.build import Network
from glassformer.models.transformer import Transformer
from glassformer.nn.positions import RelativeBias
from glassformer.training.metrics_log import NAME, read_lines
from glassformer.training.schedules import schedule_factor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "figure_paths",
    "heat_map",
    "heat_maps",
    "plot_comparison",
    "plot_confusion",
    "plot_curves",
    "plot_positions",
    "plot_schedule",
    "save_figure",
]

MAX_POSITIONS = 256
_SCHEMES = {"alibi": "ALiBi"}
"""Names of position schemes in titles; the others are named by their kind."""
MAX_POINTS = 2000
MAX_COUNTED = 40
"""Largest number of classes for which a confusion matrix shows counts; beyond it, it shows colours only."""
SCORES = {
    "bleu": "BLEU (higher is better)",
    "bleu_tok_lc": "BLEU on lowercased tokens (higher is better)",
    "chrf": "chrF2 (higher is better)",
    "exact_match": "exact matches, % (higher is better)",
    "wer": "word error rate, % (lower is better)",
    "per": "phoneme error rate, % (lower is better)",
    "accuracy": "accuracy, % (higher is better)",
    "macro_f1": "macro F1, % (higher is better)",
    "span_f1": "span F1, % (higher is better)",
    "calibration_error": "calibration error, % (lower is better)",
    "rmse": "root mean squared error (lower is better)",
    "spearman": "Spearman's rank correlation (higher is better)",
}


def heat_map(
    weights: Tensor, rows: Sequence[str], columns: Sequence[str], name: str, row_axis: str = "", column_axis: str = ""
) -> "Figure":
    """Plot one matrix of weights from 0 to 1, (T, S): a row for each of T tokens, a column for each of S."""
    return heat_maps(weights[None], rows, columns, [""], name, row_axis, column_axis)


def heat_maps(
    weights: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    names: Sequence[str],
    name: str,
    row_axis: str = "",
    column_axis: str = "",
) -> "Figure":
    """Plot N matrices of weights from 0 to 1 side by side, (N, T, S), with the same axes and one scale."""
    n, n_rows, n_columns = weights.shape
    if (len(names), len(rows), len(columns)) != (n, n_rows, n_columns):
        raise ValueError(
            f"mismatch: weights {tuple(weights.shape)}, {len(names)} names, {len(rows)} rows, {len(columns)} columns"
        )
    across = min(range(1, n + 1), key=lambda k: (max(k * n_columns / 1.5, math.ceil(n / k) * n_rows), k))
    down = math.ceil(n / across)
    row_labels, column_labels = [label(token) for token in rows], [label(token) for token in columns]
    # The side of a cell: large enough for a line of text, as long as the figure stays within 14 inches.
    cell = min(0.24, 14 / max(1, across * n_columns, down * n_rows))
    letters = sum(len(text) > 2 for text in column_labels) <= 1  # and at most one end token
    side, top = (0.075 * max(map(len, texts), default=0) for texts in (row_labels, column_labels))
    width = across * cell * n_columns + side + 1.3
    height = down * (cell * n_rows + (0.3 if n > 1 else 0)) + top + 0.9
    figure = new_figure(max(3.2, width, 0.4 + 0.085 * len(plain(name))), max(2.2, height))
    figure.set_layout_engine("compressed")  # no gaps between square cells
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes, matrix, its_name in zip(grid.flat, weights, names, strict=False):
        image = axes.imshow(matrix.numpy(), cmap=WEIGHTS_MAP, vmin=0, vmax=1, aspect="equal", interpolation="nearest")
        axes.set_title(its_name, fontsize=8.5, pad=3, color=GREY)
        axes.spines[:].set_visible(False)
    for axes in grid.flat[n:]:
        axes.set_axis_off()
    points = min(9.0, max(5.0, cell * 72 * 0.8))
    for axes in grid.flat:
        axes.tick_params(length=0, labelsize=points, pad=2, labeltop=axes in grid[0], top=False, labelbottom=False)
    every = max(1, math.ceil(points * 1.15 / 72 / cell))
    grid[0, 0].set_xticks(range(0, n_columns, every), column_labels[::every], parse_math=False)
    grid[0, 0].set_yticks(range(0, n_rows, every), row_labels[::every], parse_math=False)
    for axes in grid[0]:
        for text in axes.get_xticklabels():
            text.set_rotation(0 if letters and len(text.get_text()) <= 2 else 90)
    figure.supxlabel(column_axis, fontsize=9, color=GREY)
    figure.supylabel(row_axis, fontsize=9, color=GREY)
    figure.suptitle(plain(name), fontsize=10.5, parse_math=False)
    bar = figure.colorbar(image, ax=grid, shrink=min(1.0, 2.5 / height), aspect=18, ticks=[0, 0.5, 1], pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, color=GREY)
    bar.set_label("weight", fontsize=8.5, color=GREY)
    return figure


def plot_positions(network: Network, stack: str | None = None) -> "Figure":
    """Plot the positions of a model: the vectors added to embeddings, the rotation of heads, or the score biases.

    `stack` is "encoder" or "decoder", by default the one that the head reads. Raises `UserError` without positions.
    """
    if not isinstance(network, Transformer):
        raise UserError("a recurrent model has no positions: it reads tokens in order")
    stack = stack or ("encoder" if network.decoder is None else "decoder")
    part = network.encoder if stack == "encoder" else network.decoder
    if part is None:
        raise UserError(f"this model has no {stack}")
    config = network.config
    max_len = config.encoder_max_len if stack == "encoder" else config.max_len
    places = torch.arange(min(max_len, MAX_POSITIONS), device=next(network.parameters()).device)
    added, rotary, bias = part.embeddings.positions, part.rotary, part.score_bias
    scheme = _SCHEMES.get(config.positions.kind, f"{config.positions.kind} positions".capitalize())
    with torch.no_grad():
        if added is not None:
            return _image(added(places), f"{scheme}, added to the embeddings", "dimension", "value")
        if rotary is not None:
            cosines = rotary(places)[0][0, 0]  # (T, K'); the second half repeats the first
            cosines = cosines[:, : cosines.shape[1] // 2] / cosines[0, 0]  # at position 0, the angle is 0
            return _image(cosines, f"{scheme}: cosine of the angle", "pair of a head's dimensions", "cos")
        if bias is not None:
            return _biases(bias, places, scheme, looks_ahead=stack == "encoder")
    raise UserError("this model has no positions: its mask alone gives the order")


def _image(table: Tensor, name: str, x: str, value: str) -> "Figure":
    """Draw values (position, dimension) as an image, white at 0."""
    figure = new_figure(6.4, 4.4)
    axes = figure.subplots()
    values = table.float().cpu().numpy()
    limit = float(abs(values).max())
    image = axes.imshow(values, cmap=SIGNED_MAP, vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    title(axes, name)
    axes.set_xlabel(x)
    axes.set_ylabel("position, tokens")
    axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=axes, aspect=28, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label(value)
    return figure


def _biases(bias: nn.Module, places: Tensor, scheme: str, looks_ahead: bool) -> "Figure":
    """Plot the score bias of each head over the distance to the key."""
    far = min(len(places) - 1, getattr(bias, "max_distance", len(places) - 1))
    distance = torch.arange(-far, far + 1 if looks_ahead else 1, device=places.device)
    curves = bias(torch.zeros_like(places[:1]), distance)[0, :, 0].float().cpu().numpy()  # (H, S)
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    drawn = "steps-mid" if isinstance(bias, RelativeBias) else "default"  # buckets are steps
    import matplotlib  # new_figure has checked that it is installed

    shades = matplotlib.colormaps[WEIGHTS_MAP]([0.9 * i / max(1, len(curves) - 1) for i in range(len(curves))])
    for head, curve in enumerate(curves):
        axes.plot(range(-far, -far + len(curve)), curve, color=shades[head], linewidth=1.4, drawstyle=drawn)
    title(axes, f"{scheme}: score bias of each of {len(curves)} heads")
    quiet_axes(axes, "key position − query position, tokens", "score bias")
    _end_labels(axes, [(float(curve[0]), f"head {head}", shades[head]) for head, curve in enumerate(curves)], -far)
    return figure


def _end_labels(axes: "Axes", ends: Sequence[tuple[float, str, Any]], x: float) -> None:
    """Write names at the left ends of curves, in the curves' colours, without overlap."""
    low, high = axes.get_ylim()
    gap = (high - low) / max(22, len(ends))
    ends = sorted(ends, key=lambda end: end[0])
    heights: list[float] = []
    for y, _, _ in ends:
        heights.append(max([y, *(below + gap for below in heights[-1:])]))
    for i in reversed(range(len(ends))):  # move those above the top down again
        heights[i] = min([heights[i], *(above - gap for above in heights[i + 1 : i + 2] or [high + gap])])
    for (y, text, colour), height in zip(ends, heights, strict=True):
        axes.annotate(
            text,
            (x, y),
            (-0.02, (height - low) / (high - low)),
            textcoords="axes fraction",
            color=colour,
            fontsize=min(8, 180 / len(ends)),
            ha="right",
            va="center",
        )
    axes.yaxis.tick_right()
    axes.yaxis.set_label_position("right")
    axes.spines["left"].set_visible(False)
    axes.spines["right"].set_visible(True)
    axes.spines["right"].set_color(GREY)


def plot_confusion(matrix: Sequence[Sequence[int]], names: Sequence[str]) -> "Figure":
    """Plot a confusion matrix: counts (n_classes, n_classes), rows are true classes, colours the share of the row."""
    counts, n = torch.as_tensor(matrix), len(names)
    if counts.shape != (n, n):
        raise ValueError(f"expected a square matrix for {n} names of classes, got {tuple(counts.shape)}")
    shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    if n > MAX_COUNTED:
        figure = heat_map(shares, names, names, "Confusion matrix", "true class", "predicted class")
        figure.axes[-1].set_ylabel("share of the true class")
        return figure
    shown = [name if len(name) <= 32 else f"{name[:24]}…{name[-7:]}" for name in map(plain, names)]
    inches = 0.085 * max(map(len, shown))
    cell = max(0.34, 1.8 / n, 0.16 + 0.08 * len(f"{int(counts.max()):,}"), min(0.1 + inches, 4 / n, 1.2))
    stand = inches > cell
    figure = new_figure(max(3.6, cell * n + inches + 1.5), cell * n + (inches if stand else 0.2) + 0.9)
    figure.set_layout_engine("compressed")
    axes = figure.subplots()
    image = axes.imshow(shares.numpy(), cmap=WEIGHTS_MAP, vmin=0, vmax=1, interpolation="nearest")
    for row, column in itertools.product(range(n), range(n)):
        count, share = int(counts[row, column]), float(shares[row, column])
        ink = "black" if share > 0.5 else "white" if count else "#9A88A8"  # pale zeros make the rest visible
        axes.text(column, row, f"{count:,}", color=ink, fontsize=8.5, ha="center", va="center")
    axes.set_xticks(range(n), shown, rotation=90 if stand else 0, parse_math=False)
    axes.set_yticks(range(n), shown, parse_math=False)
    axes.tick_params(length=0, labelsize=8.5)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("predicted class", fontsize=9, color=GREY)
    axes.set_ylabel("true class", fontsize=9, color=GREY)
    title(axes, "Confusion matrix")
    bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 2.5 / (cell * n)), aspect=18, ticks=[0, 0.5, 1], pad=0.03)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, color=GREY)
    bar.set_label("share of the true class", fontsize=8.5, color=GREY)
    return figure


def plot_schedule(run: Run) -> "Figure":
    """Plot the learning rate over the steps of a run, for each optimizer that it uses."""
    train = run.train
    rates = {"": train.optimizer.learning_rate}
    if isinstance(train.optimizer, MuonConfig):
        rates = {"Muon, matrices": rates[""], "AdamW, the rest": train.optimizer.adamw.learning_rate}
    steps = sorted({round(i * (train.max_steps - 1) / MAX_POINTS) for i in range(MAX_POINTS + 1)})
    factors = [schedule_factor(train.schedule, step, train.max_steps) for step in steps]
    figure = new_figure(6.4, 3.6)
    axes = figure.subplots()
    lines = []
    for (name, rate), colour in zip(rates.items(), COLOURS, strict=False):
        lines += axes.plot(steps, [rate * f for f in factors], color=colour, linewidth=1.8, label=name)
    kind = train.schedule.kind.replace("_", " ")
    drops = ", without drops" if train.schedule.kind == "plateau" else ""
    title(axes, f"{run.name}: {kind} schedule, {train.schedule.warmup_steps:,} steps of warm-up{drops}")
    quiet_axes(axes, "optimizer step", "learning rate")
    axes.set_xlim(0, train.max_steps)
    axes.set_ylim(0, 1.08 * max(rates.values()))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    if len(lines) > 1:
        legend(axes, lines, list(rates), loc="best")
    return figure


def plot_curves(folders: Sequence[str | Path]) -> "Figure":
    """Plot the losses of one or several runs over their steps, and each of their scores in a panel."""
    logs = {folder: read_lines(folder / NAME) for folder in map(Path, folders)}
    for folder, lines in logs.items():
        if not lines:
            raise UserError(f"{folder} has no {NAME} with data: give a run folder")
    keys = {key for lines in logs.values() for line in lines for key in line}
    scores = [name for name in SCORES if f"eval/valid_{name}" in keys]
    figure = new_figure(max(6.4, 4.4 * (1 + len(scores))), 3.9)
    panels = figure.subplots(1, 1 + len(scores), squeeze=False)[0]
    losses, handles = panels[0], []
    for lines, colour in zip(logs.values(), itertools.cycle(COLOURS), strict=False):
        batch, valid = (_series(lines, key) for key in ("train/loss", "eval/valid_loss"))
        losses.plot(*batch, color=colour, linewidth=0.9, alpha=0.45)
        handles += losses.plot(*valid, color=colour, linewidth=1.8, marker="o", markersize=3.5)
        for axes, name in zip(panels[1:], scores, strict=True):
            axes.plot(*_series(lines, f"eval/valid_{name}"), color=colour, linewidth=1.8, marker="o", markersize=3.5)
    names = [folder.resolve().name for folder in logs]
    title(losses, f"{names[0]}: loss" if len(names) == 1 else "Loss")
    quiet_axes(losses, "optimizer step", "loss, nats per target")
    losses.annotate(
        "thick: validation   thin: training batches", (0, 0), (0, -42), "axes points", fontsize=8, color=GREY
    )
    for axes, name in zip(panels[1:], scores, strict=True):
        title(axes, "Validation score")
        quiet_axes(axes, "optimizer step", SCORES[name])
    for axes in panels:
        axes.xaxis.set_major_formatter("{x:,.0f}")
    if len(names) > 1:
        legend(losses, handles, names, loc="best")
    return figure


def _series(lines: Sequence[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    found = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
    return [step for step, _ in found], [value for _, value in found]


def plot_comparison(rows: Sequence[ComparedModel]) -> "Figure":
    """Plot score against training time; the area of a disc is the number of parameters, also given in its label.

    Models with an unknown training time are left out. Raises `UserError` if no model is left, or if scores differ.
    """
    known = [row for row in rows if row.train_seconds]
    if not known:
        raise UserError("these models have no known training time: leave out the plot")
    if len({row.score_name for row in known}) > 1:
        raise UserError(f"models to plot have different scores: {', '.join(sorted({row.score_name for row in known}))}")
    figure = new_figure(7.2, 4.8)
    axes = figure.subplots()
    minutes = [row.train_seconds / 60 for row in known if row.train_seconds]
    largest = max(row.n_parameters for row in known)
    for row, x, colour in zip(known, minutes, itertools.cycle(COLOURS), strict=False):
        area = 60 + 1200 * row.n_parameters / largest
        axes.scatter([x], [row.score], s=area, color=colour, alpha=0.75, linewidths=0)
    axes.margins(0.22)
    if max(minutes) > 8 * min(minutes):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,g}")
    else:
        axes.set_xlim(left=max(0.0, axes.get_xlim()[0]))
    quiet_axes(axes, "training time, minutes", SCORES.get(known[0].score_name, known[0].score_name))
    title(axes, "Score, training time and size")
    texts = [f"{plain(row.name)}\n{count(row.n_parameters)} parameters" for row in known]
    radii = [math.sqrt((60 + 1200 * row.n_parameters / largest) / math.pi) for row in known]
    labels_apart(axes, [(x, row.score) for x, row in zip(minutes, known, strict=True)], radii, texts)
    return figure
