"""The files of a network in a run folder: network.h5ad (AnnData, signed CSR in varp), and edges.parquet and
edges_by_type.parquet (a row per edge). signed_network.py reads the first one again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp

from grn.config.files import load_config
from grn.errors import DataError, RunFolderError, nearest
from grn.io.atomic import replacing_file
from grn.io.h5ad import write_anndata
from grn.io.run_folder import CONFIG, MODEL_HASH, refuse_cut_off, refuse_mixed_parts
from grn.io.tables import read_edge_table
from grn.networks.run_readouts import Networks
from grn.networks.signed_network import read_about
from grn.networks.weights import Network, strongest
from grn.regulation.levels import state_levels
from grn.regulation.states import States

SIGN = {
    "effect": "positive: more of the regulator raises the target's predicted multiplicity (sds per sd, balanced)",
    "knockout": "positive: the regulator raises the target's predicted multiplicity (against its absence)",
    "jacobian": "positive: raising the regulator's multiplicity raises the target's predicted multiplicity",
    "attention": "positive: the regulator raises the target's predicted multiplicity (regulation layer)",
    "blocks": "none: the mean of |w| over heads and cells; training does not identify the signs of w",
}
RESERVED = re.compile(r"attention(_layer\d+)?|total")


def slugs(labels: Sequence[str]) -> dict[str, str]:
    """Label -> a key of [A-Za-z0-9_], different for every label (keys of varp must not contain '/')."""
    slug_of: dict[str, str] = {}
    for label in labels:
        base = re.sub(r"[^A-Za-z0-9_]+", "_", label).strip("_") or "type"
        taken, slug, number = set(slug_of.values()), base, 2
        while slug in taken or RESERVED.fullmatch(slug):
            slug, number = f"{base}_{number}", number + 1
        slug_of[label] = slug
    return slug_of


def kept_edges(weight: np.ndarray | sp.csr_matrix, top_k: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row, column and weight of the top_k edges of each row, row by row; a sparse weight stores no other edges."""
    if isinstance(weight, sp.csr_matrix):
        edges = weight.tocoo()
        return edges.row, edges.col, edges.data
    target, column = strongest(weight, top_k).nonzero()
    return target, column, weight[target, column]


def edge_table(
    network: Network, genes: Sequence[str], regulators: np.ndarray, top_k: int | None, *, q_values: bool = False
) -> pd.DataFrame:
    """Columns source, target, weight, within, between, indirect, confidence: a row per candidate edge, sorted by
    |weight|, without self loops.

    within and between, and indirect: NaN where the read-out does not tell them apart.   q_values: add a column
    q_value, if known.
    """
    target, column, weight = kept_edges(network.weight, top_k)
    others = target != regulators[column]
    target, column, weight = target[others], column[others], weight[others]
    order = np.argsort(-np.abs(weight), kind="stable")
    target, column, weight = target[order], column[order], weight[order]
    names = np.asarray(genes, dtype=object)
    unknown = np.full(len(weight), np.nan, np.float32)
    table = {
        "source": names[regulators[column]],
        "target": names[target],
        "weight": weight,
        "within": unknown if network.within is None else network.within[target, column],
        "between": unknown if network.between is None else network.between[target, column],
        "indirect": unknown if network.indirect is None else network.indirect[target, column],
        "confidence": network.confidence[target, column],
    }
    if q_values and network.q is not None:
        table["q_value"] = network.q[target, column]
    return pd.DataFrame(table)


def edges_by_type(
    network: Network, genes: Sequence[str], regulators: np.ndarray, top_k: int | None, *, q_values: bool = False
) -> pd.DataFrame:
    """The edge tables of all cell types, one after the other, with a last column cell_type."""
    tables = []
    names = list(network.by_type)
    for number, name in enumerate(names):
        table = edge_table(network.of_type(name), genes, regulators, top_k, q_values=q_values)
        table["cell_type"] = pd.Categorical.from_codes(np.full(len(table), number), names)
        tables.append(table)
    if not tables:
        return edge_table(network, genes, regulators, top_k, q_values=q_values).head(0).assign(cell_type="")
    return pd.concat(tables, ignore_index=True)


def square_matrix(weight: np.ndarray | sp.csr_matrix, regulators: np.ndarray, top_k: int | None) -> sp.csr_matrix:
    """[N, R] -> signed CSR [N, N], row = target, column = regulator."""
    target, column, values = kept_edges(weight, top_k)
    nonzero = values != 0
    genes = weight.shape[0]
    return sp.csr_matrix((values[nonzero], (target[nonzero], regulators[column[nonzero]])), shape=(genes, genes))


