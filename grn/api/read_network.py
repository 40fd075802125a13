"""Networks as tables, ours and those of other tools, as decoupler takes them."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from grn.api.cells import is_anndata
from grn.api.run import Run
from grn.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

    from grn.analysis.evaluation.network_files import PredictedNetwork


def read_network(network: Run | AnnData | str | os.PathLike[str], *, cell_type: str | None = None) -> pd.DataFrame:
    """A network as a table, one row per edge: what decoupler takes as `net`.

    Args:
        network: a Run, its folder, its edges.parquet or network.h5ad, the AnnData of one (`run.network`), or a table
            (csv, tsv, parquet, also .gz) of GRNBoost2, GENIE3, pySCENIC, BEELINE or decoupler, known by its columns.
            edges_by_type.parquet is one, too.
        cell_type: the label of a cell type, for the network of differences between its cells; of our runs only.

    Returns:
        Columns `source` (the regulator), `target`, `weight` (float64, signed where the tool gives signs; unit: as the
        tool has it), and `within`, `between`, `confidence` (0 to 1), `q_value` and `cell_type` where the table has
        them. Rows in the order of the file; those of ours by falling |weight|.

    Raises:
        DataError: no such file, no such columns, a weight that is no finite number, an unknown cell type.

    Examples:
        >>> import grn, pandas, tempfile
        >>> adjacencies = pandas.DataFrame({"TF": ["SPI1"], "target": ["CST3"], "importance": [2.5]})
        >>> with tempfile.TemporaryDirectory() as home:
        ...     adjacencies.to_csv(f"{home}/adjacencies.tsv", sep="\\t", index=False)
        ...     grn.read_network(f"{home}/adjacencies.tsv")
          source target  weight
        0   SPI1   CST3     2.5
    """
    if cell_type is None:
        return predicted_network(network).edges.reset_index(drop=True)
    from grn.network.signed_network import edge_list, signed_network

    signed = signed_network(_anndata_of(network))
    if cell_type not in signed.by_type:
        known = list(signed.by_type)
        near = difflib.get_close_matches(str(cell_type), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, known)) or 'none'}."
        raise DataError(f"The network has no cell type {cell_type!r}; {hint}")
    return edge_list(signed.by_type[cell_type], signed.genes).astype({"weight": "float64"})


def predicted_network(network: pd.DataFrame | Run | AnnData | str | os.PathLike[str]) -> PredictedNetwork:
    """Any form of a network as the evaluation takes it. Raises DataError."""
    import pandas as pd

    from grn.analysis.evaluation.network_files import network_of_anndata, network_of_table, open_network_file

    if isinstance(network, Run):
        return open_network_file(network.folder)
    if isinstance(network, pd.DataFrame):
        return network_of_table(network, "The network")
    if is_anndata(network):
        return network_of_anndata(network, "The AnnData")
    if isinstance(network, (str, os.PathLike)):
        return open_network_file(Path(network))
    raise DataError(f"A network must be a table, a Run, an AnnData or a path, not {type(network).__name__}.")


def _anndata_of(network: Run | AnnData | str | os.PathLike[str]) -> AnnData:
    """The AnnData of a run's network, which has those of its cell types."""
    from grn.files import read_anndata

    if isinstance(network, Run):
        return network.network
    if is_anndata(network):
        return network
    path = Path(network)  # type: ignore[arg-type]
    if path.is_dir():
        path = path / "network.h5ad"
    elif path.name == "edges.parquet":
        path = path.with_name("network.h5ad")
    if not path.is_file() or path.suffix != ".h5ad":
        raise DataError(f"{path} has no networks of cell types; give a run, its folder or its network.h5ad.")
    return read_anndata(path)
