"""What `grn train` shows when it is done: the tables on the terminal, and the report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from grn.config.schema import Config
    from grn.network.signed_network import SignedNetwork
    from grn.training.run import TrainResult

EDGES = 8  # of each sign on the terminal


def print_result(result: TrainResult, network: SignedNetwork, to: Console) -> None:
    from grn.analysis.summary import class_rows, edge_rows, edge_titles, score_rows
    from grn.cli.console import print_table
    from grn.network.file_formats import strongest_edges

    strongest = strongest_edges(result.edges, EDGES)
    tables: list[tuple[str, list[str], list]] = [
        ("Test cells", ["metric", "value"], score_rows(result.metrics)),
        ("F1 of the cell types", ["cell type", "F1", "test cells"], class_rows(result.per_class)),
    ]
    tables += [
        (title, ["regulator", "target", "weight", "confidence"], list(edge_rows(edges)))
        for title, edges in zip(edge_titles(network.signed), strongest, strict=True)
    ]
    for title, columns, rows in tables:
        if rows:
            to.print()
            print_table(title, columns, rows, to)


def write_run_report(config: Config, result: TrainResult, network: SignedNetwork) -> Path:
    """report.html in the run's folder."""
    import pandas as pd

    from grn.analysis.report import write_report
    from grn.network.signed_network import heatmap_blocks
    from grn.plots.confusion import confusion_matrix
    from grn.plots.edges import strongest_regulations
    from grn.plots.heatmap import network_heatmaps
    from grn.plots.training import training_curves

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
