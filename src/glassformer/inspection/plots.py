"""Plots of weights, positions, predictions, patching and confusion; each function returns a matplotlib figure."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from glassformer.common.figures import (
    GREY,
    MASKED,
    SIGNED,
    WEIGHTS,
    colour_map,
    end_labels,
    label,
    new_figure,
    plain,
    quiet_axes,
    title,
)
from glassformer.common.formatting import plural
from glassformer.inspection.ablation import UNITS
from glassformer.inspection.atlas import Atlas
from glassformer.inspection.head_scores import PATTERNS
from glassformer.models.build import Network
from glassformer.models.transformer import Transformer
from glassformer.nn.positions import RelativeBias
from glassformer.tasks.requirements import require_positions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.figure import Figure

MAX_POSITIONS = 256
SMALL = 9
"""Smallest type, in points; only the tokens of a large map are smaller."""
LINE_WIDTH = 10
"""Width in inches of a line of panels of `plot_flow`."""
_SCHEMES = {"alibi": "ALiBi"}
"""Names of position schemes in titles. The title of another scheme has the name of its kind."""
MAX_COUNTED = 40
"""Largest number of classes for which a confusion matrix shows counts; beyond it, it shows colours only."""
LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the luminance of a colour (ITU-R BT.601)."""


def shares_scale() -> dict[str, Any]:
    """Return arguments of `imshow` for values from 0 to 1."""
    return {"cmap": colour_map(WEIGHTS), "vmin": 0, "vmax": 1}


def heat_map(
    weights: Tensor, rows: Sequence[str], columns: Sequence[str], name: str, axes: tuple[str, str] = ("", "")
) -> "Figure":
    """Plot a matrix of weights from 0 to 1, (T, S), with the tokens of rows and columns and names of the `axes`."""
    return heat_maps(weights[None], rows, columns, [""], name, axes)


def heat_maps(
    weights: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    names: Sequence[str],
    name: str,
    axes: tuple[str, str] = ("", ""),
) -> "Figure":
    """Plot N matrices of weights from 0 to 1 side by side, (N, T, S), with the same axes and one scale.

    NaN is a key that a mask hides, and grey.
    """
    n, n_rows, n_columns = weights.shape
    if (len(names), len(rows), len(columns)) != (n, n_rows, n_columns):
        raise ValueError(
            f"mismatch: weights {tuple(weights.shape)}, {len(names)} names, {len(rows)} rows, {len(columns)} columns"
        )
    # 1. Size: a grid of about three to two; a cell is as high as a line of text if all of them fit in 14 inches.
    across = min(range(1, n + 1), key=lambda k: (max(k * n_columns / 1.5, math.ceil(n / k) * n_rows), k))
    down = math.ceil(n / across)
    row_labels, column_labels = [label(token) for token in rows], [label(token) for token in columns]
    cell = min(0.24, 14 / max(1, across * n_columns, down * n_rows))
    side, top = (0.075 * max(map(len, texts), default=0) for texts in (row_labels, column_labels))
    of_titles = 0.3 if n > 1 else 0.0
    width, height = across * cell * n_columns + side + 1.3, down * (cell * n_rows + of_titles) + top + 0.9
    figure = new_figure(max(3.2, width, 0.4 + 0.085 * len(plain(name))), max(2.2, height))
    figure.set_layout_engine("compressed")  # no gaps between square cells
    # 2. Matrices.
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for one, matrix, its_name in zip(grid.flat, weights, names, strict=False):
        one.set_facecolor(MASKED)
        image = one.imshow(matrix.numpy(), **shares_scale(), aspect="equal", interpolation="nearest")
        one.set_title(its_name, fontsize=SMALL, pad=3, color=GREY)
        one.spines[:].set_visible(False)
    for one in grid.flat[n:]:
        one.set_axis_off()
    # 3. Tokens: every one, or as many as fit; single letters are upright.
    points = min(9.0, max(5.0, cell * 72 * 0.8))
    for one in grid.flat:
        one.tick_params(length=0, labelsize=points, pad=2, labeltop=one in grid[0], top=False, labelbottom=False)
    every = max(1, math.ceil(points * 1.15 / 72 / cell))
    grid[0, 0].set_xticks(range(0, n_columns, every), column_labels[::every], parse_math=False)
    grid[0, 0].set_yticks(range(0, n_rows, every), row_labels[::every], parse_math=False)
    are_letters = sum(len(text) > 2 for text in column_labels) <= 1  # and at most one end token
    for text in (text for one in grid[0] for text in one.get_xticklabels()):
        if not are_letters or len(text.get_text()) > 2:
            text.set_rotation(90)
    # 4. Names.
    row_axis, column_axis = axes
    figure.supxlabel(column_axis, fontsize=SMALL, color=GREY)
    figure.supylabel(row_axis, fontsize=SMALL, color=GREY)
    figure.suptitle(plain(name), fontsize=10.5, parse_math=False)
    bar = _colour_bar(figure, image, grid, aspect=18, shrink=min(1.0, 2.5 / height), ticks=[0, 0.5, 1])
    bar.ax.tick_params(labelsize=SMALL, color=GREY)
    bar.set_label("weight; grey: 0 (mask)" if weights.isnan().any() else "weight", fontsize=SMALL, color=GREY)
    return figure


