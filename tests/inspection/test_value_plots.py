"""Plots of the lens and of patching show the values of the functions, for every family."""

from typing import Any

import pytest
import torch

from glassformer.inspection.lens import LensCells
from glassformer.inspection.patching import Restored
from glassformer.inspection.plots import MAX_TEXTS, plot_lens, plot_patching


def texts_of(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_cells_of_the_lens_have_the_best_token() -> None:
    cells = LensCells(
        ["embeddings", "block 0"],
        torch.tensor([[[0], [1]], [[2], [2]]]),
        torch.rand(2, 2, 1),
        torch.rand(2, 2),
        torch.ones(2, 2),
    )
    figure = plot_lens(cells, [" the", "$x"], ["a", " b", "$c"], "a $ lens")
    assert texts_of(figure) == ["a", "␣b", "$c", "$c"]
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["␣the", "$x"]
    figure.draw_without_rendering()


@pytest.mark.parametrize("n", [3, MAX_TEXTS + 1])
def test_wide_tables_have_no_texts(n: int) -> None:
    figure = plot_patching(Restored(["embeddings"], torch.ones(1, n), 1.0, 0.0), ["a"] * n, "patching")
    assert len(texts_of(figure)) == (n if n <= MAX_TEXTS else 0)
