"""Predicted networks as other tools and ours write them. A new format is one more set of columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import sparse

from grn.analysis.evaluation.tables import check_exists, find_columns, names, numbers, read_table, unknown_columns
from grn.errors import DataError
from grn.files import read_anndata
from grn.network.signed_network import edge_list, means_something, read_sign

WEIGHTED = (
    ("source", "target", "weight"),  # ours, decoupler
    ("TF", "target", "importance"),  # GRNBoost2 and GENIE3 of arboreto and pySCENIC
    ("Gene1", "Gene2", "EdgeWeight"),  # BEELINE's rankedEdges
    ("regulatoryGene", "targetGene", "weight"),  # GENIE3 of Bioconductor
    ("source", "target", "mor"),  # an older name of decoupler
)
BARE = ("0", "1", "2")  # arboreto's tables without a header


@dataclass(frozen=True)
class NetworkFile:
    """edges: source, target, weight, and confidence where the file has it.   genes: all that the file names.

    sign: what the network.h5ad says of the weights' signs (see grn.network.file_formats); "" where nothing is said.
    """

    edges: pd.DataFrame
    genes: pd.Index
    sign: str = ""

    @property
    def signed(self) -> bool | None:
        """False where signs are said to mean nothing, else None: the weights tell, as in `evaluate`."""
        return None if means_something(self.sign) else False


def read_network(path: Path) -> pd.DataFrame:
    """The edges of `open_network_file`: columns source, target, weight (and confidence)."""
    return open_network_file(path).edges


def open_network_file(path: Path) -> NetworkFile:
    """A run folder (its edges.parquet), a network.h5ad, or a table (csv, tsv, parquet; WEIGHTED lists its columns).

    What the signs in an edges.parquet mean, the network.h5ad beside it says. Names are plain strings, weights finite
    float64, rows in the order of the file. Raises DataError.
    """
    path = Path(path)
    check_exists(path)
    if path.is_dir():
        inside = path / "edges.parquet"
        if not inside.is_file():
            raise DataError(f"{path} is a folder without edges.parquet; give a run folder or a file.")
        return open_network_file(inside)
    if path.name.lower().endswith(".h5ad"):
        return _open_h5ad(path)
    table = read_table(path)
    columns = find_columns(table, (*WEIGHTED, BARE))
    if columns is None:
        raise unknown_columns(path, table, WEIGHTED)
    source, target, weight = columns
    edges = pd.DataFrame(
        {
            "source": names(path, table[source]),
            "target": names(path, table[target]),
            "weight": numbers(path, table[weight]),
        }
    )
    if confidence := find_columns(table, [("confidence",)]):
        edges["confidence"] = numbers(path, table[confidence[0]])
    genes = pd.Index(pd.unique(pd.concat([edges["source"], edges["target"]])))
    beside = path.with_name("network.h5ad")
    told = path.name == "edges.parquet" and beside.is_file()
    return NetworkFile(edges, genes, read_sign(beside) if told else "")


def _open_h5ad(path: Path) -> NetworkFile:
    """varp["grn"]: row = target, column = regulator."""
    adata = read_anndata(path)
    if "grn" not in adata.varp:
        held = ", ".join(map(repr, adata.varp)) or "nothing"
        raise DataError(f"{path} holds no network: varp['grn'] is missing, varp has {held}; give a network.h5ad.")
    genes = pd.Index([str(name) for name in adata.var_names], dtype=object)
    edges = edge_list(sparse.csr_matrix(adata.varp["grn"]), genes)
    if edges.empty:
        raise DataError(f"{path} has no edges in varp['grn']; give a network that has.")
    if not np.isfinite(edges["weight"]).all():
        raise DataError(f"{path} has weights in varp['grn'] that are not finite; write the network again.")
    about = adata.uns.get("grn")
    sign = about.get("sign", "") if isinstance(about, Mapping) else ""  # a file of others may keep anything there
    return NetworkFile(edges.astype({"weight": np.float64}), genes, str(sign))
