"""Plots of tables of values: the logit lens, effects of ablation, and activation patching."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
    figure = _table(probability, (cells.layers, list(map(label, tokens))), name, "probability", texts)
    figure.axes[0].set_xlabel("token")
    return figure


def plot_effects(effects: Effects, name: str) -> "Figure":
    """Plot the change of the measure for each head and feed-forward of each layer that is switched off."""
    values, rows, columns = effects.table()
    return _table(torch.tensor(values), (rows, columns), name, UNITS[effects.measure])


def plot_patching(restored: Restored, columns: Sequence[str], name: str) -> "Figure":
    """Plot the restored share of each layer and position (or head): 0 = as corrupted, 1 = as clean."""
    return _table(restored.shares, (restored.layers, list(map(label, columns))), name, "restored share")


def _table(
    values: Tensor,
    labels: tuple[Sequence[str], Sequence[str]],
    name: str,
    unit: str,
    texts: Sequence[Sequence[str]] | None = None,
) -> "Figure":
    """Draw values (layers, C) as coloured cells; `labels` are those of the layers and of the columns.

    With `texts`, a value is a probability, and its cell has the text. Without them, it has a sign, and its cell has the
    number. NaN is an empty cell.
    """
    (layers, columns), (n_rows, n_columns) = labels, values.shape
    limit = float(values.nan_to_num().abs().max()) or 1.0
    scale: dict[str, Any] = {"cmap": SIGNED_MAP, "vmin": -limit, "vmax": limit}
    is_dark = values.abs() > 0.6 * limit
    if texts is not None:
        scale = {"cmap": WEIGHTS_MAP, "vmin": 0.0, "vmax": 1.0}
        is_dark = values < 0.5
    else:
        texts = [[f"{value + 0.0:.2f}".replace("-0.00", "0.00") for value in row] for row in values.tolist()]
    # Size: the title begins at the cells.
    letters = max((len(text) for row in texts for text in row), default=6)
    width = 0.22
    if n_columns <= MAX_TEXTS:
        width = max(0.5, 0.075 * letters + 0.1)
    inches = max(width * n_columns + 2.4, 1.5 + 0.085 * len(name))
    figure = new_figure(inches, 0.3 * n_rows + 1.3 + 0.06 * max(map(len, columns)))
    # Cells.
    axes = figure.subplots()
    image = axes.imshow(values.numpy(), **scale, aspect="auto", interpolation="nearest")
    if n_columns <= MAX_TEXTS:
        for i, j in (~values.isnan()).nonzero().tolist():
            ink = "white" if is_dark[i, j] else "black"
            axes.text(j, i, texts[i][j], ha="center", va="center", fontsize=7.5, color=ink, parse_math=False)
    # Names.
    axes.set_yticks(range(n_rows), layers, parse_math=False)
    axes.set_xticks(range(n_columns), columns, rotation=90, parse_math=False)
    axes.tick_params(length=0, labelsize=8.5, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.set_ylabel("layer")
    axes.spines[:].set_visible(False)
    title(axes, name)
    bar = figure.colorbar(image, ax=axes, aspect=28, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label(unit)
    return figure
