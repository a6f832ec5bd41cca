"""Plots of confusion matrices: each count in its cell, coloured by its share of the row, no text clipped."""

import itertools
from typing import TYPE_CHECKING

import pytest

from glassformer.inspection.plots import MAX_COUNTED, plot_confusion

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def drawn(figure: "Figure") -> "Figure":
    """Return the figure after layout; check that every part is inside the picture."""
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) > -0.02 and box.x1 < width + 0.02 and box.y1 < height + 0.02, "clipped"
    return figure


def test_counts_names_and_shares() -> None:
    figure = drawn(plot_confusion([[3, 1, 0], [0, 1500, 500], [0, 0, 0]], ["a b", "$c_1$", "日"]))
    axes = figure.axes[0]
    (image,) = axes.images
    assert image.get_array().tolist() == [[0.75, 0.25, 0], [0, 0.75, 0.25], [0, 0, 0]]  # type: ignore[union-attr]
    assert image.get_clim() == (0, 1), "all plots must have the same colours"
    written = {text.get_position(): text.get_text() for text in axes.texts}
    assert written[1, 0] == "1" and written[0, 1] == "" and written[1, 1] == "1,500" and written[2, 1] == "500"
    for axis, name in ((axes.xaxis, "predicted class"), (axes.yaxis, "true class")):
        assert [tick.get_text() for tick in axis.get_ticklabels()] == ["a b", "$c_1$", "<U+65E5>"]
        assert axis.get_label_text() == name
    assert figure.axes[1].get_ylabel() == "share of the true class"
    assert axes.get_title(loc="left") == "Confusion matrix: 1,503 of 2,004 are right"


NAMES = ["", "concurrent.futures", LONG := "a name that is much too long to be written in full "]


@pytest.mark.parametrize(
    ("n", "count", "name"),
    [
        *((n, count, name) for n, count in ((1, 1), (2, 1_234_567), (12, 1)) for name in NAMES),
        (30, 1_234_567, LONG),  # the smallest cells
    ],
)
def test_numbers_fit_in_their_cells(n: int, count: int, name: str) -> None:
    figure = drawn(plot_confusion([[count] * n] * n, [f"{name}{i}" for i in range(n)]))
    axes = figure.axes[0]
    boxes = [text.get_window_extent() for text in axes.texts]
    side = axes.get_window_extent().width / n
    assert len(boxes) == n * n and max(box.width for box in boxes) < side and max(box.height for box in boxes) < side
    names = [tick.get_window_extent() for tick in axes.get_xticklabels()]
    assert not any(a.overlaps(b) for a, b in itertools.pairwise(names))
    shown = [tick.get_text() for tick in axes.get_xticklabels()]
    assert len(set(shown)) == n, "cut names with equal beginnings must differ"
    title, bar = axes.title.get_window_extent(), figure.axes[1].yaxis.label.get_window_extent()
    assert not title.overlaps(bar)


def test_many_classes_have_only_colours() -> None:
    n = MAX_COUNTED + 20
    figure = drawn(plot_confusion([[2 if row == column else 0 for column in range(n)] for row in range(n)], ["x"] * n))
    axes = figure.axes[0]
    assert not axes.texts and axes.images[0].get_array().sum() == n  # type: ignore[union-attr]
    assert figure.axes[1].get_ylabel() == "share of the true class"


def test_a_matrix_and_names_must_fit() -> None:
    with pytest.raises(ValueError, match="2 names"):
        plot_confusion([[1]], ["a", "b"])
