"""Networks and known regulons in any form that callers have: a Run, an AnnData, a table, a file, a
name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from grn.features.arguments.given_cells import is_anndata
from grn.features.run import Run, folder_of
from grn.runtime.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

    from grn.edges.edge_table import PredictedNetwork


def predicted_network(
    network: pd.DataFrame | Run | AnnData | str | os.PathLike[str], key: str = "grn"
) -> PredictedNetwork:
    """Return any form of a network as the evaluation takes it.

    key: of varp, which of its networks; a table has one. Raises DataError.
    """
    import pandas as pd

    from grn.edges.edge_table import KEY, network_of_anndata, network_of_table, open_network_file

    if isinstance(network, Run):
        return open_network_file(folder_of(network), key)
    if isinstance(network, pd.DataFrame):
        if key != KEY:
            raise DataError(
                f"A table holds one network, so key={key!r} chooses none.",
                advice="give the run, or leave key out",
            )
        return network_of_table(network, "The network")
    if is_anndata(network):
        return network_of_anndata(network, "The AnnData", key)
    return open_network_file(Path(network), key)


def only_certain(edges: pd.DataFrame) -> pd.DataFrame:
    """The edges with a q-value of at most SIGNIFICANT, by association or by intervention; all where
    none has one."""
    from grn.evidence.q_values import SIGNIFICANT

    columns = [name for name in ("q_value", "caused_q") if name in edges]
    return edges[(edges[columns] <= SIGNIFICANT).any(axis=1)] if columns else edges


def known_regulons(given: object) -> pd.DataFrame:
    """Columns source, target, weight, of whatever `activity` takes as regulons."""
    from grn.cells.genes.lists import REGULONS, path_of, read_list

    path = Path(given) if isinstance(given, (str, os.PathLike)) else None
    if path is not None and str(path) in REGULONS and not path.exists():
        read_list(str(path))  # it is there, and as it was got
        path = path_of(str(path))
    if (
        path is not None
        and path.is_file()
        and path.suffix != ".h5ad"
        and path.name != "edges.parquet"
    ):
        return regulons_in(path)
    return regulons_of(predicted_network(given if path is None else path))


def regulons_in(path: Path) -> pd.DataFrame:
    """Columns source, target, weight of a table of edges: a network with weights, or curated pairs
    with signs.

    Pairs without a known sign are left out, and complexes, which OmniPath names by their proteins.
    Raises DataError.
    """
    from grn.edges.edge_table import (
        find_columns,
        network_of_table,
        read_table,
        reference_of_table,
    )

    table = read_table(path)
    if find_columns(table, [("sign",), ("Regulation",), ("Type",), ("3",)]) is None:
        return regulons_of(network_of_table(table, path))
    edges = reference_of_table(table, path).edges
    kept = (edges["sign"] != 0) & ~edges["source"].str.startswith("COMPLEX:")
    return edges[kept].rename(columns={"sign": "weight"})


def regulons_of(network: PredictedNetwork) -> pd.DataFrame:
    """Columns source, target, weight of a network: where it has q-values, of the edges that are
    certain by them.

    Raises DataError where no edge is, where signs mean nothing, and for edges of several cell
    types.
    """
    from grn.evidence.q_values import SIGNIFICANT

    edges = network.edges
    if not network.signs_have_meaning:
        raise DataError(
            "The signs of these weights mean nothing, and activity needs them; give a network of "
            "effects."
        )
    if "cell_type" in edges and len(types := edges["cell_type"].unique()) > 1:
        raise DataError(
            f"The network has edges of several cell types ({', '.join(types[:5])}); choose one."
        )
    if "q_value" in edges:
        edges = edges[edges["q_value"] <= SIGNIFICANT]
        if edges.empty:
            raise DataError(
                f"The network has no edge with a q-value of at most {SIGNIFICANT}, and activities "
                "by others would be noise",
                advice="give known regulons, as collectri",
            )
    return edges[["source", "target", "weight"]]
