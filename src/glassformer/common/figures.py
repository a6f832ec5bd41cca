"""Parts that all plots share: a canvas without a window or global state, printable tokens, colours, files."""

import io
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from glassformer.common import files
from glassformer.common.errors import UserError, needs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours of lines, distinct for every colour vision (Okabe and Ito 2008), darkest first; further lines reuse them."""
WEIGHTS = ("#f8fafd", "#b2d9f9", "#4795e7", "#1c5abf", "#1c2967")
"""Colours of weights from 0 (light) to 1 (dark), those of the inspector's page (`colours.js`)."""
SIGNED = ("#b0540e", "#eaa865", "#f4f6f9", "#7ab8ed", "#195cb9")
"""Colours of values with a sign: orange is negative, blue is positive, distinct for every kind of colour vision."""
MASKED = "#dfe1e5"
"""Colour of cells without a value, such as the keys that a mask hides."""
GREY = "#666666"
FORMATS = (".png", ".svg")
MAX_LABEL = 18
FONT = "DejaVu Sans"
"""Font of all plots. It is included in matplotlib, so that plots are equal on every machine."""

SIGNS = {" ": "␣", "\n": "↵", "\t": "⇥"}


def new_figure(width: float, height: float) -> "Figure":
    """Create an empty figure without a window, sizes in inches; raise `UserError` if matplotlib is missing."""
    with needs("a plot", "plot"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    class Shown(Figure):
        """A figure that a notebook shows as a picture."""

        def _repr_png_(self) -> bytes:
            return drawn(self, "png", dpi=100)

    figure = Shown(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def colour_map(colours: Sequence[str]) -> "Colormap":
    """Return the colour map of matplotlib through colours at equal distances."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(colours[0], list(colours))


def save_figure(figure: "Figure", path: str | Path) -> list[Path]:
    """Write PNG (150 dots per inch) or SVG by the path's suffix, or both without a suffix; return the paths.

    The same figure gives the same bytes.
    """
    written = figure_paths(files.as_path(path, "path"))
    for target in written:
        files.write_bytes(target, drawn(figure, target.suffix.removeprefix(".")))
    return written


def drawn(figure: "Figure", kind: str, dpi: int = 150) -> bytes:
    """Return the bytes of a PNG or SVG file; equal figures give equal bytes."""
    import matplotlib

    data, metadata = io.BytesIO(), {"Date" if kind == "svg" else "Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "glassformer", "font.sans-serif": [FONT]}):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the same layout in every format
        figure.savefig(data, format=kind, dpi=dpi, metadata=metadata)
    return data.getvalue()


def figure_paths(path: Path) -> list[Path]:
    """Return the files that a plot of this name is written to; raise `UserError` for an invalid name."""
    if path.name in ("", ".."):
        raise UserError(f"{path} is a folder: give the name of a file")
    if path.suffix and path.suffix not in FORMATS:
        raise UserError(f"cannot write {path}: expected {' or '.join(FORMATS)}, got {path.suffix}")
    return [path] if path.suffix else [path.with_name(path.name + suffix) for suffix in FORMATS]


def label(token: str) -> str:
    """Return a token in printable form: signs for spaces and line ends, codes for missing glyphs; a long token is cut.

    >>> label(" the"), label("a\\n"), label("日")
    ('␣the', 'a↵', '<U+65E5>')
    """
    shown = "".join(map(_drawn, token))
    if shown and unicodedata.combining(shown[0]):
        shown = "◌" + shown
    return shown if len(shown) <= MAX_LABEL else shown[: MAX_LABEL - 1] + "…"


def plain(text: str) -> str:
    """Replace each character that the font lacks with its code; keep spaces.

    >>> plain("a b 日")
    'a b <U+65E5>'
    """
    return " ".join("".join(map(_drawn, word)) for word in text.split(" "))


def _drawn(character: str) -> str:
    if character in SIGNS:
        return SIGNS[character]
    invisible = unicodedata.category(character)[0] in "CZ"
    return f"<U+{ord(character):04X}>" if invisible or ord(character) not in _glyphs() else character


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib import font_manager

    return frozenset(font_manager.get_font(font_manager.findfont(FONT)).get_charmap())


def quiet_axes(axes: "Axes", x: str, y: str) -> None:
    """Set axis names with units, remove the box, and add a pale grid."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(color=GREY, labelsize=9)


def title(axes: "Axes", text: str) -> None:
    """Set a title on the left; a dollar sign does not start mathematics."""
    axes.set_title(plain(text), fontsize=10.5, loc="left", parse_math=False, pad=8)


def legend(axes: "Axes", handles: Sequence[Any], names: Sequence[str], **place: Any) -> None:
    """Add a legend with the names of lines; a dollar sign does not start mathematics."""
    box = axes.legend(handles, [plain(name) for name in names], frameon=False, fontsize=9, **place)
    for text in box.get_texts():
        text.set_parse_math(False)


def end_labels(axes: "Axes", ends: Sequence[tuple[float, str, Any]], *, side: Literal["left", "right"]) -> None:
    """Write names beside the ends of lines, in their colours and without overlap; an end has y, name and colour."""
    low, high = axes.get_ylim()
    gap = (high - low) / max(22, len(ends))
    ends = sorted(ends, key=lambda end: end[0])
    heights: list[float] = []
    for y, _, _ in ends:
        heights.append(max([y, *(below + gap for below in heights[-1:])]))
    for i in reversed(range(len(ends))):  # move names above the top down again
        heights[i] = min([heights[i], *(above - gap for above in heights[i + 1 : i + 2] or [high + gap])])
    for (_, name, colour), height in zip(ends, heights, strict=True):
        axes.text(
            -0.02 if side == "left" else 1.0,
            (height - low) / (high - low),
            plain(name),
            transform=axes.transAxes,
            color=colour,
            fontsize=min(9, 180 / len(ends)),
            ha="right" if side == "left" else "left",
            va="center",
            parse_math=False,
        )
