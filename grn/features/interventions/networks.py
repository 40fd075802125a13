"""How the edges of a network fit interventions, as CausalBench (Chevalley et al. 2025) and geneRNIB
judge them.

Letters: n genes, T interventions, K pairs of an intervention and a gene whose distribution it
changes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from scipy.stats import mannwhitneyu, norm, wasserstein_distance

from grn.cells.cells import Cells
from grn.cells.interventions import FEWEST
from grn.evidence.q_values import SIGNIFICANT, benjamini_hochberg
from grn.runtime.errors import DataError

COMPARED = 1000  # most cells of each kind whose distributions are compared
FEWEST_TARGETS = 3  # of a regulator whose activity is asked for


def network_scores(
    networks: Mapping[str, pd.DataFrame], cells: Cells, rows: np.ndarray
) -> pd.DataFrame:
    """A row for each network: how its edges from intervened regulators fit the cells `rows`.

    networks: tables with source, target, weight. Of the K strongest edges, K the number of pairs
        whose distributions differ (Mann-Whitney, false discovery rate of 5 %): `wasserstein`, the
        mean distance between a target's distributions in intervened and control cells, in its sds;
        `false_omission`, the share of the other pairs that differ; `signs` of the edges that do.
        `tf_precision`, `tf_recall`: the share of regulators, of those with edges and of all, whose
        loss shows as lost activity (slope of the changes on the weights of its edges, q <= 0.05).
    """
    done = cells.interventions
    assert done is not None, "the caller has asked"
    few, done = cells.multiplicity[rows].tocsc(), done.some(rows)
    genes = np.setdiff1d(np.arange(len(cells.vocabulary)), done.key)
    generator = np.random.default_rng(0)

    def values(cells_of: np.ndarray) -> np.ndarray:
        return few[np.sort(generator.permutation(cells_of)[:COMPARED])][:, genes].toarray()

    control = values(np.flatnonzero(done.control))
    sd = np.maximum(control.std(0), 1e-6)
    given = {
        name: values(cells_of)
        for number, name in enumerate(done.names)
        if len(cells_of := done.alone(number)) >= FEWEST
    }
    if not given or len(control) < FEWEST:
        raise DataError(
            "The test cells have too few controls or intervened cells to judge by.",
            field="data.test_fraction",
        )
    names = np.array([cells.vocabulary[gene] for gene in genes], object)
    with np.errstate(invalid="ignore"):  # a gene that no cell has
        p = np.stack([mannwhitneyu(each, control, axis=0)[1] for each in given.values()])  # [T, n]
    p[names == np.array(list(given), object)[:, None]] = np.nan
    change = np.stack([(each.mean(0) - control.mean(0)) / sd for each in given.values()])
    differ = _significant(p)
    place = {name: number for number, name in enumerate(names)}
    row_of = {name: number for number, name in enumerate(given)}
    found = []
    for name, table in networks.items():
        known = table[
            table["source"].isin(row_of)
            & table["target"].isin(place)
            & (table["source"] != table["target"])
        ]
        known = known.sort_values("weight", key=lambda weight: -weight.abs(), kind="stable")
        strongest = known[known["weight"] != 0].head(int(differ.sum()))
        at = (
            strongest["source"].map(row_of).to_numpy(int),
            strongest["target"].map(place).to_numpy(int),
        )
        distance = [
            wasserstein_distance(given[source][:, target], control[:, target]) / sd[target]
            for source, target in zip(strongest["source"], at[1], strict=True)
        ]
        others = np.isfinite(p)
        others[at] = False
        right = np.sign(strongest["weight"].to_numpy()) == done.sign * np.sign(change[at])
        slopes: dict[str, tuple[float, float]] = {}
        for source, edges in known[known["weight"] != 0].groupby("source"):
            if len(edges) >= FEWEST_TARGETS:
                slopes[source] = _slope(edges, place, change[row_of[source]])
        slope, chance = np.array(list(slopes.values())).reshape(-1, 2).T
        recovered = float(((done.sign * slope > 0) & _significant(chance)).sum())
        found.append(
            {
                "network": name,
                "edges": len(strongest),
                "wasserstein": float(np.mean(distance)) if distance else np.nan,
                "false_omission": float(differ[others].mean()),
                "signs": float(right[differ[at]].mean()) if differ[at].any() else np.nan,
                "tf_precision": recovered / len(slopes) if slopes else np.nan,
                "tf_recall": recovered / len(given),
            }
        )
    return pd.DataFrame(found)


def _significant(p: np.ndarray) -> np.ndarray:
    """Which p-values have a false discovery rate of at most SIGNIFICANT; NaN have not."""
    known, found = np.isfinite(p), np.zeros(p.shape, dtype=bool)
    found[known] = (benjamini_hochberg(torch.as_tensor(p[known])) <= SIGNIFICANT).numpy()
    return found


def _slope(
    edges: pd.DataFrame, place: Mapping[str, int], change: np.ndarray
) -> tuple[float, float]:
    """Slope of all genes' changes on a regulator's weights, 0 for genes without an edge, and its
    p-value.
    """
    weight = np.zeros(len(change))
    weight[edges["target"].map(place).to_numpy(int)] = edges["weight"]
    weight, centred = weight - weight.mean(), change - change.mean()
    slope = float(weight @ centred / (weight @ weight))
    error = np.sqrt(
        np.square(centred - slope * weight).sum() / (len(change) - 2) / (weight @ weight)
    )
    return slope, float(2 * norm.sf(abs(slope) / max(error, 1e-30)))