def _colour_bar(figure: "Figure", image: Any, axes: Any, aspect: int = 28, **more: Any) -> "Colorbar":
    bar = figure.colorbar(image, ax=axes, aspect=aspect, pad=0.02, **more)
    bar.outline.set_visible(False)
    return bar


def plot_positions(network: Network, stack: str | None = None) -> "Figure":
    """Plot the positions of a model: the vectors added to embeddings, the rotation of heads, or the score biases.

    `stack` is "encoder" or "decoder", by default the stack that the head reads. Raises `UserError` for a stack without
    positions.
    """
    require_positions(network.config, stack)
    assert isinstance(network, Transformer)  # `require_positions`
    stack, config = stack or network.config.head_stack_name, network.config
    part = network.encoder if stack == "encoder" else network.decoder
    max_len = config.encoder_max_len if stack == "encoder" else config.max_len
    assert part is not None  # `require_positions`
    places = torch.arange(min(max_len, MAX_POSITIONS), device=next(network.parameters()).device)
    added, bias = part.embeddings.positions, part.score_bias
    scheme = _SCHEMES.get(config.positions.kind, f"{config.positions.kind} positions".capitalize())
    with torch.no_grad():
        if added is not None:
            return _image(added(places), f"{scheme}, added to the embeddings", "dimension", "value")
        for rotary in part.rotaries:  # with several bases, draw the first
            cosines = rotary(places)[0][0, 0]  # (T, K'); the second half repeats the first
            cosines = cosines[:, : cosines.shape[1] // 2] / cosines[0, 0]  # at position 0, the angle is 0
            return _image(cosines, f"{scheme}: cosine of the angle", "pair of a head's dimensions", "cos")
        assert bias is not None  # `require_positions`
        return _biases(bias, places, scheme, looks_ahead=stack == "encoder")


def _image(table: Tensor, name: str, x: str, value: str) -> "Figure":
    """Draw values (position, dimension) as an image, white at 0."""
    figure = new_figure(6.4, 4.4)
    axes = figure.subplots()
    values = table.float().cpu().numpy()
    limit = float(abs(values).max())
    colours: dict[str, Any] = {"cmap": colour_map(SIGNED), "vmin": -limit, "vmax": limit}
    image = axes.imshow(values, **colours, aspect="auto", interpolation="nearest")
    title(axes, name)
    axes.set_xlabel(x)
    axes.set_ylabel("position, tokens")
    axes.spines[:].set_visible(False)
    _colour_bar(figure, image, axes).set_label(value)
    return figure


def _biases(bias: nn.Module, places: Tensor, scheme: str, looks_ahead: bool) -> "Figure":
    """Plot the score bias of each head over the distance to the key."""
    far = min(len(places) - 1, getattr(bias, "max_distance", len(places) - 1))
    end = far if looks_ahead else 0
    distance = torch.arange(-far, end + 1, device=places.device)
    curves = bias(torch.zeros_like(places[:1]), distance)[0, :, 0].float().cpu().numpy()  # (H, S)
    figure = new_figure(6.4, 4.0)
    axes = figure.subplots()
    drawn = "steps-mid" if isinstance(bias, RelativeBias) else "default"  # buckets are steps
    shades = colour_map(WEIGHTS[1:])([1 - 0.9 * i / max(1, len(curves) - 1) for i in range(len(curves))])
    for head, curve in enumerate(curves):
        axes.plot(range(-far, -far + len(curve)), curve, color=shades[head], linewidth=1.4, drawstyle=drawn)
    title(axes, f"{scheme}: score bias of each of {len(curves)} heads")
    quiet_axes(axes, "key position − query position, tokens", "score bias")
    ends = [(float(curve[0]), f"head {head}", shades[head]) for head, curve in enumerate(curves)]
    end_labels(axes, ends, side="left")
    axes.yaxis.tick_right()
    axes.yaxis.set_label_position("right")
    axes.spines["left"].set_visible(False)
    axes.spines["right"].set_visible(True)
    axes.spines["right"].set_color(GREY)
    return figure


def plot_atlas(found: Atlas, most: int = 40) -> "Figure":
    """Plot the patterns of the heads of an atlas as a table, and their effects as bars; at most `most` heads."""
    heads = found.heads[:most]
    names = [name for name in PATTERNS if any(not math.isnan(one.patterns[name]) for one in heads)]
    # 1. A panel for the patterns, and one for the effects, with the same rows
    figure = new_figure(6.6 + 0.5 * len(names), max(2.4, 1.5 + 0.24 * len(heads)))
    panels = figure.subplots(1, 2, sharey=True, width_ratios=[max(1, len(names)), 4])
    table, bars = panels
    # 2. Patterns
    values = torch.tensor([[one.patterns[name] for name in names] for one in heads]).reshape(len(heads), len(names))
    table.set_facecolor(MASKED)
    if names:
        image = table.imshow(values.numpy(), **shares_scale(), aspect="auto", interpolation="nearest")
        bar = _colour_bar(figure, image, table, aspect=30)
        bar.set_label("0: uniform attention   1: only this", fontsize=SMALL)
        bar.ax.tick_params(labelsize=SMALL, color=GREY)
        _write_cells(table, image, values, [[f"{x:z.2f}".replace("-", "−") for x in row] for row in values.tolist()])
    table.set_xticks(range(len(names)), names)
    table.set_yticks(range(len(heads)), [one.name.replace(".head.", ".") for one in heads])
    table.tick_params(length=0, labelsize=SMALL, top=True, labeltop=True, bottom=False, labelbottom=False)
    table.spines[:].set_visible(False)
    table.set_ylim(len(heads) - 0.5, -0.5)
    # 3. Effects, with the standard error over the texts
    effects, errors = [one.effect for one in heads], torch.tensor([one.error for one in heads]).nan_to_num()
    colours = [SIGNED[-1] if effect >= 0 else SIGNED[0] for effect in effects]
    bars.barh(range(len(heads)), effects, xerr=errors.numpy(), color=colours, height=0.72, ecolor=GREY)
    quiet_axes(bars, f"{UNITS[found.measure]}, without the head" + "; line: standard error" * (found.n_texts > 1), "")
    bars.grid(visible=False, axis="y")
    bars.axvline(0, color=GREY, linewidth=0.8)
    bars.tick_params(axis="y", length=0)
    cut = f" ({most} of {len(found.heads)} heads)" * (len(found.heads) > most)
    figure.suptitle(
        plain(f"{found.model}: patterns of heads, and what they change, on {plural(found.n_texts, 'text')}{cut}"),
        fontsize=10.5,
        parse_math=False,
    )
    return figure


class Flow(NamedTuple):
    """Data of `plot_flow`: vectors (T, D) and weights (T, S), by name and in order, and the predictions."""

    tokens: Sequence[str]
    columns: Mapping[str, Tensor]
    keys: Mapping[str, Sequence[str]]
    """Tokens of the columns of weights, by name. A name that is not here is that of vectors."""
    predictions: Sequence[tuple[str, float]]
    where: str
    """Name of what is predicted, such as "labels"."""


def plot_flow(flow: Flow, name: str) -> "Figure":
    """Plot the vectors of all tokens after each block, the weights between them, and the predictions.

    The panels are in one or several lines, which are read from left to right and then downwards.
    """
    rows = [f"{i}  {label(token)}" for i, token in enumerate(flow.tokens)]
    side, height = 0.085 * max(map(len, rows)), max(2.4, 1.2 + 0.24 * len(rows))
    # 1. Lines of panels; a map is wider than the strips of vectors, and the predictions end the last line
    widths = {
        one: min(2.4, max(1.2, 0.15 * len(flow.keys[one]))) if one in flow.keys else 1.0 for one in flow.columns
    } | {flow.where: 1.6}
    lines, used = list[list[str]]([[]]), 0.0
    for one, width in widths.items():
        if lines[-1] and one != flow.where and used + width > LINE_WIDTH - side - 0.6:
            lines.append([])
            used = 0.0
        lines[-1].append(one)
        used += width + 0.2
    wide = [sum(widths[one] + 0.2 for one in line) for line in lines]
    figure = new_figure(max(wide) + side + 0.6, height * len(lines))
    figure.set_layout_engine("constrained", w_pad=0.08)  # room for the labels on the left
    for line, used, part in zip(lines, wide, figure.subfigures(len(lines), 1, squeeze=False)[:, 0], strict=True):
        ratios = [*(widths[one] for one in line), 0.01 + max(wide) - used]  # the rest of a short line stays empty
        *panels, rest = part.subplots(1, len(ratios), squeeze=False, width_ratios=ratios)[0]
        rest.remove()
        for axes, one in zip(panels, line, strict=True):
            axes.set_title(plain(one), fontsize=SMALL, pad=4, color=GREY, parse_math=False)
            axes.tick_params(length=0, labelsize=SMALL, pad=2)
            axes.spines[:].set_visible(False)
            if one == flow.where:
                _draw_predictions(axes, flow.predictions, len(rows))
            else:
                _draw_column(axes, flow.columns[one], flow.keys.get(one))
                axes.set_yticks(range(len(rows)), rows, parse_math=False)
                axes.tick_params(labelleft=axes is panels[0])
    figure.suptitle(plain(name), fontsize=10.5, parse_math=False)
    note = "strips: a cell is the mean of neighbouring numbers; blue is positive, orange negative"
    figure.supxlabel(note, fontsize=SMALL, color=GREY)
    return figure


def _draw_column(axes: "Axes", values: Tensor, keys: Sequence[str] | None) -> None:
    """Draw a map of weights (T, S) with its keys, or vectors (T, D) as strips of at most 24 cells."""
    if keys is None:
        strips = nn.functional.adaptive_avg_pool1d(values[None], min(24, values.shape[1]))[0]
        limit = float(strips.abs().max()) or 1.0
        axes.imshow(strips.numpy(), cmap=colour_map(SIGNED), vmin=-limit, vmax=limit, aspect="auto")
        axes.set_xticks([])
        return
    axes.set_facecolor(MASKED)
    axes.imshow(values.masked_fill(values == 0, math.nan).numpy(), **shares_scale(), aspect="auto")
    every = max(1, math.ceil(0.16 * len(keys) / 2.6))
    axes.set_xticks(range(0, len(keys), every), [label(key) for key in keys][::every], rotation=90, parse_math=False)


def _draw_predictions(axes: "Axes", predictions: Sequence[tuple[str, float]], n_rows: int) -> None:
    """Draw tokens or labels with their probabilities as bars, each as high as one of `n_rows` rows."""
    axes.barh(range(len(predictions)), [value for _, value in predictions], color=SIGNED[-1], height=0.7)
    for i, (_, value) in enumerate(predictions):
        axes.text(value, i, f" {100 * value:.1f} %", va="center", fontsize=SMALL, color=GREY)
    axes.set_yticks(range(len(predictions)), [label(text) for text, _ in predictions], parse_math=False)
    axes.set_ylim(max(len(predictions), n_rows) - 0.5, -0.5)
    axes.set_xlim(0, 1.5 * max(value for _, value in predictions))
    axes.set_xticks([])


def plot_confusion(matrix: Sequence[Sequence[int]], names: Sequence[str]) -> "Figure":
    """Plot a confusion matrix (n_classes, n_classes) of counts; rows are true classes, colours are shares of a row."""
    counts, n = torch.as_tensor(matrix), len(names)
    if counts.shape != (n, n):
        raise ValueError(f"expected a square matrix for {n} names of classes, got {tuple(counts.shape)}")
    shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    axes, unit = ("true class", "predicted class"), "share of the true class"
    name = f"Confusion matrix: {int(counts.trace()):,} of {int(counts.sum()):,} are right"
    if n > MAX_COUNTED:
        figure = heat_map(shares, names, names, name, axes)
        figure.axes[-1].set_ylabel(unit)
        return figure
    shown = [_shortened(plain(name)) for name in names]
    texts = [[f"{count:,}" * bool(count) for count in row] for row in counts.tolist()]  # without zeros
    return _table(shares, (shown, shown), texts, shares_scale(), (name, *axes, unit))


def _shortened(name: str) -> str:
    return name if len(name) <= 32 else f"{name[:24]}…{name[-7:]}"


def _table(
    values: Tensor,
    labels: tuple[Sequence[str], Sequence[str]],
    texts: Sequence[Sequence[str]] | None,
    scale: Mapping[str, Any],
    names: tuple[str, str, str, str],
) -> "Figure":
    """Draw values (R, C) as coloured cells, and their texts; NaN is an empty cell.

    `labels` are the names of rows and of columns, `scale` has arguments of `imshow`, and `names` are the title, the
    names of both axes, and the unit of the values.
    """
    (rows, columns), (n_rows, n_columns), (name, row_axis, column_axis, unit) = labels, values.shape, names
    # 1. Size: the title begins at the cells; names of a few columns are upright.
    side, top, of_name, of_unit = (0.085 * max(map(len, letters)) for letters in (rows, columns, [name], [unit]))
    width, rotation = 0.22, 90
    if texts is not None:
        letters = max((len(text) for row in texts for text in row), default=6)
        width = max(0.5, 0.1 + 0.09 * letters, min(0.1 + top, 4 / n_columns, 1.2))
    if top < width:
        rotation, top = 0, 0.2
    inches = max(width * n_columns + side + 1.5, 1.5 + of_name)
    figure = new_figure(inches, max(0.3 * n_rows, of_unit) + top + 0.9)
    # 2. Cells.
    axes = figure.subplots()
    image = axes.imshow(values.numpy(), **scale, aspect="auto", interpolation="nearest")
    _write_cells(axes, image, values, texts or ())
    # 3. Names.
    axes.set_ylabel(row_axis)
    axes.set_xlabel(column_axis)
    axes.set_yticks(range(n_rows), rows, parse_math=False)
    axes.set_xticks(range(n_columns), columns, rotation=rotation, parse_math=False)
    axes.tick_params(length=0, labelsize=SMALL, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    title(axes, name)
    _colour_bar(figure, image, axes).set_label(unit)
    return figure


def _write_cells(axes: "Axes", image: Any, values: Tensor, texts: Sequence[Sequence[str]]) -> None:
    """Write the texts of the cells of an image, white on dark colours; a cell without a value stays empty."""
    colours = image.to_rgba(values.numpy())  # (R, C, 4)
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            if not values[i, j].isnan():
                ink = "white" if colours[i, j, :3] @ LUMINANCE < 0.5 else "black"
                axes.text(j, i, text, ha="center", va="center", fontsize=SMALL, color=ink, parse_math=False)
