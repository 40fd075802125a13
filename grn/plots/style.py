"""What all pictures share: colours, sizes, labels, and how a figure is written as a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from grn.errors import UserError
from grn.files import replacing_file

# Blue and red differ in lightness as well as hue, so they stay apart for colour-blind readers.
UP, DOWN = "#2166ac", "#b2182b"
MEANING = "raises the target", "lowers the target"
WITHOUT_MEANING = "positive weight", "negative weight"  # for read-outs whose signs have no meaning
SIGNED = "RdBu"  # red = negative, white = none, blue = positive
SHARE = "Blues"
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
INK = "#333333"
RASTER = 140  # dots per inch
LONGEST = 28  # characters of a label before it is cut in the middle


def figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that lays out its own labels."""
    return Figure(figsize=(width, height), dpi=RASTER, layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))


def canvas(ax: Axes | None, width: float, height: float) -> Axes:
    """`ax`, or the axes of a new figure of this size, in inches."""
    if ax is not None and not isinstance(ax, Axes):
        raise UserError(f"ax is of the type {type(ax).__name__}; give axes of matplotlib, or leave it out.")
    return figure(width, height).subplots() if ax is None else ax


def shown(axes: Axes, ax: Axes | None, show: bool | None) -> Axes:
    """`axes`, whose figure a notebook has displayed: what every picture with one panel returns.

    ax: what the caller gave.   show: whether to display it; None: in a notebook, where the figure is our own.
    """
    notebook = "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None
    if show and not notebook:
        raise UserError("show=True displays a picture in a notebook; elsewhere, write it: ax.figure.savefig(PATH).")
    if notebook and (show or (show is None and ax is None)):
        sys.modules["IPython"].display.display(axes.figure)
    return axes


def legend_of_signs(axes: Axes, signed: bool = True) -> None:
    """Says what red and blue mean, below the axes."""
    from matplotlib.patches import Patch

    raises, lowers = MEANING if signed else WITHOUT_MEANING
    patches = [Patch(color=DOWN, label=lowers), Patch(color=UP, label=raises)]
    axes.legend(handles=patches, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=2, frameon=False, fontsize=8.5)


def short(label: object, longest: int = LONGEST) -> str:
    """A label of at most `longest` characters, shortened in the middle, as names tend to differ at their ends.

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


def ink_on(colour: tuple[float, ...]) -> str:
    """Black or white, whichever is read more easily on `colour`."""
    red, green, blue = colour[:3]
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.55 else "black"


def paler(colour: str, amount: float) -> tuple[float, ...]:
    """`colour` mixed with white; amount 0: unchanged, 1: white. Unlike transparency, this covers what is behind."""
    return tuple(part + (1 - part) * amount for part in to_rgb(colour))


def note(axes: Axes, text: str) -> None:
    """Writes a sentence instead of a picture, for data that are empty."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=INK, transform=axes.transAxes)


def refuse_other(value: object, wanted: str, columns: Sequence[str] = ()) -> None:
    """Raises UserError where a picture is given anything but a table with these columns. wanted: what it draws."""
    if not isinstance(value, pd.DataFrame):
        raise UserError(f"This picture draws {wanted}, not {type(value).__name__}; give that.")
    missing = [column for column in columns if column not in value]
    if missing:
        raise UserError(
            f"This picture draws {wanted}, and the table has no column {missing[0]!r}; give one that has it."
        )


def refuse_no_count(**counts: object) -> None:
    """Raises UserError for an argument that says how many are drawn and is no whole number above 0."""
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, Integral) or count < 1:
            raise UserError(f"{name} is {count!r}; it must be a whole number, 1 or more.")


def refuse_words(table: pd.DataFrame) -> None:
    """Raises UserError where a column of a table holds no numbers."""
    for name, column in table.items():
        if column.dtype.kind not in "fiu":
            raise UserError(f"The column {str(name)!r} of the table holds no numbers, which this picture draws.")


def whole(picture: Figure | Axes) -> Figure:
    """The figure that axes belong to; a figure itself."""
    found = picture if isinstance(picture, Figure) else picture.figure
    assert isinstance(found, Figure)
    return found


def save(picture: Figure | Axes, path: Path) -> None:
    """The figure, or that of the axes, as a file in the format of its ending (png, svg, pdf), never half-written."""
    # Without a date and the version of matplotlib in it, the same figure always gives the same file.
    undated = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with (
        replacing_file(path) as beside,
        matplotlib.rc_context({"savefig.facecolor": "white", "svg.hashsalt": "grn"}),
    ):
        whole(picture).savefig(beside, metadata=undated.get(path.suffix.lower()))
