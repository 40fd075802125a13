"""What all pictures share: colours, sizes, labels, and how a figure is written as a file."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from grn.runtime.atomic import replacing_file
from grn.runtime.errors import UserError

# Blue and red differ in lightness as well as hue, so they stay apart for colour-blind readers.
UP, DOWN = "#b2182b", "#2166ac"
MEANING = "raises the target", "lowers the target"
WITHOUT_MEANING = "positive weight", "negative weight"  # for read-outs whose signs have no meaning
SIGNED = (
    "RdBu_r"  # red = positive, white = none, blue = negative: as scanpy and most papers have it
)
SHARE = "Blues"
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
INK = "#333333"
RASTER = 140  # dots per inch
BAR = 0.8  # inches that a colour bar takes beside names, with its own numbers and label
SMALLEST = 0.3  # of their width, to which axes are made smaller at most
LONGEST = 28  # characters of a label before it is cut in the middle


def figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that lays out its own labels."""
    return Figure(
        figsize=(width, height), dpi=RASTER, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    )


def canvas(ax: Axes | None, width: float, height: float) -> Axes:
    """`ax`, or the axes of a new figure of this size, in inches."""
    return figure(width, height).subplots() if ax is None else ax


def shown(axes: Axes, ax: Axes | None, show: bool | None) -> Axes:
    """`axes`, whose figure a notebook has displayed: what every picture with one panel returns.

    ax: what the caller gave.
    show: whether to display it; None: in a notebook, where the figure is our own.
    """
    in_notebook = "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None
    if show and not in_notebook:
        raise UserError(
            "show=True displays a picture in a notebook; elsewhere, write it: "
            "ax.figure.savefig(PATH)."
        )
    if in_notebook and (show or (show is None and ax is None)):
        sys.modules["IPython"].display.display(axes.figure)
    return axes


def colour_bar(
    picture: Figure, image: Any, label: str, *, size: float = 8.5, **options: Any
) -> None:
    """A colour bar without a frame. options: of Figure.colorbar."""
    bar = picture.colorbar(image, **options)
    bar.set_label(label, fontsize=size)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8)


def colour_bar_beside_names(axes: Axes, image: Any, label: str, *, above: float) -> None:
    """A colour bar right of the names at the right of the axes, where their figure's layout would
    put it over the names: any but the constrained one.

    above: the part of the height of the axes that is drawn above them. Axes that no layout arranges
    are made smaller, so that names, bar and what is above are where the axes were.
    """
    picture = whole(axes)
    names = max(name.get_window_extent().width for name in axes.get_yticklabels())
    room = names + BAR * picture.dpi
    if picture.get_layout_engine() is None:
        place, width = axes.get_position(), axes.bbox.width
        share = max(1 - room / width, SMALLEST)
        axes.set_position((place.x0, place.y0, place.width * share, place.height / (1 + above)))
    width = axes.bbox.width
    left = 1 + (names + BAR / 4 * picture.dpi) / width
    inset = axes.inset_axes((left, 0.25, BAR / 8 * picture.dpi / width, 0.5))
    colour_bar(picture, image, label, cax=inset, extend="both")


def short(label: object, longest: int = LONGEST) -> str:
    """A label of at most `longest` characters, shortened in the middle, as names tend to differ at
    their ends.

    Dollar signs are escaped, so that matplotlib does not read a formula.
    """
    text = str(label)
    if len(text) > longest:
        text = f"{text[: longest - longest // 2 - 1]}…{text[len(text) - longest // 2 :]}"
    return text.replace("$", r"\$")


def shorten(labels: Iterable[object], longest: int = LONGEST) -> list[str]:
    """`short` of every label."""
    return [short(label, longest) for label in labels]


def plain(axes: Axes, title: str = "") -> None:
    """Removes the upper and right frame lines, and puts a title at the left."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=3, color=INK)
    if title:
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)


def unframed(axes: Axes) -> None:
    """No frame and no ticks: of maps."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def sign_legend(of: Figure | Axes, signed: bool, **options: Any) -> None:
    """What red and blue mean. options: of the legend's place and letters."""
    raises, lowers = MEANING if signed else WITHOUT_MEANING
    of.legend(
        handles=[Patch(color=UP, label=raises), Patch(color=DOWN, label=lowers)],
        ncols=2,
        frameon=False,
        **options,
    )


def panels(count: int, most: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with at most `most` panels a row, each of this size in inches, and its panels."""
    columns = min(most, count)
    rows = -(-count // columns)
    picture = figure(width * columns, height * rows)
    found = list(picture.subplots(rows, columns, squeeze=False).flat)
    for panel in found[count:]:
        panel.set_axis_off()
    return picture, found[:count]


def nothing(text: str) -> Figure:
    """A small figure with a sentence."""
    return whole(note(figure(6, 2).subplots(), text))


def note(axes: Axes, text: str) -> Axes:
    """`axes` with a sentence instead of a picture, for data that are empty."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=INK, transform=axes.transAxes)
    return axes


def whole(picture: Figure | Axes) -> Figure:
    """The figure that axes belong to; a figure itself."""
    found = picture if isinstance(picture, Figure) else picture.figure
    assert isinstance(found, Figure)
    return found


def as_png(picture: Figure | Axes) -> bytes:
    """The figure, or that of the axes, as a PNG."""
    buffer = BytesIO()
    with warnings.catch_warnings():  # characters that the font lacks are drawn as boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        whole(picture).savefig(buffer, format="png")
    return buffer.getvalue()


def save(picture: Figure | Axes, path: Path) -> None:
    """The figure, or that of the axes, as a file in the format of its ending (png, svg, pdf), never
    half-written.
    """
    # Without a date and the version of matplotlib in it, the same figure always gives the same
    # file.
    undated = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with (
        replacing_file(path) as beside,
        warnings.catch_warnings(),
        matplotlib.rc_context({"savefig.facecolor": "white", "svg.hashsalt": "grn"}),
    ):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        whole(picture).savefig(beside, metadata=undated.get(path.suffix.lower()))
