"""What pictures of networks may be given: a run, its network, or a table of edges; turned into what they draw."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pandas as pd
from scipy import sparse

from grn.errors import DataError, nearest
from grn.io.tables import read_edge_table
from grn.networks.readouts.effect import level_correlation
from grn.networks.signed_network import SignedNetwork, edge_list, signed_network
from grn.plots.tables import WEIGHT, Bound, Table, refuse_missing, refuse_twice

if TYPE_CHECKING:
    from anndata import AnnData

BY_TYPE = "edges_by_type.parquet"
EDGES = Table(
    "edges (run, run.network or run.edges)",
    texts=("source", "target"),
    numbers={"weight": WEIGHT},
    known={"confidence": Bound(0, 1), "within": WEIGHT, "between": Bound(-1, 1)},
    once=("source", "target", "cell_type"),
)
ONLY_TYPES = "only_types"
"""In SignedNetwork.about: a table had edges of several cell types, and none over all cells."""


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
        return _network_of_table(_edges_of_table(value))
    found = signed_network(value.network if is_run(value) else value)  # type: ignore[union-attr, arg-type]
    if not found.genes.is_unique:
        twice = found.genes[found.genes.duplicated()][0]
        raise DataError(f"The network has the gene {twice!r} twice; give the network of a run as it was written.")
    return found


def as_edges(value: pd.DataFrame | SignedNetwork | AnnData | RunLike) -> pd.DataFrame:
    """Edges over all cells, sorted by |weight|, with as many columns as are known. Raises UserError.

    A Run has all; of a network, within and between are had where differences between types have no part in the weights.
    """
    if isinstance(value, pd.DataFrame):
        table = _edges_of_table(value)
        typed = _of_types(table)
        if typed.all() and len(types := _type_names(table)) > 1:
            raise DataError(
                f"The table has edges of cell types alone ({', '.join(map(repr, types[:5]))}), which this picture "
                "would mix; choose the rows of one."
            )
        table = table[~typed] if not typed.all() else table
        return table.iloc[np.argsort(-table["weight"].abs().to_numpy(), kind="stable")].reset_index(drop=True)
    if is_run(value):
        return value.edges  # type: ignore[union-attr]
    network = as_network(value)  # type: ignore[arg-type]
    edges = edge_list(network.weights, network.genes)
    levels = _levels(value)
    error = network.about.get("level_error", 0)
    if not isinstance(error, Real) or (levels is not None and not np.isfinite(levels[0]).all()):
        raise DataError("The levels of the network's cell types are damaged; give the network as it was written.")
    if levels is not None and float(error) >= 1:
        means, cells = levels
        between = level_correlation(means, np.arange(means.shape[1]), cells)
        rows, columns = (network.genes.get_indexer(edges[end]) for end in ("target", "source"))
        edges = edges.assign(within=edges["weight"], between=between[rows, columns])
    return edges


def as_typed_edges(value: pd.DataFrame | SignedNetwork | AnnData | RunLike) -> pd.DataFrame:
    """Edges of every cell type: source, target, weight, cell_type and, where it is known, confidence. UserError."""
    if isinstance(value, pd.DataFrame):
        table = _edges_of_table(value)
        refuse_missing(table, ("cell_type",), f"{EDGES.wanted} of cell types")
        table = table[_of_types(table)]
        return table.assign(cell_type=table["cell_type"].astype(str)).reset_index(drop=True)
    if is_run(value):
        path = Path(value.folder) / BY_TYPE  # type: ignore[union-attr]
        if path.is_file():
            return read_edge_table(path)
    network = as_network(value)  # type: ignore[arg-type]
    tables = [edge_list(w, network.genes).assign(cell_type=name) for name, w in network.by_type.items()]
    return pd.concat(tables, ignore_index=True) if tables else edge_list(network.weights, network.genes).head(0)


def weights_of(network: SignedNetwork, cell_type: str | None) -> tuple[sparse.csr_matrix, str]:
    """The weights over all cells, or of a type, and whose they are. Raises UserError where there is no such type."""
    if cell_type is None:
        if not network.about.get(ONLY_TYPES):
            return network.weights, "all cells"
        if len(network.by_type) > 1:
            known = ", ".join(map(repr, network.by_type))
            raise DataError(f"The table has edges of cell types alone; give cell_type= one of them: {known}.")
        cell_type = next(iter(network.by_type))
    if cell_type not in network.by_type:
        raise no_such_type(network, cell_type)
    return network.by_type[cell_type], cell_type


def no_such_type(network: SignedNetwork, cell_type: str) -> DataError:
    if not network.by_type:
        return DataError(f"The network has no cell types, and {cell_type!r} was asked for; give one that has them.")
    known = ", ".join(map(repr, network.by_type))
    return DataError(f"The network has no cell type {cell_type!r}; its types are {known}.")


def genes_of(network: SignedNetwork, names: Iterable[str]) -> list[str]:
    """The names, each once. Raises DataError where one is no gene of the network."""
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in network.genes:
            near = nearest(name, network.genes)
            hint = f"did you mean {near!r}?" if near else f"its genes are like {str(network.genes[0])!r}."
            if not len(network.genes):
                hint = "it has no edges at all."
            raise DataError(f"The network has no gene {name!r}; {hint}")
    return names


def _edges_of_table(table: pd.DataFrame) -> pd.DataFrame:
    """A table of edges in one form; edges that are 0 are none."""
    refuse_twice(table, ("cell_type",))
    if "cell_type" in table:
        table = table.assign(cell_type=np.where(_of_types(table), table["cell_type"].astype(str), "all"))
    found = EDGES("edges", table)
    return found[found["weight"] != 0].reset_index(drop=True)


def _network_of_table(table: pd.DataFrame) -> SignedNetwork:
    genes = pd.Index(pd.unique(pd.concat([table["source"], table["target"]])), dtype=object)
    typed = _of_types(table)
    names = table["cell_type"].astype(str)[typed] if typed.any() else pd.Series(dtype=object)
    by_type = {str(name): _matrix(table[typed][names == name], genes) for name in names.unique()}
    about = {"sign": "positive: as the table says"}
    if len(table) and typed.all():
        return SignedNetwork(
            genes, _matrix(table.drop_duplicates(["source", "target"]), genes), by_type, about | {ONLY_TYPES: True}
        )
    return SignedNetwork(genes, _matrix(table[~typed], genes), by_type, about)


def _type_names(table: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(table.loc[_of_types(table), "cell_type"].astype(str))) if "cell_type" in table else []


def _of_types(table: pd.DataFrame) -> np.ndarray:
    """Which rows are edges of a cell type; those of all cells together have none, or `all`."""
    if "cell_type" not in table:
        return np.zeros(len(table), dtype=bool)
    names = table["cell_type"].astype(object)
    return (names.notna() & ~names.astype(str).isin(["", "all"])).to_numpy()


def _matrix(edges: pd.DataFrame, genes: pd.Index) -> sparse.csr_matrix:
    rows, columns = (genes.get_indexer(edges[end]) for end in ("target", "source"))
    values = edges["weight"].to_numpy(np.float32)
    return sparse.csr_matrix((values, (rows, columns)), shape=(len(genes), len(genes)))


def _levels(value: object) -> tuple[np.ndarray, np.ndarray] | None:
    """Mean multiplicities [types, genes] and the types' shares of the cells, of the AnnData of a network."""
    if not hasattr(value, "obs") or value.n_obs < 2 or "cells" not in value.obs:  # type: ignore[attr-defined]
        return None
    cells = value.obs["cells"].to_numpy(float)  # type: ignore[attr-defined]
    return np.asarray(value.X, dtype=np.float64), cells / cells.sum()  # type: ignore[attr-defined]
