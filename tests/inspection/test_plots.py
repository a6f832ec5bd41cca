"""Plots show tokens, values and scales; no text is clipped; files are complete and reproducible."""

import json
import math
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import late
from configs import CONFIGS, LLAMA
from glassformer import plot
from glassformer.common.errors import UserError
from glassformer.common.figures import label, plain
from glassformer.config.transformer import RotaryPositions, Stack
from glassformer.evaluation.compare import ComparedModel
from glassformer.evaluation.sweep_table import SweepTable
from glassformer.evaluation.verdict import verdicts
from glassformer.inspection.plots import (
    heat_map,
    heat_maps,
    plot_positions,
)
from glassformer.models.build import build_model
from glassformer.nn.positions import alibi_slopes, sinusoid
from tolerances import is_close

if TYPE_CHECKING:
    from matplotlib.figure import Figure

matplotlib = late.module("matplotlib")

ROW = ComparedModel("a", "GRU", 1_000_000, 600.0, 1, 1.0, "bleu", 20.0, 10.0)


def drawn(figure: "Figure") -> "Figure":
    """Return the figure after layout; check that every text is inside the picture."""
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    size = figure.get_size_inches()
    assert box.x0 > -0.02 and box.y0 > -0.02 and box.x1 < size[0] + 0.02 and box.y1 < size[1] + 0.02, "clipped"
    return figure


def texts(axis: Any) -> list[str]:
    return [tick.get_text() for tick in axis.get_ticklabels()]


def test_a_heat_map_shows_the_weights_and_the_tokens() -> None:
    weights = torch.tensor([[0.1, 0.9, 0.0], [0.2, 0.3, 0.5]])
    figure = drawn(heat_map(weights, ["a", "b"], [" the", "$x_1$", "\n"], "cost: $5 and $6", ("written", "read")))
    axes = figure.axes[0]
    assert texts(axes.xaxis) == ["␣the", "$x_1$", "↵"] and texts(axes.yaxis) == ["a", "b"]
    (image,) = axes.images
    assert image.get_array().tolist() == pytest.approx(weights.numpy())  # type: ignore[union-attr]
    assert image.get_clim() == (0, 1), "all plots must have the same colours"
    assert figure.get_suptitle() == "cost: $5 and $6"


@pytest.mark.parametrize(("n", "n_rows", "n_columns"), [(1, 1, 1), (5, 14, 14), (7, 3, 30), (2, 30, 4), (2, 300, 300)])
def test_many_heads_on_one_scale(n: int, n_rows: int, n_columns: int) -> None:
    weights = torch.rand(n, n_rows, n_columns)
    tokens = [f" token{i}" for i in range(max(n_rows, n_columns))]
    names = [f"head {i}" for i in range(n)]
    figure = drawn(heat_maps(weights, tokens[:n_rows], tokens[:n_columns], names, "heads"))
    maps = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in maps] == names
    assert {axes.images[0].get_clim() for axes in maps} == {(0.0, 1.0)}
    assert max(figure.get_size_inches()) < 20
    assert all(
        shown == label(tokens[int(at)]) for at, shown in zip(maps[0].get_yticks(), texts(maps[0].yaxis), strict=True)
    )
    size = maps[0].yaxis.get_ticklabels()[0].get_fontsize() / 72 * figure.dpi
    pitch = abs(maps[0].transData.transform((0, maps[0].get_yticks()[-1]))[1] - maps[0].transData.transform((0, 0))[1])
    assert len(maps[0].get_yticks()) == 1 or pitch / (len(maps[0].get_yticks()) - 1) > size, "labels overlap"


def test_labels_must_fit_the_weights() -> None:
    with pytest.raises(ValueError, match="2 rows, 3 columns"):
        heat_map(torch.rand(2, 2), ["a", "b"], ["a", "b", "c"], "")


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("日本", "<U+65E5><U+672C>"),
        ("🙂", "<U+1F642>"),
        ("\u200b", "<U+200B>"),
        ("\u00a0", "<U+00A0>"),
        ("\x00", "<U+0000>"),
        ("\t", "⇥"),
        ("\u0301", "◌\u0301"),
        ("naïve ß", "naïve␣ß"),
        ("x" * 40, "x" * 17 + "…"),
        ("", ""),
    ],
)
def test_special_characters_in_tokens_can_be_drawn(token: str, shown: str) -> None:
    assert label(token) == shown
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a missing glyph is a warning
        drawn(heat_map(torch.ones(1, 1), [token], [token], plain(token))).canvas.draw()


