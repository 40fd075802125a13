"""How active each regulator is in each cell, from the levels of its targets, and in which cells it
is more so.

The activity is the t-value of a linear model of one variable (`ulm`): the values of all genes of a
cell, explained by the weights of the regulator on them, 0 for genes that are not its targets.
decoupler, the tests' oracle, is no dependency of a user's installation.

Letters: C cells, N genes, R regulators, D donors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.special import stdtr, stdtrit
from scipy.stats import false_discovery_control

from grn.cells.cells import Cells
from grn.cells.genes.feature_types import are_genes, left_out
from grn.cells.genes.programmes import mostly_of
from grn.cells.preprocessing.counts import genes_only
from grn.cells.readers.matrix import csr_pieces
from grn.evidence.q_values import SIGNIFICANT
from grn.features.findings.drivers import CELLS
from grn.features.findings.summary import ALL
from grn.runtime.errors import DataError, VocabularyMismatch, check_known
from grn.runtime.messages import Say, silent

LEAST_OWN, LEAST_KNOWN = (
    10,
    5,
)  # targets of a regulator: certain edges of the same cells, of which few tell little
FEWEST, FEWEST_DONORS = 3, 2  # on either side of a difference
PIECE = 4096  # cells whose values are in memory at a time


def activity_of_cells(
    pieces: Iterable[sparse.csr_matrix], genes: pd.Index, regulons: pd.DataFrame, min_targets: int
) -> tuple[pd.DataFrame, pd.Series]:
    """Activities, float32 [C, R], of the regulators that have enough targets; and how many each
    has.

    pieces: log values [.., N] of cells, one piece after another.
    regulons: source, target, weight. A cell without any value has activity 0.
    Raises VocabularyMismatch. Source: Badia-i-Mompel et al. 2022 (decoupler's ulm).
    """
    edges = regulons[(regulons["weight"] != 0) & regulons["target"].isin(genes)]
    edges = edges.drop_duplicates(["source", "target"])
    targets = edges["source"].value_counts(sort=False)
    targets = targets[targets >= min_targets]
    if targets.empty:
        raise VocabularyMismatch(
            f"No regulator has {min_targets} targets among the genes of the cells, which have "
            f"those of {len(edges)} of {len(regulons)} edges: names are like "
            f"{regulons['target'].iloc[0]!r} in the network, and like {genes[0]!r} in the cells"
        )
    edges = edges[edges["source"].isin(targets.index)]
    places = genes.get_indexer(edges["target"]), targets.index.get_indexer(edges["source"])
    shape = (len(genes), len(targets))
    weights = sparse.csc_matrix((edges["weight"].to_numpy(np.float64), places), shape=shape)
    (weight, spread), scores = _moments(weights, axis=0), []
    for values in pieces:
        mean, sd = _moments(values, axis=1)
        covariance = (values @ weights).toarray() / len(genes) - mean * weight
        # 0 where all genes of a cell, or all weights of a regulator, are equal
        correlation = np.divide(
            covariance, sd * spread, out=np.zeros_like(covariance), where=sd * spread > 0
        )
        t = correlation * np.sqrt((len(genes) - 2) / np.maximum(1 - correlation**2, 1e-12))
        scores.append(t.astype(np.float32))
    return pd.DataFrame(np.concatenate(scores), columns=targets.index.astype(str)), targets


def _moments(values: sparse.spmatrix, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sd along an axis, float64, which both keep."""
    values = values.astype(np.float64)  # SciPy 1.17 takes the mean of float32 in float32
    mean = np.asarray(values.mean(axis, dtype=np.float64))
    square = np.asarray(values.multiply(values).mean(axis, dtype=np.float64))
    return mean, np.sqrt(np.maximum(square - mean**2, 0))


def log_pieces(adata: AnnData, layer: str | None, say: Say) -> Iterator[sparse.csr_matrix]:
    """The values of X or a layer for the genes (genes_of), float32, some cells at a time; of
    counts, log1p of them at the median total of all cells.
    """
    name = "X" if layer is None else f"layer {layer!r}"
    if layer is not None:
        check_known(layer, adata.layers, "The AnnData", "layer", "layer")
    matrix = adata.X if layer is None else adata.layers[layer]
    genes, only = are_genes(adata.var), genes_only(adata.var)
    if not genes.all():
        say(left_out(adata.var, genes, name))

    def pieces() -> Iterator[sparse.csr_matrix]:
        return (only(piece).astype(np.float32) for piece in csr_pieces(matrix, name, PIECE))

    totals, counted, negative = [], True, False
    for values in pieces():
        if not np.isfinite(values.data).all():
            raise DataError(f"{name} has values that are not finite; remove them first.")
        negative = negative or bool((values.data < 0).any())
        counted = counted and not negative and bool((values.data == np.rint(values.data)).all())
        totals.append(np.asarray(values.sum(1)).ravel())
    total = np.concatenate(totals)
    counted = counted and bool(total.any())
    if counted:
        say(
            f"{name} holds counts; log1p of them, scaled to the median total of the cells, is used."
        )
        scale = (np.median(total[total > 0]) / np.where(total > 0, total, 1)).astype(np.float32)
    else:
        scaled = (
            "; some are negative, as scaled ones are: log values would have other answers"
            if negative
            else ""
        )
        say(f"{name} does not hold counts: its values are used as they are{scaled}.")
    first = 0
    for values in pieces():
        here = slice(first, first := first + values.shape[0])
        yield sparse.csr_matrix(sparse.diags(scale[here]) @ values).log1p() if counted else values


def activity_of_types(
    activity: pd.DataFrame, types: np.ndarray, donors: np.ndarray | None, say: Say
) -> pd.DataFrame:
    """Return how active each regulator is in each type, and how that differs from all other cells
    with a type.

    activity [C, R].
    types [C], donors [C]: labels, "" where a cell has none. Columns as `grn.activity` has them.
    """
    typed = types != ""
    parts = {
        name: {"activity_others": typed & (types != name), "activity": types == name}
        for name in _names(types)
    }
    return _differences(activity, parts, donors, say)


def activity_between(
    activity: pd.DataFrame,
    types: np.ndarray,
    donors: np.ndarray | None,
    condition: np.ndarray,
    conditions: tuple[str, str],
    say: Say,
) -> pd.DataFrame:
    """Return how the activity of each regulator differs within each type between the second
    condition and the first.

    condition [C]: labels.
    """
    parts = {
        name: {f"activity_{each}": (types == name) & (condition == each) for each in conditions}
        for name in _names(types)
    }
    return _differences(activity, parts, donors, say)


def activity_of_run(
    cells: Cells, regulons: pd.DataFrame, *, own: bool, grouped: bool
) -> pd.DataFrame:
    """`activity_of_types` of a run's cells by their labels or, of a run with two conditions
    (data.state_key), `activity_between` these in each type, with further columns: targets;
    programme, that which most of the weight of the regulator's targets is in, or ""; messenger, the
    same difference of the regulator's own mean multiplicity, and messenger_p, both NaN where it is
    not among the genes.

    own: the regulons are its certain edges.
    grouped: donors are the units.
    Raises DataError and VocabularyMismatch.
    """
    least = LEAST_OWN if own else LEAST_KNOWN
    if own and not (regulons["source"].value_counts() >= least).any():
        raise DataError(
            f"no regulator has {least} certain edges",
            advice="known ones need none: grn data get collectri, then grn report RUN --regulons "
            "collectri",
        )
    pieces = (cells.multiplicity[first : first + PIECE] for first in range(0, len(cells), PIECE))
    scores, targets = activity_of_cells(pieces, pd.Index(cells.vocabulary), regulons, least)
    types = (
        np.array([*cells.classes, ""], object)[cells.labels]
        if cells.classes
        else np.full(len(cells), ALL, object)
    )
    donors = None
    if grouped and cells.groups is not None:
        donors = np.where(cells.groups < 0, "", cells.groups.astype(str)).astype(object)
    genes = pd.Index(cells.vocabulary)
    there = scores.columns[scores.columns.isin(genes)]
    own_levels = pd.DataFrame(
        cells.multiplicity[:, genes.get_indexer(there)].toarray(), columns=there
    )

    def differences(values: pd.DataFrame) -> pd.DataFrame:
        if cells.state is None or len(cells.conditions) != 2:
            return activity_of_types(values, types, donors, silent)
        condition = np.array([*cells.conditions, ""], object)[
            np.nan_to_num(cells.state, nan=-1).astype(int)
        ]
        return activity_between(values, types, donors, condition, cells.conditions, silent)

    table, pair = differences(scores), ["cell_type", "regulator"]
    if len(there):
        messenger = differences(own_levels).set_index(pair)[["effect", "p_value"]]
        found = messenger.reindex(pd.MultiIndex.from_frame(table[pair])).to_numpy()
    else:
        found = np.full((len(table), 2), np.nan)
    table = table.assign(messenger=found[:, 0], messenger_p=found[:, 1])
    table.insert(2, "targets", targets.loc[table["regulator"]].to_numpy())
    mostly = mostly_of(regulons, genes)
    # as objects: where no regulator has a programme, pandas has a column of numbers, all missing
    programme = table["regulator"].map(mostly).astype(object).fillna("")
    return table.assign(programme=programme)


def _names(types: np.ndarray) -> list[str]:
    return sorted(set(types) - {""}, key=str.casefold)


def _differences(
    activity: pd.DataFrame,
    parts: dict[str, dict[str, np.ndarray]],
    donors: np.ndarray | None,
    say: Say,
) -> pd.DataFrame:
    """parts: for each type two sets of cells [C] by their column, of which the second is compared
    with the first.

    Of a type, the certain differences come first, by their size.
    Raises DataError where no type has enough cells.
    """
    tables, few, least = [], [], FEWEST if donors is None else FEWEST_DONORS
    for name, (there, here) in ((name, sides.values()) for name, sides in parts.items()):
        samples = [
            activity[each] if donors is None else _of_donors(activity, donors, each)
            for each in (here, there)
        ]
        if min(map(len, samples)) < least:
            few.append(name)
            continue
        effect, low, high, p = _compared(*samples)
        q = false_discovery_control(p)
        found = {"cell_type": name, "regulator": activity.columns, "cells": int(here.sum())}
        found |= {column: activity[each].mean().to_numpy() for column, each in parts[name].items()}
        found |= {"effect": effect, "low": low, "high": high, "p_value": p, "q_value": q}
        tables.append(pd.DataFrame(found).iloc[np.lexsort([-np.abs(effect), q > SIGNIFICANT])])
    units = "cells" if donors is None else "donors"
    if few:
        say(f"Left out, with fewer than {least} {units} on a side: {', '.join(few)}.")
    if not tables:
        raise DataError(f"No cell type has {least} {units} on both sides of a comparison")
    say(CELLS if donors is None else "Donors are the units of intervals and q-values.")
    return pd.concat(tables, ignore_index=True)


def _of_donors(activity: pd.DataFrame, donors: np.ndarray, chosen: np.ndarray) -> pd.DataFrame:
    """The mean activity of each donor's chosen cells, [D, R]."""
    chosen = chosen & (donors != "")
    return activity[chosen].groupby(donors[chosen]).mean()


def _compared(here: pd.DataFrame, there: pd.DataFrame) -> tuple[np.ndarray, ...]:
    """The mean of `here` minus that of `there`, its interval of 95 % and its p-value, [R] each.

    Samples are donors by name, or cells by number: donors are compared in pairs where at least two
    are on both sides. Otherwise Student's t has the degrees of freedom of the smaller sample, which
    holds for any sizes and variances; those of Welch are too many for few cells beside many
    (docs/log.md). Source: Mickey and Brown 1966.
    """
    both = here.index.intersection(there.index)
    if len(both) > 1:
        samples = [(here.loc[both] - there.loc[both]).to_numpy(np.float64)]
    else:
        samples = [here.to_numpy(np.float64), -there.to_numpy(np.float64)]
    effect = np.sum([each.mean(0) for each in samples], 0)
    error = np.sqrt(np.sum([each.var(0, ddof=1) / len(each) for each in samples], 0))
    freedom = min(map(len, samples)) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stdtr(freedom, -np.abs(effect) / error)
    half = stdtrit(freedom, 0.975) * error
    return (
        effect,
        effect - half,
        effect + half,
        np.nan_to_num(p, nan=1.0),
    )  # no variance, no difference: nothing known
