"""The tables that `grn train` shows on the terminal when it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from grn.network.signed_network import SignedNetwork
    from grn.training.run import TrainResult

EDGES = 8  # of each sign on the terminal


def print_result(result: TrainResult, network: SignedNetwork, to: Console) -> None:
    """Prints the scores of the test cells, the F1 of each cell type, the strongest edges and how many stand out; no
    empty table."""
    from grn.analysis.summary import class_rows, edge_columns, edge_rows, edge_titles, found_rows, score_rows
    from grn.cli.console import print_table
    from grn.network.file_formats import strongest_edges

    strongest = strongest_edges(result.edges, EDGES)
    tables: list[tuple[str, list[str], list]] = [
        ("Test cells", ["metric", "value"], score_rows(result.metrics)),
        ("F1 of the cell types", ["cell type", "F1", "test cells"], class_rows(result.per_class)),
    ]
    tables += [
        (title, edge_columns(edges), list(edge_rows(edges)))
        for title, edges in zip(edge_titles(network.signed), strongest, strict=True)
    ]
    tables.append(("Edges at a false discovery rate of 0.05", ["cells", "edges"], found_rows(network.about)))
    for title, columns, rows in tables:
        if rows:
            to.print()
            print_table(title, columns, rows, to)
