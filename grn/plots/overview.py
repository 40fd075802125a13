"""The picture of the README: what a run found, at a glance. `python -m grn.plots.overview RUN OUT.png`."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from grn.plots.confusion import draw_confusion
from grn.plots.edges import draw_regulations
from grn.plots.style import figure, save


def overview(confusion: pd.DataFrame, edges: pd.DataFrame, count: int = 12) -> Figure:
    """The confusion matrix beside the strongest edges."""
    picture = figure(12.5, 5.8)
    # Subfigures: each half lays out its own labels, however long those of the other are.
    left, right = picture.subfigures(1, 2, squeeze=False, width_ratios=[1.3, 1])[0]
    draw_confusion(left.subplots(), confusion)
    draw_regulations(right.subplots(), edges, count)
    return picture


def main(run: Path, path: Path) -> None:
    """The overview of a run folder that `grn train` wrote, as a PNG file."""
    # Plain text: cell types and genes may be called "NA".
    confusion = pd.read_csv(run / "confusion.csv", index_col=0, keep_default_na=False)
    save(overview(confusion, pd.read_parquet(run / "edges.parquet")), path)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m grn.plots.overview RUN OUT.png")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
