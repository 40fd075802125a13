"""A network read from network.h5ad or its AnnData: over all cells and for each cell type, by gene name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import sparse

from grn.errors import DataError, UserError, one_line
from grn.io.h5ad import damaged_h5ad, read_anndata

if TYPE_CHECKING:
    from anndata import AnnData


@dataclass(frozen=True)
class SignedNetwork:
    """weights: CSR [N, N], row = target, column = regulator.   about: uns["grn"], which says what they mean.

    by_type: weights of each cell type, by label; the types with the most cells come first.
    """

    genes: pd.Index
    weights: sparse.csr_matrix
    by_type: dict[str, sparse.csr_matrix]
    about: dict

    @property
    def signed(self) -> bool:
        """Whether the sign of a weight has a meaning (see sign_has_meaning)."""
        return sign_has_meaning(self.about["sign"])

    def by_title(self) -> dict[str, sparse.csr_matrix]:
        """The weights over all cells, then those of each cell type, by title."""
        return {"all cells": self.weights} | {label: weights for label, weights in self.by_type.items()}


def sign_has_meaning(sign: str) -> bool:
    """Whether uns["grn"]["sign"] gives the signs of the weights a meaning."""
    return not sign.startswith("none")


def read_sign(path: Path) -> str:
    """The entry uns["grn"]["sign"] of a network.h5ad, "" without one; its matrices are not read."""
    import h5py
    from anndata.io import read_elem

    with path.open("rb") as file:
        try:
            with h5py.File(file) as opened:
                sign = opened.get("uns/grn/sign")
                return "" if sign is None else str(read_elem(sign))
        except Exception as problem:
            raise damaged_h5ad(path, problem) from problem


def open_network(path: Path) -> SignedNetwork:
    """Reads a network.h5ad of `grn train` or `grn export`. Raises DataError, UserError."""
    return signed_network(read_anndata(path), path)


def signed_network(adata: AnnData, file: Path | None = None) -> SignedNetwork:
    """The network in an AnnData that was read from a network.h5ad of grn. Raises UserError for anything else.

    file: that it was read from, for messages.
    """
    if not (hasattr(adata, "uns") and hasattr(adata, "varp")):
        raise UserError(
            f"A network is needed as an AnnData, not as {type(adata).__name__}; give the network of a loaded run "
            "(run.network), or read the network.h5ad of a run folder."
        )
    if "grn" not in adata.uns or "grn" not in adata.varp:
        if file is not None:
            raise UserError(f'{file} holds no network: uns["grn"] or varp["grn"] is missing; write the network again.')
        raise UserError(
            'This AnnData holds no network: uns["grn"] or varp["grn"] is missing; give the network of a loaded run '
            "(run.network), or read the network.h5ad of a run folder."
        )
    if not isinstance(adata.uns["grn"], Mapping):
        raise UserError('The network is damaged: uns["grn"] is no dict; restore it, or read it again.')
    about = dict(adata.uns["grn"])
    if missing := [name for name in ("cell_types", "sign", "readout") if name not in about]:
        raise UserError(f'The network is damaged: uns["grn"] has no {missing[0]}; restore it, or read it again.')
    if not isinstance(about["sign"], str):
        raise UserError('The network is damaged: uns["grn"]["sign"] is no text; restore it, or read it again.')
    cells = _numbers_of_cells(adata)
    try:
        types = about["cell_types"].set_index("label", drop=False)
        types = types.loc[cells.sort_values(ascending=False, kind="stable").index]
        slugs = dict(zip(types["label"].astype(str), types["slug"].astype(str), strict=True))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UserError(
            'The network is damaged: uns["grn"]["cell_types"] and obs do not name the same cell types; restore them, '
            "or read it again."
        ) from None
    # The blocks' attention is not read by type.
    keys = {label: f"grn_{slug}" for label, slug in slugs.items() if f"grn_{slug}" in adata.varp}
    where = file or "The network"
    by_type = {label: weights_in(adata, key, where) for label, key in keys.items()}
    return SignedNetwork(adata.var_names, weights_in(adata, "grn", where), by_type, about)


def weights_in(adata: AnnData, key: str, where: Path | str = "The network") -> sparse.csr_matrix:
    """varp[key] as CSR, of any form and any dtype of real numbers.

    where: the network in messages. Raises DataError for impossible positions, and for what holds no finite numbers.
    """
    held = adata.varp[key]
    kind = getattr(held, "dtype", None)
    if kind is None or kind.kind not in "fiu" or np.ma.is_masked(held):
        try:  # tables, whose columns have dtypes of their own
            held = held.to_numpy(dtype=np.float64)
        except (AttributeError, TypeError, ValueError):
            what = "masked values" if kind is not None and np.ma.is_masked(held) else f"values of the type {kind}"
            raise DataError(f"{where} has {what} in varp[{key!r}], where numbers belong; write it again.") from None
    try:
        found = sparse.csr_matrix(held)
        found.check_format(full_check=True)  # SciPy does not look before it uses them
    except (ValueError, TypeError) as problem:
        raise DataError(f"{where} is damaged in varp[{key!r}] ({one_line(problem)}); write it again.") from None
    if not np.isfinite(found.data).all():
        raise DataError(f"{where} has weights in varp[{key!r}] that are not finite; write the network again.")
    return found


def _numbers_of_cells(adata: AnnData) -> pd.Series:
    """How many cells each type has, by label. Raises UserError."""
    try:
        cells = adata.obs["cells"].astype(float)
    except (KeyError, TypeError, ValueError):
        cells = None
    if cells is None or not (np.isfinite(cells) & (cells >= 0)).all():
        raise UserError('The network is damaged: obs["cells"] holds no numbers of cells; restore it, or read it again.')
    return cells


def edge_list(weights: sparse.csr_matrix, genes: pd.Index, count: int | None = None) -> pd.DataFrame:
    """Columns source, target, weight, sorted by |weight|; only the `count` strongest of each sign, if given."""
    edges = weights.tocoo()
    order = np.argsort(-np.abs(edges.data), kind="stable")
    if count is not None:
        positive = edges.data[order] > 0
        kept = np.sort(np.concatenate([np.flatnonzero(positive)[:count], np.flatnonzero(~positive)[:count]]))
        order = order[kept]
    table = {"source": genes[edges.col[order]], "target": genes[edges.row[order]], "weight": edges.data[order]}
    return pd.DataFrame(table)


def heatmap_blocks(
    network: SignedNetwork, regulators: int = 12, targets: int = 18, types: int = 11
) -> dict[str, pd.DataFrame]:
    """The weights among the genes of the strongest edges: title -> frame, rows = regulators, columns = targets.

    The first frame is that over all cells, followed by at most `types` cell types. All have the same rows and columns,
    ordered so that genes with similar weights are neighbours.
    """
    rows: list[str] = []
    columns: list[str] = []
    for edge in edge_list(network.weights, network.genes, 20 * targets).itertuples():
        new_row, new_column = edge.source not in rows, edge.target not in columns
        if len(rows) + new_row <= regulators and len(columns) + new_column <= targets:
            rows += [edge.source] * new_row
            columns += [edge.target] * new_column
    if not rows:
        return {}
    blocks = {
        title: block(weights, network.genes, rows, columns)
        for title, weights in list(network.by_title().items())[: types + 1]
    }
    overall = blocks["all cells"].to_numpy()
    row_order, column_order = similarity_order(overall), similarity_order(overall.T)
    return {title: frame.iloc[row_order, column_order] for title, frame in blocks.items()}


def block(weights: sparse.csr_matrix, genes: pd.Index, regulators: list[str], targets: list[str]) -> pd.DataFrame:
    """The weights of some regulators on some targets: rows = regulators, columns = targets."""
    values = weights[genes.get_indexer(targets)][:, genes.get_indexer(regulators)].toarray().T
    return pd.DataFrame(values, index=regulators, columns=targets)


def similarity_order(values: np.ndarray) -> np.ndarray:
    """Row numbers in an order in which similar rows are neighbours (hierarchical clustering)."""
    from scipy.cluster.hierarchy import leaves_list, linkage

    if len(values) < 3:
        return np.arange(len(values))
    return leaves_list(linkage(values, method="average", optimal_ordering=True))
