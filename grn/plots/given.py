"""What pictures may be given: a run, its network, or a table; turned into what they draw."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeGuard

import numpy as np
import pandas as pd
from scipy import sparse

from grn.edges.signed_network import SignedNetwork, edge_list, signed_network
from grn.networks.run_files import read_edges
from grn.runtime.errors import DataError, check_known

if TYPE_CHECKING:
    from anndata import AnnData

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


NetworkLike: TypeAlias = "SignedNetwork | AnnData | RunLike | pd.DataFrame"


def is_run(value: object) -> TypeGuard[RunLike]:
    # its tables are not read
    return all(hasattr(type(value), name) for name in ("edges", "network", "folder"))


def as_network(value: NetworkLike) -> SignedNetwork:
    """The network in a Run, in its AnnData, or in a table of edges.

    A table with types has a column cell_type.
    Raises UserError.
    """
    if isinstance(value, SignedNetwork):
        return value
    if isinstance(value, pd.DataFrame):
        return _network_of_table(edges_of_table(value))
    if isinstance(value, (str, Path)):
        raise DataError(f"{str(value)!r} is a path, not a run", advice="draw grn.load(path)")
    return signed_network(value.network if is_run(value) else value)


def weights_of(network: SignedNetwork, cell_type: str | None) -> tuple[sparse.csr_matrix, str]:
    """The weights over all cells, or of a type, and whose they are.

    Raises DataError where there is no such type.
    """
    if cell_type is None and not network.about.get(ONLY_TYPES):
        return network.weights, "all cells"
    name = only_type(network.by_type) if cell_type is None else cell_type
    check_known(name, network.by_type, "The network", "cell type")
    return network.by_type[name], name


def edges_of(value: NetworkLike, cell_type: str | None) -> tuple[pd.DataFrame, str, SignedNetwork]:
    """The edges over all cells, or of a type, by falling |weight|, with q-values where these are
    known; whose they are; and the network. Only a run and tables know q-values.
    Raises UserError.
    """
    network = as_network(value)
    weights, whose = weights_of(network, cell_type)
    if is_run(value):
        table = read_edges(value.folder, cell_type)[0]
        table = table[table["weight"] != 0]
    elif isinstance(value, pd.DataFrame):
        table = edges_of_table(value)
        if "cell_type" in table:
            table = table[table["cell_type"] == ("all" if whose == "all cells" else whose)]
        table = table.iloc[np.argsort(-table["weight"].abs().to_numpy(), kind="stable")]
    else:
        table = edge_list(weights, network.genes)
    return table.reset_index(drop=True), whose, network


def genes_of(network: SignedNetwork, names: str | Iterable[str]) -> list[str]:
    """The names, each once. Raises DataError where one is no gene of the network."""
    wanted = list(dict.fromkeys([names] if isinstance(names, str) else names))
    for name in wanted:
        check_known(name, network.genes, "The network", "gene")
    return wanted


def targets_in_turn(edges: pd.DataFrame, regulators: Iterable[str], count: int) -> list[str]:
    """The targets of the strongest edges, taken from the regulators in turn."""
    kept = edges[edges["source"].isin(list(regulators))]
    turn = kept.groupby("source").cumcount().to_numpy()
    return list(dict.fromkeys(kept.iloc[np.argsort(turn, kind="stable")]["target"]))[:count]


def only_type(types: Iterable[str]) -> str:
    """The one cell type of a table without edges over all cells.

    Raises DataError where there are several.
    """
    names = list(types)
    if len(names) > 1:
        raise DataError(
            f"The table is of several cell types alone ({', '.join(map(repr, names[:5]))}), which "
            "this picture would mix; choose the rows of one, or give cell_type="
        )
    return names[0]


def edges_of_table(table: pd.DataFrame) -> pd.DataFrame:
    """A table of edges in one form; an edge with a weight of 0 is left out. Raises DataError."""
    wanted = "edges (run, run.network or run.edges)"
    found = columns_of(
        table, wanted, texts=("source", "target"), numbers=("weight",), optional=("q_value",)
    )
    if "cell_type" in found:
        found["cell_type"] = np.where(_of_types(found), found["cell_type"].astype(str), "all")
    repeated = found.duplicated(
        [name for name in ("source", "target", "cell_type") if name in found]
    ).to_numpy()
    if repeated.any():
        edge = found.loc[repeated.argmax()]
        raise DataError(
            f"The table has {edge['source']} → {edge['target']} more than once; keep one of the "
            "rows."
        )
    return found[found["weight"] != 0].reset_index(drop=True)


def _network_of_table(table: pd.DataFrame) -> SignedNetwork:
    genes = pd.Index(pd.unique(pd.concat([table["source"], table["target"]])), dtype=object)
    typed = _of_types(table)
    names = table["cell_type"][typed] if typed.any() else pd.Series(dtype=object)
    by_type = {str(name): _matrix(table[typed][names == name], genes) for name in names.unique()}
    only_types = bool(len(table) and typed.all())
    over_all = table.drop_duplicates(["source", "target"]) if only_types else table[~typed]
    about = {"sign": "positive: as the table says"} | ({ONLY_TYPES: True} if only_types else {})
    return SignedNetwork(genes, _matrix(over_all, genes), by_type, about)


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


def columns_of(
    table: pd.DataFrame,
    wanted: str,
    *,
    texts: tuple[str, ...] = (),
    numbers: tuple[str, ...] = (),
    gaps: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
) -> pd.DataFrame:
    """`table` with texts as str, numbers as float64 and rows counted from 0.

    Raises DataError.

    wanted: what the picture draws, in messages.
    texts, numbers, gaps: columns that it needs.
    optional: numbers that it may have. In gaps and optional, values may be missing.
    """
    missing = [
        column
        for column in (*texts, *numbers, *gaps)
        if column not in getattr(table, "columns", ())
    ]
    if missing or not isinstance(table, pd.DataFrame):
        lacking = f"without a column {missing[0]!r}" if missing else "which is no table"
        raise DataError(
            f"This picture draws {wanted}, and was given a {type(table).__name__} {lacking}"
        )
    found = table.reset_index(drop=True)
    for column in texts:
        found[column] = found[column].astype(str).astype(object)
    for column in (*numbers, *gaps, *(name for name in optional if name in table)):
        found[column] = pd.to_numeric(found[column]).astype(np.float64)
        if column in numbers and not np.isfinite(found[column]).all():
            row = int(np.isfinite(found[column]).to_numpy().argmin())
            raise DataError(
                f"The table, row {row + 1}: {column} is {found[column][row]}; correct or remove "
                "the row."
            )
    return found
