"""Plots of weights and positions; each function returns a matplotlib figure."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from glassformer.common.figures import (
    GREY,
    SIGNED_MAP,
    WEIGHTS_MAP,
    label,
    new_figure,
    plain,
    quiet_axes,
    title,
)
from glassformer.inspection.lens import head_stack
from glassformer.models.build import Network
from glassformer.models.transformer import Transformer
from glassformer.nn.positions import RelativeBias
from glassformer.tasks.requirements import require_positions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_POSITIONS = 256
SHARES: dict[str, Any] = {"cmap": WEIGHTS_MAP, "vmin": 0, "vmax": 1}
"""Arguments of `imshow` for values from 0 to 1."""
_SCHEMES = {"alibi": "ALiBi"}
"""Names of position schemes in titles; the others are named by their kind."""


def heat_map(
    weights: Tensor, rows: Sequence[str], columns: Sequence[str], name: str, axes: tuple[str, str] = ("", "")
) -> "Figure":
    """Plot one matrix of weights from 0 to 1, (T, S): a row for each of T tokens, a column for each of S.

    `axes` are the names of the rows and of the columns.
    """
    return heat_maps(weights[None], rows, columns, [""], name, axes)


def heat_maps(
    weights: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    names: Sequence[str],
    name: str,
    axes: tuple[str, str] = ("", ""),
) -> "Figure":
    """Plot N matrices of weights from 0 to 1 side by side, (N, T, S), with the same axes and one scale."""
    n, n_rows, n_columns = weights.shape
    if (len(names), len(rows), len(columns)) != (n, n_rows, n_columns):
        raise ValueError(
            f"mismatch: weights {tuple(weights.shape)}, {len(names)} names, {len(rows)} rows, {len(columns)} columns"
        )
    # Size: a grid of about three to two; a cell is as high as a line of text if all of them fit in 14 inches.
    across = min(range(1, n + 1), key=lambda k: (max(k * n_columns / 1.5, math.ceil(n / k) * n_rows), k))
    down = math.ceil(n / across)
    row_labels, column_labels = [label(token) for token in rows], [label(token) for token in columns]
    cell = min(0.24, 14 / max(1, across * n_columns, down * n_rows))
    side, top = (0.075 * max(map(len, texts), default=0) for texts in (row_labels, column_labels))
    of_titles = 0.3 if n > 1 else 0.0
    width, height = across * cell * n_columns + side + 1.3, down * (cell * n_rows + of_titles) + top + 0.9
    figure = new_figure(max(3.2, width, 0.4 + 0.085 * len(plain(name))), max(2.2, height))
    figure.set_layout_engine("compressed")  # no gaps between square cells
    # Matrices.
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for one, matrix, its_name in zip(grid.flat, weights, names, strict=False):
        image = one.imshow(matrix.numpy(), **SHARES, aspect="equal", interpolation="nearest")
        one.set_title(its_name, fontsize=8.5, pad=3, color=GREY)
        one.spines[:].set_visible(False)
    for one in grid.flat[n:]:
        one.set_axis_off()
    # Tokens: every one, or as many as fit; single letters are upright.
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
    # Names.
    row_axis, column_axis = axes
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
    require_positions(network.config, stack)
    assert isinstance(network, Transformer)  # `require_positions`
    stack, config = stack or head_stack(network), network.config
    part = network.encoder if stack == "encoder" else network.decoder
    max_len = config.encoder_max_len if stack == "encoder" else config.max_len
    assert part is not None  # `require_positions`
    places = torch.arange(min(max_len, MAX_POSITIONS), device=next(network.parameters()).device)
    added, bias = part.embeddings.positions, part.score_bias
    scheme = _SCHEMES.get(config.positions.kind, f"{config.positions.kind} positions".capitalize())
    with torch.no_grad():
        if added is not None:
            return _image(added(places), f"{scheme}, added to the embeddings", "dimension", "value")
        for rotary in part.rotaries:  # of several bases, the first
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
    end = far if looks_ahead else 0
    distance = torch.arange(-far, end + 1, device=places.device)
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
