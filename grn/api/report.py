"""The report that ends a run: what was measured and learned, drawn, as one page in the run's folder."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from grn.analysis.report import write_report
from grn.config.schema import Config
from grn.network.signed_network import SignedNetwork, heatmap_blocks
from grn.plots.confusion import confusion_matrix
from grn.plots.edges import strongest_regulations
from grn.plots.heatmap import network_heatmaps
from grn.plots.training import training_curves
from grn.training.run import TrainResult


def write_run_report(config: Config, result: TrainResult, network: SignedNetwork) -> Path:
    """report.html in the run's folder, which is complete with it."""
    pictures = {
        "training": training_curves(pd.read_csv(result.folder / "metrics.csv")),
        "edges": strongest_regulations(result.edges, signed=network.signed),
        "heatmaps": network_heatmaps(heatmap_blocks(network), signed=network.signed),
    }
    if len(result.confusion):
        pictures["confusion"] = confusion_matrix(result.confusion)
    return write_report(
        result.folder,
        config=config,
        metrics=result.metrics,
        per_class=result.per_class,
        edges=result.edges,
        network=network,
        pictures=pictures,
    )
