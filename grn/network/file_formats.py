"""Networks as files: `network.h5ad` (AnnData, signed CSR in varp) and `edges.parquet` (one row an edge)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp

from grn.files import replacing_file, write_anndata
from grn.network.run_readouts import Networks
from grn.network.weights import Network, strongest

SIGN = {
    "effect": "positive: more of the regulator raises the target's predicted multiplicity (sds per sd, balanced)",
    "knockout": "positive: the regulator raises the target's predicted multiplicity (against its absence)",
    "jacobian": "positive: raising the regulator's multiplicity raises the target's predicted multiplicity",
    "attention": "positive: the regulator raises the target's predicted multiplicity (regulation layer)",
    "blocks": "none: the sign of a block's attention weight is not identified by training; read its magnitude",
}
RESERVED = re.compile(r"attention(_layer\d+)?")


def slugs(labels: Sequence[str]) -> dict[str, str]:
    """Label -> a key of [A-Za-z0-9_], different for every label (varp keys must not contain '/')."""
    found: dict[str, str] = {}
    for label in labels:
        base = re.sub(r"[^A-Za-z0-9_]+", "_", label).strip("_") or "type"
        taken, slug, number = set(found.values()), base, 2
        while slug in taken or RESERVED.fullmatch(slug):
            slug, number = f"{base}_{number}", number + 1
        found[label] = slug
    return found


def kept_edges(weight: np.ndarray | sp.csr_matrix, top_k: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Target, column and weight of the top_k edges of each target, row by row; a sparse weight holds them alone."""
    if isinstance(weight, sp.csr_matrix):
        edges = weight.tocoo()
        return edges.row, edges.col, edges.data
    target, column = strongest(weight, top_k).nonzero()
    return target, column, weight[target, column]


def edge_table(
    network: Network, genes: Sequence[str], regulators: np.ndarray, top_k: int | None, q: np.ndarray | None = None
) -> pd.DataFrame:
    """Columns source, target, weight, confidence: one row a candidate edge, sorted by |weight|, no self loops.

    q [N, R]: the false discovery rate at which an edge is found, for a column q_value.
    """
    target, column, weight = kept_edges(network.weight, top_k)
    others = target != regulators[column]
    target, column, weight = target[others], column[others], weight[others]
    names = np.asarray(genes, dtype=object)
    table = pd.DataFrame(
        {
            "source": names[regulators[column]],
            "target": names[target],
            "weight": weight,
            "confidence": network.confidence[target, column],
        }
    )
    if q is not None:
        table["q_value"] = q[target, column]
    order = np.argsort(-np.abs(table["weight"].to_numpy()), kind="stable")
    return table.iloc[order].reset_index(drop=True)


def square(weight: np.ndarray | sp.csr_matrix, regulators: np.ndarray, top_k: int | None) -> sp.csr_matrix:
    """[N, R] -> signed CSR [N, N], row = target, column = regulator."""
    target, column, values = kept_edges(weight, top_k)
    there = values != 0
    genes = weight.shape[0]
    return sp.csr_matrix((values[there], (target[there], regulators[column[there]])), shape=(genes, genes))


def network_anndata(
    networks: Networks,
    readout: str,
    *,
    genes: Sequence[str],
    regulators: np.ndarray,
    classes: Sequence[str],
    labels: np.ndarray,
    multiplicity: sp.csr_matrix,
    top_k: int | None,
    about: dict,
):
    """AnnData of cell types x genes (X: mean multiplicity) with `varp["grn*"]` and their meaning in uns["grn"]."""
    import anndata

    chosen, attention = networks.chosen, networks.attention
    kinds = sorted(int(kind) for kind in np.unique(labels) if kind >= 0)
    counts = [int((labels == kind).sum()) for kind in kinds]
    obs = pd.DataFrame({"cells": counts}, index=_texts([classes[kind] for kind in kinds]))
    means = [np.asarray(multiplicity[labels == kind].mean(0)).ravel() for kind in kinds]
    var = pd.DataFrame({"is_regulator": np.isin(np.arange(len(genes)), regulators)}, index=_texts(genes))
    adata = anndata.AnnData(np.array(means, dtype=np.float32).reshape(len(kinds), len(genes)), obs=obs, var=var)
    names = slugs([classes[kind] for kind in kinds])
    adata.varp["grn"] = square(chosen.weight, regulators, top_k)
    for kind, weight in chosen.by_type.items():
        adata.varp[f"grn_{names[classes[kind]]}"] = square(weight, regulators, top_k)
    blocks = networks.layers
    pooled = networks.pooled() if attention is None else attention.weight
    adata.varp["grn_attention"] = square(pooled, regulators, top_k)
    for layer, weight in enumerate(blocks):
        adata.varp[f"grn_attention_layer{layer}"] = square(weight, regulators, top_k)
    adata.uns["grn"] = {
        "orientation": "row = target, column = regulator",
        "readout": readout,
        "sign": SIGN["blocks" if readout == "attention" and attention is None else readout],
        "sign_attention": SIGN["blocks" if attention is None else "attention"],
        "sign_attention_layers": SIGN["blocks"],
        # A list of pairs, not a mapping: labels may contain '/', which h5ad takes for a folder.
        "cell_types": pd.DataFrame(
            {"slug": _texts(names.values()), "label": _texts(names)}, index=_texts(map(str, range(len(names))))
        ),
        **about,
    }
    return adata


def _texts(values: Iterable[str]) -> pd.Index:
    """As Python texts, which every version of h5ad holds; pandas 3 would make string arrays of them."""
    return pd.Index(list(values), dtype=object)


def write_network(folder: Path, adata, edges: pd.DataFrame) -> None:
    write_anndata(folder / "network.h5ad", adata)
    with replacing_file(folder / "edges.parquet") as beside:
        edges.to_parquet(beside, index=False)


def strongest_edges(edges: pd.DataFrame, count: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The `count` strongest up- and the `count` strongest down-regulations of a sorted edge table."""
    up, down = edges[edges["weight"] > 0], edges[edges["weight"] < 0]
    return up.head(count), down.head(count)
