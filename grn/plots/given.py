"""What pictures of networks may be given: a run, its network, or a table of edges; turned into what they draw."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pandas as pd
from scipy import sparse

from grn.errors import UserError
from grn.files import read_edge_table
from grn.network.readouts.effect import level_correlation
from grn.network.signed_network import SignedNetwork, edge_list, signed_network

if TYPE_CHECKING:
    from anndata import AnnData

BY_TYPE = "edges_by_type.parquet"
EDGE = ("source", "target", "weight")


class RunLike(Protocol):
    """What pictures use of a grn.Run."""

    @property
    def edges(self) -> pd.DataFrame: ...
    @property
    def network(self) -> AnnData: ...
    @property
    def folder(self) -> Path: ...


def is_run(value: object) -> bool:
    """Whether a value is a Run, whose tables are read only when they are asked for."""
    return all(hasattr(type(value), name) for name in ("edges", "network", "folder"))


def as_network(value: SignedNetwork | AnnData | RunLike | pd.DataFrame) -> SignedNetwork:
    """The network in a Run, in its AnnData, or in a table of edges (with types: a column cell_type). UserError."""
    if isinstance(value, SignedNetwork):
        return value
    if isinstance(value, pd.DataFrame):
        return _network_of_table(value)
    return signed_network(value.network if is_run(value) else value)  # type: ignore[union-attr, arg-type]


def as_edges(value: pd.DataFrame | SignedNetwork | AnnData | RunLike) -> pd.DataFrame:
    """Edges over all cells, sorted by |weight|, with as many columns as are known. Raises UserError.

    A Run has all; of a network, within and between are had where differences between types have no part in the weights.
    """
    if isinstance(value, pd.DataFrame):
        _refuse_without(value, EDGE)
        overall = value[~_of_types(value)] if "cell_type" in value else value
        table = overall if len(overall) else value
        return table.iloc[np.argsort(-table["weight"].abs().to_numpy(), kind="stable")]
    if is_run(value):
        return value.edges  # type: ignore[union-attr]
    network = as_network(value)  # type: ignore[arg-type]
    edges = edge_list(network.weights, network.genes)
    levels = _levels(value)
    if levels is not None and float(network.about.get("level_error", 0)) >= 1:
        means, cells = levels
        between = level_correlation(means, np.arange(means.shape[1]), cells)
        rows, columns = (network.genes.get_indexer(edges[end]) for end in ("target", "source"))
        edges = edges.assign(within=edges["weight"], between=between[rows, columns])
    return edges


def as_typed_edges(value: pd.DataFrame | SignedNetwork | AnnData | RunLike) -> pd.DataFrame:
    """Edges of every cell type: source, target, weight, cell_type and, where it is known, confidence. UserError."""
    if isinstance(value, pd.DataFrame):
        _refuse_without(value, (*EDGE, "cell_type"))
        return value
    if is_run(value):
        path = Path(value.folder) / BY_TYPE  # type: ignore[union-attr]
        if path.is_file():
            return read_edge_table(path)
    network = as_network(value)  # type: ignore[arg-type]
    tables = [edge_list(w, network.genes).assign(cell_type=name) for name, w in network.by_type.items()]
    return pd.concat(tables, ignore_index=True) if tables else edge_list(network.weights, network.genes).head(0)


def weights_of(network: SignedNetwork, cell_type: str | None) -> sparse.csr_matrix:
    """The weights over all cells, or of a type. Raises UserError where there is none of that name."""
    if cell_type is None:
        return network.weights
    if cell_type not in network.by_type:
        known = ", ".join(map(repr, network.by_type)) or "none"
        raise UserError(f"The network has no cell type {cell_type!r}; its types are {known}.")
    return network.by_type[cell_type]


def _network_of_table(table: pd.DataFrame) -> SignedNetwork:
    _refuse_without(table, EDGE)
    genes = pd.Index(pd.unique(pd.concat([table["source"], table["target"]]).astype(str)))
    typed = _of_types(table) if "cell_type" in table else np.zeros(len(table), dtype=bool)
    names = table["cell_type"].astype(str)[typed] if typed.any() else pd.Series(dtype=object)
    by_type = {str(name): _matrix(table[typed][names == name], genes) for name in names.unique()}
    overall = table[~typed] if (~typed).any() else table.drop_duplicates(["source", "target"])
    return SignedNetwork(genes, _matrix(overall, genes), by_type, {"sign": "positive: as the table says"})


def _of_types(table: pd.DataFrame) -> np.ndarray:
    """Which rows are edges of a cell type; those of all cells together have none, or `all`."""
    names = table["cell_type"].astype(object)
    return (names.notna() & ~names.astype(str).isin(["", "all"])).to_numpy()


def _matrix(edges: pd.DataFrame, genes: pd.Index) -> sparse.csr_matrix:
    once = edges.drop_duplicates(["source", "target"])
    rows, columns = (genes.get_indexer(once[end].astype(str)) for end in ("target", "source"))
    values = once["weight"].to_numpy(np.float32)
    return sparse.csr_matrix((values, (rows, columns)), shape=(len(genes), len(genes)))


def _levels(value: object) -> tuple[np.ndarray, np.ndarray] | None:
    """Mean multiplicities [types, genes] and the types' shares of the cells, of the AnnData of a network."""
    if not hasattr(value, "obs") or value.n_obs < 2 or "cells" not in value.obs:  # type: ignore[attr-defined]
        return None
    cells = value.obs["cells"].to_numpy(float)  # type: ignore[attr-defined]
    return np.asarray(value.X, dtype=np.float64), cells / cells.sum()  # type: ignore[attr-defined]


def _refuse_without(table: pd.DataFrame, columns: tuple[str, ...]) -> None:
    missing = [column for column in columns if column not in table]
    if missing:
        raise UserError(
            f"This picture draws edges (run, run.network or run.edges), and the table has no column {missing[0]!r}; "
            "give one that has it."
        )
    if "weight" in columns:
        weights = table["weight"]
        wrong = ~np.isfinite(pd.to_numeric(weights, errors="coerce").to_numpy(float))
        if wrong.any() or weights.dtype.kind not in "fiu":
            row = int(wrong.argmax())
            raise UserError(
                f"The table, row {row + 1}: weight is {str(weights.iloc[row])!r}, which is not a finite number; "
                "correct or remove the row."
            )
