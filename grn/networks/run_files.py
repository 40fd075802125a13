"""The files of a network in a run folder: network.h5ad (AnnData, signed CSR in varp), and
edges.parquet and edges_by_type.parquet (a row per edge). signed_network.py reads the first one
again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

from grn.cells.genes.programmes import with_programme
from grn.config.files import load_config
from grn.edges.choose import NUMBERS
from grn.edges.signed_network import edge_list, read_about
from grn.edges.weights import Network, strongest
from grn.evidence.levels import state_levels
from grn.evidence.q_values import SIGNIFICANT
from grn.evidence.states import States
from grn.runtime.atomic import replacing_file
from grn.runtime.errors import DataError, RunFolderError, nearest
from grn.runtime.h5ad import write_anndata
from grn.runtime.run_folder import CONFIG, MODEL_HASH, refuse_cut_off, refuse_mixed_parts
from grn.runtime.tables import read_edge_table

if TYPE_CHECKING:
    from anndata import AnnData

SIGN = (
    "positive: more of the regulator raises the target's predicted multiplicity (sds per sd, "
    "balanced)"
)
RESERVED = re.compile(r"layer\d+|total")


def slugs(labels: Sequence[str]) -> dict[str, str]:
    """Label -> a key of [A-Za-z0-9_], different for every label (keys of varp must not contain
    '/').
    """
    slug_of: dict[str, str] = {}
    for label in labels:
        base = re.sub(r"[^A-Za-z0-9_]+", "_", label).strip("_") or "type"
        taken, slug, number = set(slug_of.values()), base, 2
        while slug in taken or RESERVED.fullmatch(slug):
            slug, number = f"{base}_{number}", number + 1
        slug_of[label] = slug
    return slug_of


def kept(
    network: Network,
    top_k: int | None,
    least: np.ndarray | float = 0.0,
    least_cells: int = 1,
    also: np.ndarray | None = None,
) -> np.ndarray:
    """bool [N, R]: the edges that files hold: of the pairs that `least_cells` cells have together
    the top_k strongest of each target (None: all), and those that are certain, by association or
    intervention.

    least: of the strongest, weights below it are left out, [N, 1].
    also: further pairs, where so many cells have them, [N, R].
    """
    seen = network.cells >= least_cells
    found = (
        strongest(np.where(seen, network.weight, 0), top_k)
        & seen
        & (np.abs(network.weight) >= least)
    )
    if also is not None:
        found |= also & seen & (network.weight != 0)
    for q in (network.q, network.caused_q):
        if q is not None:
            found |= q <= SIGNIFICANT
    return found


def least_of_states(network: Network, top_k: int | None) -> np.ndarray:
    """Return the size of the top_k-th strongest edge of each target over all states together,
    [N, 1].

    Files of states hold what is at least as strong, so that those of fifteen states are not fifteen
    times as large.
    """
    if top_k is None:
        return np.zeros((len(network.weight), 1))
    sizes = [np.where(of.cells > 0, np.abs(of.weight), 0) for of in network.of_states.values()]
    first = min(top_k, network.weight.shape[1])
    largest = np.concatenate(
        [-np.partition(-size, first - 1, axis=1)[:, :first] for size in sizes], axis=1
    )
    last = min(top_k, largest.shape[1]) - 1
    return -np.partition(-largest, last, axis=1)[:, last : last + 1]


def certain_over_all(network: Network) -> np.ndarray | None:
    """bool [N, R]: the edges that are certain over all cells, which files hold of every state: of a
    state that does not show one by itself, its effect there is known. None without q-values.
    """
    return None if network.q is None else network.q <= SIGNIFICANT


def edge_table(
    network: Network,
    genes: Sequence[str],
    regulators: np.ndarray,
    top_k: int | None,
    least: np.ndarray | float = 0.0,
    least_cells: int = 1,
    also: np.ndarray | None = None,
) -> pd.DataFrame:
    """Return a row per edge that is `kept`, by q-value and then by falling |weight|, without self
    loops: source, target, weight, sd, effect and effect_se, q_value and confidence if they are
    known, programme (of the target), between, indirect, cells, and caused, with its interval and
    q-value, where there were interventions.

    regulators [R]: positions.
    least, least_cells, also: see `kept`.
    """
    target, column = kept(network, top_k, least, least_cells, also).nonzero()
    others = target != regulators[column]
    target, column = target[others], column[others]
    certain = (
        np.zeros(len(target))
        if network.q is None
        else np.nan_to_num(network.q[target, column], nan=1.0)
    )
    order = np.lexsort((-np.abs(network.weight[target, column]), certain))
    target, column = target[order], column[order]
    names = np.asarray(genes, dtype=object)
    tables = {name: getattr(network, "q" if name == "q_value" else name) for name in NUMBERS}
    ends = {"source": names[regulators[column]], "target": names[target]}
    return with_programme(
        pd.DataFrame(
            ends | {name: of[target, column] for name, of in tables.items() if of is not None}
        )
    )


def edges_of(weight: np.ndarray, genes: Sequence[str], regulators: np.ndarray) -> pd.DataFrame:
    """source, target and weight of the edges [N, R] that are not 0, by falling |weight|. regulators
    [R]: positions.
    """
    return edge_list(square_matrix(weight, regulators), pd.Index(genes))


def edges_by_type(
    network: Network,
    genes: Sequence[str],
    regulators: np.ndarray,
    top_k: int | None,
    least_cells: int = 1,
) -> pd.DataFrame:
    """Return the edge tables of all states, one after the other, with a last column cell_type.

    Of each target they hold the certain edges, those that are certain over all cells and, over all
    states together, the top_k strongest.
    """
    tables, names = [], list(network.of_states)
    if not names:
        return edge_table(network, genes, regulators, top_k).head(0).assign(cell_type="")
    least = least_of_states(network, top_k)
    also = certain_over_all(network)
    for number, of_state in enumerate(network.of_states.values()):
        table = edge_table(of_state, genes, regulators, top_k, least, least_cells, also)
        table["cell_type"] = pd.Categorical.from_codes(np.full(len(table), number), names)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def square_matrix(weight: np.ndarray, regulators: np.ndarray) -> sp.csr_matrix:
    """[N, R] -> signed CSR [N, N] of the weights other than 0, row = target, column = regulator."""
    target, column = weight.nonzero()
    genes = weight.shape[0]
    return sp.csr_matrix(
        (weight[target, column], (target, regulators[column])), shape=(genes, genes)
    )


def network_anndata(
    network: Network,
    *,
    genes: Sequence[str],
    regulators: np.ndarray,
    states: States,
    multiplicity: sp.csr_matrix,
    top_k: int | None,
    about: dict[str, Any],
    var_names: Sequence[str] | None = None,
) -> AnnData:
    """AnnData of cell types x genes (X: mean multiplicity), the networks in varp["grn*"], their
    meaning in uns["grn"].

    regulators: vocabulary positions [R].
    states: the cell types, or other states of the cells.
    multiplicity: CSR [C, N].
    about: further entries.
    var_names: other names of the genes, which var["var_name"] keeps.
    """
    import anndata

    size = states.membership.sum(0)
    present = np.flatnonzero(size > 0) if len(states) > 1 else np.zeros(0, int)
    names = [states.names[k] for k in present]
    obs = pd.DataFrame({"cells": np.round(size[present]).astype(int)}, index=_texts(names))
    var = pd.DataFrame(
        {"is_regulator": np.isin(np.arange(len(genes)), regulators)}, index=_texts(genes)
    )
    if var_names is not None:
        var["var_name"] = np.array(var_names, dtype=object)
    means = state_levels(multiplicity, states.membership[:, present])
    adata = anndata.AnnData(
        np.asarray(means, np.float32).reshape(len(present), len(genes)), obs=obs, var=var
    )
    slug_of = slugs(names)
    is_regulator = np.isin(np.arange(len(genes)), regulators)[:, None]
    chosen = kept(network, top_k)
    weight, total = (np.where(chosen, values, 0) for values in (network.weight, network.total))
    # Block 1's targets are the regulators, block 2's all other genes.
    first = np.where(is_regulator, weight, 0)
    tables = {"grn": weight, "grn_total": total, "grn_layer0": first, "grn_layer1": weight - first}
    of_states = {slug_of[name]: of for name, of in network.of_states.items() if name in slug_of}
    least = least_of_states(network, top_k) if of_states else 0.0
    also = certain_over_all(network)
    tables |= {
        f"grn_{slug}": np.where(kept(of, top_k, least, also=also), of.weight, 0)
        for slug, of in of_states.items()
    }
    for key, values in tables.items():
        adata.varp[key] = square_matrix(values, regulators)
    adata.uns["grn"] = {
        "orientation": "row = target, column = regulator",
        "sign": SIGN,
        "effects": "direct; total effects are in varp['grn_total']",
        "states": states.origin,
        # A list of pairs, not a mapping: labels may contain '/', which h5ad takes for a folder.
        "cell_types": pd.DataFrame(
            {"slug": _texts(slug_of.values()), "label": _texts(slug_of)},
            index=_texts(map(str, range(len(slug_of)))),
        ),
        **about,
    }
    return adata


def _texts(values: Iterable[str]) -> pd.Index:
    """Return an index of Python strings, which every version of h5ad can hold; pandas 3 would make
    string arrays of them.
    """
    return pd.Index(list(values), dtype=object)


def write_network(folder: Path, adata: AnnData, edges: pd.DataFrame, by_type: pd.DataFrame) -> None:
    """Write network.h5ad, edges.parquet and edges_by_type.parquet, each replaced as a whole.

    Raises RunFolderError where the disk has no room for them.
    """
    write_anndata(folder / "network.h5ad", adata, "gzip")
    for name, table in (("edges.parquet", edges), ("edges_by_type.parquet", by_type)):
        with replacing_file(folder / name) as beside:
            _write_table(beside, table, str(adata.uns["grn"].get("model_hash", "")))


def _write_table(path: Path, table: pd.DataFrame, model_hash: str) -> None:
    """A parquet file that says which model it is of, so that no run's parts are taken for
    another's.

    Numbers that hardly repeat, by bytes of the same place: so they take a fifth less room than as
    they are.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrow = pa.Table.from_pandas(table, preserve_index=False)
    metadata = {**(arrow.schema.metadata or {}), MODEL_HASH: model_hash.encode()}
    numbers = [name for name in table if table[name].dtype.kind == "f"]
    others = [name for name in table if name not in numbers]
    how: dict[str, Any] = {
        "use_byte_stream_split": numbers,
        "use_dictionary": others,
        "compression": "zstd",
    }
    pq.write_table(arrow.replace_schema_metadata(metadata), path, **how)


