"""Losses and metrics during training, from metrics.csv."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grn.plots.style import LINES, figure, note, plain, whole
from grn.plots.tables import columns_of

STAGES = {"train": LINES[1], "validation": LINES[0]}
LOSSES = {
    "loss": "Loss",
    "cell_type_loss": "Loss of cell types",
    "masked_multiplicity_loss": "Loss of masked multiplicities",
    "property_loss": "Loss of the property",
    "gene_identity_loss": "Loss of gene identities",
    "composition_loss": "Loss of compositions",
}
SCORES = {"accuracy": "accuracy", "macro_f1": "macro F1", "auroc": "AUROC", "r2": "R² of masked multiplicities"}


def training_curves(metrics: pd.DataFrame) -> Figure:
    """A panel for each loss, and one for the metrics of the validation cells.

    metrics: columns `step` and `<stage>/<name>`, with gaps, as in a run's metrics.csv.
    """
    measured = tuple(f"{stage}/{name}" for stage in STAGES for name in (*LOSSES, *SCORES))
    metrics = columns_of(metrics, "a table of metrics (run.history)", numbers=("step",), optional=measured)
    known = [name for name in metrics if name == "step" or metrics[name].notna().any()]
    metrics = metrics[known].sort_values("step", kind="stable")
    losses = [name for name in LOSSES if f"validation/{name}" in metrics or f"train/{name}" in metrics]
    if len(losses) == 2:  # one objective: the total loss is its loss, times a weight
        losses = losses[1:]
    scores = [name for name in SCORES if f"validation/{name}" in metrics]
    panels = len(losses) + bool(scores)
    if not panels:
        return whole(note(figure(6, 2).subplots(), "No metrics were recorded during training."))
    columns = min(panels, 2)
    rows = -(-panels // columns)
    picture = figure(4.6 * columns, 3.2 * rows)
    axes = list(picture.subplots(rows, columns, squeeze=False).flat)
    for name, panel in zip(losses, axes, strict=False):
        for stage, colour in STAGES.items():
            curve(panel, metrics, f"{stage}/{name}", stage, colour)
        plain(panel, LOSSES[name])
    if scores:
        panel = axes[len(losses)]
        for name, colour in zip(scores, LINES, strict=False):
            curve(panel, metrics, f"validation/{name}", SCORES[name], colour)
        plain(panel, "Metrics of the validation cells")
    for panel in axes[:panels]:
        panel.set_xlabel("step")
        # Below the axes, where no curve crosses the legend.
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False, fontsize=8)
        panel.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    for panel in axes[panels:]:
        panel.set_axis_off()
    return picture


def curve(axes: Axes, metrics: pd.DataFrame, column: str, label: str, colour: str) -> None:
    if column not in metrics:
        return
    known = metrics[["step", column]].dropna()
    if known.empty:
        return
    # Lightning counts steps from 0.
    axes.plot(known["step"] + 1, known[column], color=colour, label=label, linewidth=1.6, marker="o", markersize=3)
