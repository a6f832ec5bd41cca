"""Plots of tables of values: the logit lens, activation patching, and confusion matrices."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from glassformer.common.figures import SIGNED_MAP, label, new_figure, plain, title
from glassformer.inspection.lens import LensCells
from glassformer.inspection.patching import Restored
from glassformer.inspection.plots import SHARES, heat_map

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_TEXTS = 24
"""With more columns, cells have no text."""
MAX_COUNTED = 40
"""Largest number of classes for which a confusion matrix shows counts; beyond it, it shows colours only."""
LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in the luminance of a colour (ITU-R BT.601)."""


def plot_lens(cells: LensCells, tokens: Sequence[str], vocabulary: Sequence[str], name: str) -> "Figure":
    """Plot the most probable token of each layer and position; the colour is its probability."""
    texts = None
    if len(tokens) <= MAX_TEXTS:
        texts = [[label(vocabulary[i]) for i in row] for row in cells.top_ids[:, :, 0].tolist()]
    labels = cells.layers, list(map(label, tokens))
    figure = _table(cells.top_probabilities[:, :, 0], labels, texts, SHARES, (name, "probability"))
    figure.axes[0].set_xlabel("token")
    figure.axes[0].set_ylabel("layer")
    return figure


def plot_patching(restored: Restored, columns: Sequence[str], name: str) -> "Figure":
    """Plot the restored share of each layer and position (or head): 0 = as corrupted, 1 = as clean."""
    return _signed(restored.shares, (restored.layers, list(map(label, columns))), name, "restored share")


def plot_confusion(matrix: Sequence[Sequence[int]], names: Sequence[str]) -> "Figure":
    """Plot a confusion matrix: counts (n_classes, n_classes), rows are true classes, colours the share of the row."""
    counts, n = torch.as_tensor(matrix), len(names)
    if counts.shape != (n, n):
        raise ValueError(f"expected a square matrix for {n} names of classes, got {tuple(counts.shape)}")
    shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    axes, unit = ("true class", "predicted class"), "share of the true class"
    if n > MAX_COUNTED:
        figure = heat_map(shares, names, names, "Confusion matrix", axes)
        figure.axes[-1].set_ylabel(unit)
        return figure
    shown = [_shortened(plain(name)) for name in names]
    texts = [[f"{count:,}" for count in row] for row in counts.tolist()]
    figure = _table(shares, (shown, shown), texts, SHARES, ("Confusion matrix", unit))
    figure.axes[0].set_ylabel(axes[0])
    figure.axes[0].set_xlabel(axes[1])
    for text in figure.axes[0].texts:
        if text.get_text() == "0":
            text.set_color("#9A88A8")  # pale zeros make the rest visible
    return figure


def _shortened(name: str) -> str:
    return name if len(name) <= 32 else f"{name[:24]}…{name[-7:]}"


def _signed(values: Tensor, labels: tuple[Sequence[str], Sequence[str]], name: str, unit: str) -> "Figure":
    """Draw signed values (layers, C) and their numbers; white is 0."""
    limit, texts = float(values.nan_to_num().abs().max()) or 1.0, None
    if values.shape[1] <= MAX_TEXTS:
        texts = [[f"{value + 0.0:.2f}".replace("-0.00", "0.00") for value in row] for row in values.tolist()]
    figure = _table(values, labels, texts, {"cmap": SIGNED_MAP, "vmin": -limit, "vmax": limit}, (name, unit))
    figure.axes[0].set_ylabel("layer")
    return figure


def _table(
    values: Tensor,
    labels: tuple[Sequence[str], Sequence[str]],
    texts: Sequence[Sequence[str]] | None,
    scale: Mapping[str, Any],
    names: tuple[str, str],
) -> "Figure":
    """Draw values (R, C) as coloured cells, and their texts; NaN is an empty cell.

    `labels` are those of the rows and the columns, `scale` has arguments of `imshow`, and `names` are the title and the
    unit of the values.
    """
    (rows, columns), (n_rows, n_columns), (name, unit) = labels, values.shape, names
    # Size: the title begins at the cells; names of a few columns are upright.
    side, top, of_name, of_unit = (0.085 * max(map(len, letters)) for letters in (rows, columns, [name], [unit]))
    width, rotation = 0.22, 90
    if texts is not None:
        letters = max((len(text) for row in texts for text in row), default=6)
        width = max(0.5, 0.1 + 0.075 * letters, min(0.1 + top, 4 / n_columns, 1.2))
    if top < width:
        rotation, top = 0, 0.2
    inches = max(width * n_columns + side + 1.5, 1.5 + of_name)
    figure = new_figure(inches, max(0.3 * n_rows, of_unit) + top + 0.9)
    # Cells.
    axes = figure.subplots()
    image = axes.imshow(values.numpy(), **scale, aspect="auto", interpolation="nearest")
    colours = image.to_rgba(values.numpy())  # (R, C, 4)
    for i, row in enumerate(texts or ()):
        for j, text in enumerate(row):
            if not values[i, j].isnan():
                ink = "white" if colours[i, j, :3] @ LUMINANCE < 0.5 else "black"
                axes.text(j, i, text, ha="center", va="center", fontsize=7.5, color=ink, parse_math=False)
    # Names.
    axes.set_yticks(range(n_rows), rows, parse_math=False)
    axes.set_xticks(range(n_columns), columns, rotation=rotation, parse_math=False)
    axes.tick_params(length=0, labelsize=8.5, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    title(axes, name)
    bar = figure.colorbar(image, ax=axes, aspect=28, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label(unit)
    return figure
