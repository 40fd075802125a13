"""What all pictures share: colours, sizes, labels, and how a figure is written as a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from grn.errors import DataError, UserError
from grn.io.atomic import replacing_file
from grn.messages import glyphs_lacking
from grn.plots.tables import Bound

P = ParamSpec("P")
R = TypeVar("R")
Rule = Callable[[str, Any], Any]

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


def draws(**rules: Bound | Rule) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Brings tables into one form before a function draws them, by the name of the argument."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = signature(function)
        own: dict[str, Bound | Rule] = {**rules, "ax": _plain_axes, "show": _displayable}

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = known.bind(*args, **kwargs)
            for name, rule in own.items():
                if not isinstance(rule, Bound) and bound.arguments.get(name) is not None:
                    bound.arguments[name] = rule(name, bound.arguments[name])
            return function(*bound.args, **bound.kwargs)

        return call

    return decorate


def _plain_axes(_: str, ax: Axes) -> Axes:
    if ax.figure is None or not _belongs(ax):
        raise DataError("ax was removed from its figure; give other axes, or leave ax out.")
    if ax.name != "rectilinear":
        raise DataError(f"ax has the projection {ax.name}, which this picture cannot be drawn on; give plain axes.")
    for letter, scale in (("x", ax.get_xscale()), ("y", ax.get_yscale())):
        if scale != "linear":
            raise DataError(f"ax has a {scale} scale in {letter}, on which this picture misleads; give plain axes.")
    return ax


def _belongs(ax: Axes) -> bool:
    """Whether axes are still in their figure, or inset in axes that are; a cleared figure has lost them."""
    there: list[object] = list(ax.figure.axes)
    while there:
        if ax in there:
            return True
        there = [inset for axes in there for inset in getattr(axes, "child_axes", ())]
    return False


def _displayable(_: str, show: bool) -> bool:
    if show and not _in_notebook():
        raise UserError("show=True displays a picture in a notebook; elsewhere, write it: ax.figure.savefig(PATH).")
    return show


def _in_notebook() -> bool:
    return "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None


def canvas(ax: Axes | None, width: float, height: float) -> Axes:
    """`ax`, or the axes of a new figure of this size, in inches."""
    return figure(width, height).subplots() if ax is None else ax


def shown(axes: Axes, ax: Axes | None, show: bool | None) -> Axes:
    """`axes`, whose figure a notebook has displayed: what every picture with one panel returns.

    ax: what the caller gave.   show: whether to display it; None: in a notebook, where the figure is our own.
    """
    if _in_notebook() and (show or (show is None and ax is None)):
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
        glyphs_lacking(),
        matplotlib.rc_context({"savefig.facecolor": "white", "svg.hashsalt": "grn"}),
    ):
        whole(picture).savefig(beside, metadata=undated.get(path.suffix.lower()))
