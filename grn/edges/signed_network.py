"""A network read from network.h5ad or its AnnData: over all cells and for each cell type, by gene
name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from grn.runtime.errors import DataError, one_line
from grn.runtime.h5ad import damaged_h5ad, read_anndata
from grn.runtime.positions import signed_positions

if TYPE_CHECKING:
    from anndata import AnnData


@dataclass(frozen=True)
class SignedNetwork:
    """Weights of regulators on targets, over all cells and by type.

    weights: CSR [N, N], row = target, column = regulator.
    about: uns["grn"], which says what they mean.
    by_type: weights of each cell type, by label; the types with the most cells come first.
    levels: mean multiplicity of each gene (columns) in each type; None where these are not known.
    """

    genes: pd.Index
    weights: sparse.csr_matrix
    by_type: dict[str, sparse.csr_matrix]
    about: dict[str, Any]
    levels: pd.DataFrame | None = None

    @property
    def signed(self) -> bool:
        """Whether the sign of a weight has a meaning (see sign_has_meaning)."""
        return sign_has_meaning(self.about["sign"])


def sign_has_meaning(sign: str) -> bool:
    """Return whether uns["grn"]["sign"] gives the signs of the weights a meaning."""
    return not sign.startswith("none")


def read_about(path: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the genes of a network.h5ad and its uns["grn"], {} without one; its matrices are not
    read.

    Raises DataError.
    """
    import h5py
    from anndata.io import read_elem

    with path.open("rb") as file:
        try:
            with h5py.File(file) as opened:
                about = dict(read_elem(opened["uns/grn"])) if "uns/grn" in opened else {}
                return list(map(str, read_elem(opened["var"]).index)), about
        except Exception as problem:
            raise damaged_h5ad(path, problem) from problem


def open_network(path: Path) -> SignedNetwork:
    """Read a network.h5ad of a run.

    Raises DataError.
    """
    return signed_network(read_anndata(path), path)


def signed_network(adata: AnnData, file: Path | None = None) -> SignedNetwork:
    """Return the network in an AnnData that was read from a network.h5ad of grn.

    Raises DataError for anything else.

    file: that it was read from, for messages.
    """
    where = file or "The network"
    if "grn" not in getattr(adata, "uns", {}) or "grn" not in getattr(adata, "varp", {}):
        raise DataError(
            f'{where} holds no network: uns["grn"] or varp["grn"] is missing',
            advice="give the network of a loaded run (run.network), or read the network.h5ad of a "
            "run folder",
        )
    about = dict(adata.uns["grn"])
    cells = adata.obs["cells"].astype(float).sort_values(ascending=False, kind="stable")
    types = about["cell_types"].set_index("label", drop=False).loc[cells.index]
    slugs = dict(zip(types["label"].astype(str), types["slug"].astype(str), strict=True))
    keys = {label: f"grn_{slug}" for label, slug in slugs.items() if f"grn_{slug}" in adata.varp}
    by_type = {label: weights_in(adata, key, where) for label, key in keys.items()}
    return SignedNetwork(
        adata.var_names, weights_in(adata, "grn", where), by_type, about, adata.to_df()
    )


def weights_in(adata: AnnData, key: str, where: Path | str = "The network") -> sparse.csr_matrix:
    """varp[key] as CSR, of any form and any dtype of real numbers.

    where: the network in messages.
    Raises DataError for impossible positions, and for what holds no finite numbers.
    """
    held = adata.varp[key]
    try:
        held = held.to_numpy(dtype=np.float64) if isinstance(held, pd.DataFrame) else held
        found = sparse.csr_matrix(signed_positions(held))
        found.check_format(full_check=True)  # SciPy does not look before it uses them
        np.asarray_chkfinite(found.data)
    except (ValueError, TypeError) as problem:
        raise DataError(
            f"{where} is damaged in varp[{key!r}] ({one_line(problem)})", advice="read it again"
        ) from None
    return found


def edge_list(weights: sparse.csr_matrix, genes: pd.Index) -> pd.DataFrame:
    """Columns source, target, weight, sorted by |weight|."""
    edges = weights.tocoo()
    order = np.argsort(-np.abs(edges.data), kind="stable")
    table = {
        "source": genes[edges.col[order]],
        "target": genes[edges.row[order]],
        "weight": edges.data[order],
    }
    return pd.DataFrame(table)


def block(
    weights: sparse.csr_matrix, genes: pd.Index, regulators: list[str], targets: list[str]
) -> pd.DataFrame:
    """Return the weights of some regulators on some targets: rows = regulators, columns =
    targets.
    """
    values = weights[genes.get_indexer(targets)][:, genes.get_indexer(regulators)].toarray().T
    return pd.DataFrame(values, index=regulators, columns=targets)


def similarity_order(values: np.ndarray) -> np.ndarray:
    """Row numbers in an order in which similar rows are neighbours (hierarchical clustering)."""
    from scipy.cluster.hierarchy import leaves_list, linkage

    if len(values) < 3:
        return np.arange(len(values))
    return leaves_list(linkage(values, method="average", optimal_ordering=True))