def network_anndata(
    networks: Networks,
    readout: str,
    *,
    genes: Sequence[str],
    regulators: np.ndarray,
    states: States,
    multiplicity: sp.csr_matrix,
    top_k: int | None,
    about: dict,
    var_names: Sequence[str] | None = None,
):
    """AnnData of cell types x genes (X: mean multiplicity), the networks in varp["grn*"], their meaning in uns["grn"].

    readout: of networks.chosen.   regulators: vocabulary positions [R].   states: the cell types, or other states of
    the cells.   multiplicity: CSR [C, N].   about: further entries.   var_names: other names of the genes, which
    var["var_name"] keeps.
    """
    import anndata

    chosen, attention = networks.chosen, networks.attention
    size = states.membership.sum(0)
    present = np.flatnonzero(size > 0) if len(states) > 1 else np.zeros(0, int)
    names = [states.names[k] for k in present]
    obs = pd.DataFrame({"cells": np.round(size[present]).astype(int)}, index=_texts(names))
    var = pd.DataFrame({"is_regulator": np.isin(np.arange(len(genes)), regulators)}, index=_texts(genes))
    if var_names is not None:
        var["var_name"] = np.array(var_names, dtype=object)
    means = state_levels(multiplicity, states.membership[:, present])
    adata = anndata.AnnData(np.asarray(means, np.float32).reshape(len(present), len(genes)), obs=obs, var=var)
    slug_of = slugs(names)
    adata.varp["grn"] = square_matrix(chosen.weight, regulators, top_k)
    if chosen.total is not None:
        adata.varp["grn_total"] = square_matrix(chosen.total, regulators, top_k)
    for name, weight in chosen.by_type.items():
        if name in slug_of:
            adata.varp[f"grn_{slug_of[name]}"] = square_matrix(weight, regulators, top_k)
    pooled = networks.pooled() if attention is None else attention.weight
    adata.varp["grn_attention"] = square_matrix(pooled, regulators, top_k)
    for layer, weight in enumerate(networks.layers):
        adata.varp[f"grn_attention_layer{layer}"] = square_matrix(weight, regulators, top_k)
    adata.uns["grn"] = {
        "orientation": "row = target, column = regulator",
        "readout": readout,
        "sign": SIGN["blocks" if readout == "attention" and attention is None else readout],
        "effects": "total" if chosen.total is None else "direct; total effects are in varp['grn_total']",
        "sign_attention": SIGN["blocks" if attention is None else "attention"],
        "sign_attention_layers": SIGN["blocks"],
        "states": states.origin,
        # A list of pairs, not a mapping: labels may contain '/', which h5ad takes for a folder.
        "cell_types": pd.DataFrame(
            {"slug": _texts(slug_of.values()), "label": _texts(slug_of)}, index=_texts(map(str, range(len(slug_of))))
        ),
        **about,
    }
    return adata


def _texts(values: Iterable[str]) -> pd.Index:
    """An index of Python strings, which every version of h5ad can hold; pandas 3 would make string arrays of them."""
    return pd.Index(list(values), dtype=object)


def write_network(folder: Path, adata, edges: pd.DataFrame, by_type: pd.DataFrame) -> None:
    """Writes network.h5ad, edges.parquet and edges_by_type.parquet, each replaced as a whole.

    Raises RunFolderError where the disk has no room for them.
    """
    write_anndata(folder / "network.h5ad", adata)
    for name, table in (("edges.parquet", edges), ("edges_by_type.parquet", by_type)):
        with replacing_file(folder / name) as beside:
            _write_table(beside, table, str(adata.uns["grn"].get("model_hash", "")))


def _write_table(path: Path, table: pd.DataFrame, model_hash: str) -> None:
    """A parquet file that says which model it is of, so that no run's parts are taken for another's."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.Table.from_pandas(table, preserve_index=False)
    metadata = {**(arrow.schema.metadata or {}), MODEL_HASH: model_hash.encode()}
    pq.write_table(arrow.replace_schema_metadata(metadata), path)


PARTS = ("edges.parquet", "network.h5ad")
BY_TYPE = "edges_by_type.parquet"


def read_edges(folder: Path, cell_type: str | None = None) -> tuple[pd.DataFrame, list[str], dict]:
    """The edge table of a run folder, all genes of its network, and what the weights mean (uns["grn"]).

    cell_type: of this type alone. Raises RunFolderError, DataError.
    """
    refuse_cut_off(folder, PARTS)
    refuse_mixed_parts(folder)
    for name in (*PARTS, BY_TYPE):
        if not (folder / name).is_file():
            raise RunFolderError(f"{folder} has no {name}", advice="give the folder of a finished run")
    genes, about = read_about(folder / "network.h5ad")
    if (folder / CONFIG).is_file():
        about["dataset_id"] = Path(load_config(folder / CONFIG).data.path).stem
    if cell_type is None:
        return read_edge_table(folder / "edges.parquet"), genes, about
    refuse_unknown_type(cell_type, read_edge_table(folder / BY_TYPE, columns=["cell_type"])["cell_type"].unique())
    found = read_edge_table(folder / BY_TYPE, filters=[("cell_type", "==", cell_type)])
    return found.drop(columns="cell_type").reset_index(drop=True), genes, about


def refuse_unknown_type(name: str, known: Iterable[str]) -> None:
    """Raises DataError where a network has no cell type (or other state) of this name."""
    known = list(map(str, known))
    if name in known:
        return
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"there are {', '.join(map(repr, known)) or 'no types at all'}"
    raise DataError(f"There is no cell type {name!r}", field="cell_type", advice=hint)


def strongest_edges(edges: pd.DataFrame, count: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The `count` strongest up- and the `count` strongest down-regulations of a sorted edge table."""
    up, down = edges[edges["weight"] > 0], edges[edges["weight"] < 0]
    return up.head(count), down.head(count)
