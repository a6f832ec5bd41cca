"""What every picture shares: a canvas without a window or global state, readable tokens, colours, files."""

import io
import itertools
import math
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer import files
from glassformer.errors import UserError, needs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Apart for every kind of colour vision (Okabe and Ito 2008), darkest first; more lines than these repeat them."""
WEIGHTS_MAP = "viridis"
"""Perceptually uniform: from 0, dark, to 1, bright."""
SIGNED_MAP = "RdBu_r"
"""White at 0, apart for every kind of colour vision."""
GREY = "#666666"
FORMATS = (".png", ".svg")
MAX_LABEL = 18
FONT = "DejaVu Sans"
"""It comes with matplotlib, so that pictures are the same everywhere."""

_SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥"}


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of so many inches, drawn without a window; `UserError` where matplotlib is missing."""
    with needs("a picture", "plot"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: "Figure", path: str | Path) -> list[Path]:
    """Writes PNG (150 dots per inch) or SVG by the path's suffix, both without one; whole files, which are returned.

    The same figure gives the same bytes.
    """
    import matplotlib

    written = figure_paths(files.as_path(path, "path"))
    with matplotlib.rc_context({"svg.hashsalt": "glassformer", "font.sans-serif": [FONT]}):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # as laid out now, in every format
        for target in written:
            kind, data = target.suffix.removeprefix("."), io.BytesIO()
            metadata: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
            figure.savefig(data, format=kind, dpi=150, metadata=metadata)
            files.write_bytes(target, data.getvalue())
    return written


def figure_paths(path: Path) -> list[Path]:
    """The files that a picture of this name is written to; `UserError` for a file that could not be a picture."""
    if path.name in ("", ".."):
        raise UserError(f"{path} is a folder, and a picture needs the name of a file")
    if path.suffix and path.suffix not in FORMATS:
        raise UserError(f"pictures are written as {' or '.join(FORMATS)}, and not as {path.suffix}: {path}")
    return [path] if path.suffix else [path.with_name(path.name + suffix) for suffix in FORMATS]


def label(token: str) -> str:
    """A token as it can be drawn: spaces and line ends as signs, what the font lacks as its code, long ones cut.

    >>> label(" the"), label("a\\n"), label("日")
    ('␣the', 'a↵', '<U+65E5>')
    """
    shown = "".join(map(_drawn, token))
    if shown and unicodedata.combining(shown[0]):
        shown = "◌" + shown
    return shown if len(shown) <= MAX_LABEL else shown[: MAX_LABEL - 1] + "…"


def plain(text: str) -> str:
    """A title or name with nothing that the font lacks; spaces stay as they are.

    >>> plain("a b 日")
    'a b <U+65E5>'
    """
    return " ".join("".join(map(_drawn, word)) for word in text.split(" "))


def _drawn(character: str) -> str:
    if character in _SIGNS:
        return _SIGNS[character]
    invisible = unicodedata.category(character)[0] in "CZ"
    return f"<U+{ord(character):04X}>" if invisible or ord(character) not in _glyphs() else character


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib import font_manager

    return frozenset(font_manager.get_font(font_manager.findfont(FONT)).get_charmap())


def quiet_axes(axes: "Axes", x: str, y: str) -> None:
    """Axis names with their units, no box, a pale grid."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(color=GREY, labelsize=9)


def title(axes: "Axes", text: str) -> None:
    """A title on the left; a dollar sign in it is one, never mathematics."""
    axes.set_title(plain(text), fontsize=10.5, loc="left", parse_math=False, pad=8)


def legend(axes: "Axes", handles: Sequence[Any], names: Sequence[str], **place: Any) -> None:
    """Names of lines, as they are."""
    box = axes.legend(handles, [plain(name) for name in names], frameon=False, fontsize=9, **place)
    for text in box.get_texts():
        text.set_parse_math(False)


def labels_apart(
    axes: "Axes", points: Sequence[tuple[float, float]], radii: Sequence[float], texts: Sequence[str]
) -> None:
    """Puts a text beside each disc (radii in points) in the nearest place where it covers no disc and no other text.

    A line leads from a text that had to go far to its disc.
    """
    from matplotlib.transforms import Bbox

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    taken = []
    for point, radius in zip(points, radii, strict=True):
        x, y = axes.transData.transform(point)
        reach = radius * figure.dpi / 72
        taken.append(Bbox.from_extents(x - reach, y - reach, x + reach, y + reach))
    for point, radius, text in zip(points, radii, texts, strict=True):
        trials = []
        for far, angle in itertools.product(range(4, 124, 12), range(0, 360, 30)):
            note = _note(axes, text, point, radius, far, angle)
            box = note.get_window_extent()
            note.remove()
            outside = not axes.bbox.contains(*box.min) or not axes.bbox.contains(*box.max)
            trials.append((sum(map(box.overlaps, taken)) + outside, far, angle, box))
            if trials[-1][0] == 0:
                break
        _, far, angle, box = min(trials, key=lambda trial: trial[:3])
        _note(axes, text, point, radius, far, angle, leader=far > 4)
        taken.append(box)


def _note(
    axes: "Axes", text: str, point: tuple[float, float], radius: float, far: float, angle: float, leader: bool = False
) -> "Annotation":
    """A text at an angle (degrees) and a distance from the rim of a disc (points)."""
    dx, dy = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    line = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": radius}
    note = axes.annotate(
        text,
        point,
        ((radius + far) * dx, (radius + far) * dy),
        textcoords="offset points",
        arrowprops=line if leader else None,
        fontsize=8.5,
        horizontalalignment="left" if dx > 0.1 else "right" if dx < -0.1 else "center",
        verticalalignment="bottom" if dy > 0.1 else "top" if dy < -0.1 else "center",
        parse_math=False,
    )
    note.set_in_layout(False)
    return note