PARTS = ("edges.parquet", "network.h5ad")
BY_TYPE = "edges_by_type.parquet"


def read_edges(
    folder: Path, cell_type: str | None = None
) -> tuple[pd.DataFrame, list[str], dict[str, Any]]:
    """Return the edge table of a run folder, all genes of its network, and what the weights mean
    (uns["grn"]).

    cell_type: of this type alone.
    Raises RunFolderError, DataError.
    """
    refuse_cut_off(folder, PARTS)
    refuse_mixed_parts(folder)
    for name in (*PARTS, BY_TYPE):
        if not (folder / name).is_file():
            raise RunFolderError(
                f"{folder} has no {name}", advice="give the folder of a finished run"
            )
    genes, about = read_about(folder / "network.h5ad")
    if (folder / CONFIG).is_file():
        about["dataset_id"] = Path(load_config(folder / CONFIG).data.path).stem
    if cell_type is None:
        return read_edge_table(folder / "edges.parquet"), genes, about
    refuse_unknown_type(
        cell_type, read_edge_table(folder / BY_TYPE, columns=["cell_type"])["cell_type"].unique()
    )
    found = read_edge_table(folder / BY_TYPE, filters=[("cell_type", "==", cell_type)])
    return found.drop(columns="cell_type").reset_index(drop=True), genes, about


def refuse_unknown_type(name: str, known: Iterable[str]) -> None:
    """Raise DataError where a network has no cell type (or other state) of this name."""
    known = list(map(str, known))
    if name in known:
        return
    near = nearest(name, known)
    hint = (
        f"did you mean {near!r}?"
        if near
        else f"there are {', '.join(map(repr, known)) or 'no types at all'}"
    )
    raise DataError(f"There is no cell type {name!r}", field="cell_type", advice=hint)
