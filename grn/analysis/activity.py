"""How active each regulator is in each cell, from the levels of its targets: decoupler's methods on a signed network.

decoupler is an optional library and imported here alone.
Letters: C cells, N genes, R regulators.
"""

from __future__ import annotations

import warnings
from types import ModuleType

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.cells.readers.matrix import to_csr
from grn.errors import ConfigError, DataError, VocabularyMismatch, check_known
from grn.messages import Say

# A weight counts as far as its sign is known: 2 x confidence - 1. The least keeps regulators of which nothing is known.
LEAST_KNOWN = 0.01
UP, DOWN = "(+)", "(-)"


def regulon_activity(
    adata: AnnData,
    edges: pd.DataFrame,
    *,
    method: str,
    targets: int | None,
    min_targets: int,
    layer: str | None,
    say: Say,
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Activities [C, R] and, of ulm, their adjusted p-values [C, R], of the regulators that have enough targets.

    edges: source, target, weight, and confidence where it is known. Raises DataError, ConfigError, VocabularyMismatch.
    """
    try:
        with warnings.catch_warnings():  # of its progress bars, which a notebook without widgets draws as text
            warnings.filterwarnings("ignore", message="IProgress")
            import decoupler
    except ImportError:
        raise ConfigError("grn.activity needs decoupler; install it with: pip install 'grn[decoupler]'.") from None
    values = log_values(adata, layer, say)
    genes = pd.Index(adata.var_names.astype(str))
    net = strongest_targets(edges, genes, targets)
    net = net[net.groupby("source")["target"].transform("size") >= min_targets]
    if net.empty:
        raise VocabularyMismatch(
            f"No regulator has {min_targets} targets among the genes of the cells: the network has names like "
            f"{edges['target'].iloc[0]!r}, the cells like {genes[0]!r}."
        )
    cells = AnnData(values, obs=pd.DataFrame(index=adata.obs_names), var=pd.DataFrame(index=genes))
    if method == "ulm":
        found: tuple[pd.DataFrame, pd.DataFrame | None] = _run(decoupler.mt.ulm, cells, net, min_targets)
    else:
        found = _signed_aucell(decoupler, cells, net, min_targets), None
    say(
        f"Activity of {found[0].shape[1]} regulators in {len(adata)} cells ({method}), from "
        f"{net.groupby('source').size().median():.0f} targets each (median)."
    )
    return found


def log_values(adata: AnnData, layer: str | None, say: Say) -> sparse.csr_matrix:
    """The values of X or a layer, float32 [C, N]; of counts, log1p of them at the median total of the cells."""
    name = "X" if layer is None else f"layer {layer!r}"
    if layer is not None:
        check_known(layer, adata.layers, "The AnnData", "layer", "layer")
    matrix = adata.X if layer is None else adata.layers[layer]
    values = to_csr(matrix, name).astype(np.float32)
    if not np.isfinite(values.data).all():
        raise DataError(f"{name} has values that are not finite; remove them first.")
    if values.nnz and (values.data >= 0).all() and (values.data == np.rint(values.data)).all():
        total = np.asarray(values.sum(1)).ravel()
        scale = np.median(total[total > 0]) / np.where(total > 0, total, 1)
        values = sparse.csr_matrix(sparse.diags(scale.astype(np.float32)) @ values).log1p()
        say(f"{name} holds counts; log1p of them, scaled to the median total of the cells, is used.")
    return values


def strongest_targets(edges: pd.DataFrame, genes: pd.Index, targets: int | None) -> pd.DataFrame:
    """The `targets` strongest edges of each regulator on genes of the cells (None: all), strongest first, pairs once;
    weights times what is known of their signs."""
    edges = edges[(edges["weight"] != 0) & edges["target"].isin(genes)]
    if "confidence" in edges and (edges["confidence"] > 0.5).any():
        known = (2 * edges["confidence"] - 1).clip(lower=LEAST_KNOWN)
        edges = edges.assign(weight=edges["weight"] * known)
    order = np.argsort(-edges["weight"].abs().to_numpy(), kind="stable")
    edges = edges[["source", "target", "weight"]].iloc[order].drop_duplicates(["source", "target"])
    if targets is not None:
        edges = edges[edges.groupby("source").cumcount() < targets]
    return edges.reset_index(drop=True)


def _run(method, cells: AnnData, net: pd.DataFrame, min_targets: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores and adjusted p-values of a method of decoupler; 0 and 1 for cells without any value, which it refuses."""
    full = cells[np.asarray((cells.X != 0).sum(1)).ravel() > 0].copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        method(full, net, tmin=min_targets, empty=False)
    scores = full.obsm[f"score_{method.name}"].reindex(cells.obs_names).fillna(0)
    p = full.obsm.get(f"padj_{method.name}", pd.DataFrame(index=full.obs_names))
    return scores.astype(np.float32), p.reindex(cells.obs_names).fillna(1).astype(np.float32)


def _signed_aucell(decoupler: ModuleType, cells: AnnData, net: pd.DataFrame, min_targets: int) -> pd.DataFrame:
    """[C, R]: the AUC of the genes that a regulator raises minus that of those that it lowers; a set with fewer than
    min_targets genes counts as 0."""
    sets = net.assign(source=net["source"] + np.where(net["weight"] > 0, UP, DOWN))[["source", "target"]]
    auc, _ = _run(decoupler.mt.aucell, cells, sets, min_targets)
    up, down = (
        auc.loc[:, auc.columns.str.endswith(end)].rename(columns=lambda name: name[: -len(UP)]) for end in (UP, DOWN)
    )
    return up.sub(down, fill_value=0).astype(np.float32)
