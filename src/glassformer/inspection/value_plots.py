"""Plots of tables of values: the logit lens, effects of ablation, and activation patching."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from glassformer.figures import SIGNED_MAP, WEIGHTS_MAP, label, new_figure, title
from glassformer.inspection.effects import UNITS, Effects
from glassformer.inspection.lens import LensCells
from glassformer.inspection.patching import Restored

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_TEXTS = 24
"""With more columns, cells have no text."""


def plot_lens(cells: LensCells, tokens: Sequence[str], vocabulary: Sequence[str], name: str) -> "Figure":
    """Plot the most probable token of each layer and position; the colour is its probability."""
    texts = [[label(vocabulary[i]) for i in row] for row in cells.top_ids[:, :, 0].tolist()]
    probability = cells.top_probabilities[:, :, 0]
    return _table(
        probability, cells.layers, list(map(label, tokens)), name, "layer", "token", "probability", texts=texts
    )


def plot_effects(found: Effects, name: str) -> "Figure":
    """Plot the change of the measure for each head and feed-forward of each layer that is switched off."""
    values, rows, columns = found.table()
    return _table(torch.tensor(values), rows, columns, name, "layer", "", UNITS[found.measure], signed=True)


def plot_patching(restored: Restored, columns: Sequence[str], name: str) -> "Figure":
    """Plot the restored share of each layer and position (or head): 0 = as corrupted, 1 = as clean."""
    return _table(
        restored.shares, restored.layers, list(map(label, columns)), name, "layer", "", "restored share", signed=True
    )


def _table(
    values: Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    name: str,
    row_axis: str,
    column_axis: str,
    unit: str,
    *,
    texts: Sequence[Sequence[str]] | None = None,
    signed: bool = False,
) -> "Figure":
    """Draw values (R, C) as coloured cells, with a text or the value in each; NaN is an empty cell."""
    n_rows, n_columns = values.shape
    letters = max((len(text) for row in texts or [] for text in row), default=6)
    width = max(0.5, 0.075 * letters + 0.1) if n_columns <= MAX_TEXTS else 0.22
    inches = max(width * n_columns + 2.4, 1.5 + 0.085 * len(name))  # the title begins at the cells
    figure = new_figure(inches, 0.3 * n_rows + 1.3 + 0.06 * max(map(len, columns)))
    axes = figure.subplots()
    limit = float(values.nan_to_num().abs().max()) or 1.0
    low, shades = (-limit, SIGNED_MAP) if signed else (0.0, WEIGHTS_MAP)
    top = limit if signed else 1.0
    image = axes.imshow(values.numpy(), cmap=shades, vmin=low, vmax=top, aspect="auto", interpolation="nearest")
    if n_columns <= MAX_TEXTS:
        for i, row in enumerate(values.tolist()):
            for j, value in enumerate(row):
                text = f"{value + 0.0:.2f}".replace("-0.00", "0.00") if texts is None else texts[i][j]
                is_dark = abs(value) > 0.6 * limit if signed else value < 0.5
                if value == value:
                    ink = "white" if is_dark else "black"
                    axes.text(j, i, text, ha="center", va="center", fontsize=7.5, color=ink, parse_math=False)
    axes.set_yticks(range(n_rows), rows, parse_math=False)
    axes.set_xticks(range(n_columns), columns, rotation=90, parse_math=False)
    axes.tick_params(length=0, labelsize=8.5, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.set_ylabel(row_axis)
    axes.set_xlabel(column_axis)
    axes.spines[:].set_visible(False)
    title(axes, name)
    bar = figure.colorbar(image, ax=axes, aspect=28, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label(unit)
    return figure