def test_files_are_complete_and_reproducible(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    def picture() -> Figure:
        return heat_map(torch.eye(2), ["a", "b"], ["c", "日"], "eye")

    assert plot.save(picture(), tmp_path / "x" / "eye") == [tmp_path / "x" / "eye.png", tmp_path / "x" / "eye.svg"]
    png, svg = ((tmp_path / "x" / f"eye.{kind}").read_bytes() for kind in ("png", "svg"))
    assert png.startswith(b"\x89PNG") and png.rstrip().endswith(b"IEND\xaeB`\x82") and svg.rstrip().endswith(b"</svg>")
    assert plot.save(picture(), tmp_path / "again.svg") == [tmp_path / "again.svg"]
    assert (tmp_path / "again.svg").read_bytes() == svg
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.svg", "x"]
    with pytest.raises(UserError, match=r"expected .png or .svg, got .gif"):
        plot.save(picture(), tmp_path / "eye.gif")
    with pytest.raises(UserError, match="is a folder"):
        plot.save(picture(), Path("."))


def test_plots_do_not_change_matplotlibs_settings(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    plot.save(heat_map(torch.eye(2), ["a", "b"], ["c", "d"], "eye"), tmp_path / "eye.svg")
    assert dict(matplotlib.rcParams) == before


def test_missing_matplotlib_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'glassformer\[plot\]'"):
        heat_map(torch.eye(1), ["a"], ["b"], "")


def test_sinusoids_are_drawn_unscaled() -> None:
    model = build_model(CONFIGS["paper"])
    axes = drawn(plot_positions(model)).axes[0]
    image = axes.images[0].get_array()
    assert is_close(torch.tensor(image), sinusoid(torch.arange(24), 16))
    assert axes.get_ylabel() == "position, tokens"


def test_learned_tables_start_at_their_offset() -> None:
    model = build_model(CONFIGS["learned_offset"])
    assert model.decoder is not None
    table = model.decoder.embeddings.positions.table.weight  # type: ignore[union-attr]
    image = plot_positions(model).axes[0].images[0].get_array()
    assert torch.equal(torch.tensor(image), table[2:].detach())


def test_rotary_angles() -> None:
    model = build_model(CONFIGS["llama"])  # heads of 6: three pairs
    image = torch.tensor(drawn(plot_positions(model)).axes[0].images[0].get_array())
    assert image.shape == (24, 3)
    assert float(image[5, 1]) == pytest.approx(math.cos(5 * 100 ** (-1 / 3)))


def test_alibi_slopes() -> None:
    config = replace(CONFIGS["alibi"], decoder=Stack(1, 4, d_ff=8))
    axes = drawn(plot_positions(build_model(config))).axes[0]
    for line, slope in zip(axes.lines, alibi_slopes(4), strict=True):
        x, y = line.get_data()
        assert list(x) == list(range(-23, 1)) and list(y) == pytest.approx([slope * d for d in x])


@pytest.mark.parametrize(("stack", "first", "last"), [("encoder", -12, 12), ("decoder", -12, 0)])
def test_relative_biases(stack: str, first: int, last: int) -> None:
    model = build_model(CONFIGS["t5"])
    axes = drawn(plot_positions(model, stack)).axes[0]
    assert len(axes.lines) == 4
    x, y = axes.lines[2].get_data()
    assert (x[0], x[-1]) == (first, last)
    bias = model.get_submodule(f"{stack}.score_bias")
    expected = bias(torch.tensor([12]), torch.tensor([12 + first]))[0, 2, 0, 0].detach()
    assert float(y[0]) == pytest.approx(float(expected))


def test_positions_that_cannot_be_drawn_are_refused() -> None:
    unturned = replace(LLAMA, positions=RotaryPositions(base_pattern=(0.0,)))
    for config, stack, message in (
        (CONFIGS["no_positions"], None, "no positions: its mask alone"),
        (unturned, None, "no positions: its mask alone"),
        (CONFIGS["gpt"], "encoder", "this model has no encoder"),
    ):
        with pytest.raises(UserError, match=message):
            plot_positions(build_model(config), stack)


def write_log(folder: Path, **scores: float) -> Path:
    folder.mkdir()
    lines: list[dict[str, Any]] = [{"step": step, "train/loss": 5 - step / 10} for step in range(1, 11)]
    lines += [
        {"step": 5, "eval/valid_loss": 4.5, **scores},
        {"step": 10, "eval/valid_loss": 4.0, "sample": None, **scores},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_curves_of_one_run_and_of_several(tmp_path: Path) -> None:
    first = write_log(tmp_path / "_first", **{"eval/valid_bleu": 20.0, "eval/valid_chrf": 40.0})
    second = write_log(tmp_path / "second $x$")
    alone = drawn(plot.curves(second))
    assert len(alone.axes) == 1 and alone.axes[0].get_legend() is None
    assert {"validation", "training batches"} == {text.get_text() for text in alone.axes[0].texts}, "names at the ends"
    both = drawn(plot.curves(first, second))
    losses, bleu, _ = both.axes
    assert [list(line.get_xdata()) for line in losses.lines[:2]] == [list(range(1, 11)), [5, 10]]
    assert list(losses.lines[1].get_ydata()) == [4.5, 4.0]
    names = {text.get_text(): text for text in losses.texts}
    for name, line in (("_first", losses.lines[1]), ("second $x$", losses.lines[3])):
        assert names[name].get_color() == line.get_color(), "a name has the colour of its line"
    first_y, second_y = (names[name].get_position()[1] for name in ("_first", "second $x$"))
    assert abs(first_y - second_y) == pytest.approx(1 / 22), "equal values: one gap of `end_labels` apart"
    assert bleu.get_ylabel() == "BLEU (higher is better)" and list(bleu.lines[0].get_ydata()) == [20.0, 20.0]
    assert losses.get_ylabel() == "loss, nats per target"


def test_a_run_without_an_evaluation_is_named_at_its_training_loss(tmp_path: Path) -> None:
    first, second = write_log(tmp_path / "first"), tmp_path / "second"
    second.mkdir()
    (second / "metrics.jsonl").write_text('{"step": 1, "train/loss": 4.25}\n')
    losses, *_ = drawn(plot.curves(first, second)).axes
    assert {"first", "second"} <= {text.get_text() for text in losses.texts}


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no metrics.jsonl"):
        plot.curves(tmp_path)


def test_figures_are_drawn_without_a_window() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    assert isinstance(heat_map(torch.eye(1), ["a"], ["b"], "").canvas, FigureCanvasAgg)


def test_a_notebook_shows_a_figure_as_a_picture() -> None:
    figure: Any = heat_map(torch.eye(3), list("abc"), list("abc"), "weights")
    assert figure._repr_png_().startswith(b"\x89PNG") and figure._repr_png_() == figure._repr_png_()


@pytest.mark.parametrize("n_evaluations", [1, 6])
def test_a_sweep_shows_every_seed_the_verdicts_and_bands(n_evaluations: int) -> None:
    values = {"d_model=64": (2.1, 2.3, 2.2), "d_model=$96$": (1.9, 2.12, 2.01), "d_model=128": (2.2, 2.3, 2.1)}
    table = SweepTable("bits_per_byte", "d_model=64", {variant: {} for variant in values})
    for variant, of_seeds in values.items():
        for seed, value in enumerate(of_seeds):
            curve = [[50 * n, value + 1 / n] for n in range(1, n_evaluations + 1)]
            table.add(variant, seed, {"value": value, "curve": curve})
    baseline, *variants = values
    table.verdicts = verdicts(
        table.values[baseline], {variant: table.values[variant] for variant in variants}, higher_is_better=False
    )
    table.values["stopped"], table.verdicts["stopped"] = {}, replace(table.verdicts[variants[0]], is_early=True)
    values["stopped"] = ()
    seeds, against, *curves = drawn(plot.sweep(table)).axes
    assert texts(seeds.yaxis) == list(values) and "lower is better" in seeds.get_xlabel()
    points = [collection.get_offsets().tolist() for collection in seeds.collections]  # type: ignore[union-attr]
    assert points == [[[value, row] for value in of] for row, of in enumerate(values.values())]
    assert [note.get_text() for note in against.texts] == [verdict.word for verdict in table.verdicts.values()]
    # The interval of "better" leaves out 0, and that of "not known" holds it
    ends = [sorted(point[0] for point in bar.get_segments()[0]) for bar in _bars(against)]
    assert ends[0][1] < 0 and ends[1][0] < 0 < ends[1][1]
    assert bool(curves) == (n_evaluations > 1)
    if curves:
        assert [list(line.get_xdata()) for line in curves[0].lines] == [[50, 100, 150, 200, 250, 300]] * 3 + [[]]
        assert curves[0].lines[0].get_ydata()[-1] == pytest.approx(2.2 + 1 / 6)
        assert len(curves[0].collections) == 4, "a band per variant"


def _bars(axes: Any) -> list[Any]:
    """Return the lines of error bars, without their caps and without the points."""
    return [collection for collection in axes.collections if hasattr(collection, "get_segments")]


def test_a_sweep_without_values_is_no_picture() -> None:
    with pytest.raises(UserError, match="no run of the sweep has a value"):
        plot.sweep(SweepTable("loss", "a", {"a": {}, "b": {}}))
