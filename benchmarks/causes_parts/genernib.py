"""Metrics of geneRNIB that need no download.

Source: the folder src/metrics of the repository openproblems-bio/task_grn_inference, whose parts
each function names; written from these. What differs here:

- its numbers of regulators and of targets come from a consensus of many methods' networks; here
  they are fixed (`STRONGEST`), and alike for all methods;
- where its code draws a random background, every gene, or many draws, are the background;
- its gene sets are downloaded; here they are regulons of a curated network.

Networks are given by |weight|, as its code takes the largest signed weights.

Letters: C cells, N genes, R regulators, S samples, P gene sets.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from causes_parts.causalbench import Pairs
from scipy import stats
from sklearn.preprocessing import RobustScaler

STRONGEST = (5, 10, 20)  # regulators of a gene, or targets of a regulator
PENALTY = 1.0  # of the ridge
DRAWS = 200  # random networks
FEWEST_TARGETS, MOST_TARGETS = 10, 100  # of a regulator whose targets are compared with gene sets
SET_SIZE = 5, 500
ACTIVE, ENRICHED = 0.01, 0.05


def strongest(edges: pd.DataFrame, by: str, count: int) -> pd.DataFrame:
    """Return the strongest edges of each gene in the column `by` ("source" or "target"), by
    |weight|; no self loops, and none of weight 0.
    """
    known = edges[(edges["source"] != edges["target"]) & (edges["weight"] != 0)]
    order = known["weight"].abs().sort_values(ascending=False, kind="stable").index
    return known.loc[order].groupby(by, sort=False).head(count)


def explained(
    edges: pd.DataFrame, values: np.ndarray, genes: list[str], group: np.ndarray, count: int
) -> dict[str, float]:
    """Return R2 of a ridge regression of each gene on its strongest regulators in each group that
    was left out, clipped to 0 and 1 after its mean over groups (src/metrics/regression).

    values [C, N]; group [C]. A gene without regulators has 0.
    """
    parts = [group != each for each in np.unique(group)]
    return _explained(edges, values, genes, parts, count)


def explained_in(
    edges: pd.DataFrame, values: np.ndarray, genes: list[str], training: np.ndarray, count: int
) -> dict[str, float]:
    """Return the same in the cells that are not in `training`, bool [C]."""
    return _explained(edges, values, genes, [training], count)


def _explained(
    edges: pd.DataFrame,
    values: np.ndarray,
    genes: list[str],
    trainings: list[np.ndarray],
    count: int,
) -> dict[str, float]:
    scaled = RobustScaler(with_centering=False).fit_transform(values)
    place = {gene: number for number, gene in enumerate(genes)}
    inputs = {
        place[target]: [place[each] for each in part["source"]]
        for target, part in strongest(edges, "target", count).groupby("target")
    }
    of_parts = [ridge_r2(scaled, inputs, training) for training in trainings]
    return {
        gene: float(np.clip(np.mean([part.get(number, 0.0) for part in of_parts]), 0, 1))
        for gene, number in place.items()
    }


def ridge_r2(
    values: np.ndarray, inputs: Mapping[int, list[int]], training: np.ndarray
) -> dict[int, float]:
    """Return R2, in the cells that are not in `training`, of scikit-learn's Ridge with its default
    penalty, from the moments of all genes: a regression each would take minutes.

    values [C, N]; inputs: gene -> its inputs. A gene that does not vary there has 0.
    """
    mean = values[training].mean(0)
    before, after = values[training] - mean, values[~training] - mean
    gram, test = before.T @ before, after.T @ after
    whole = np.diag(test) - len(after) * np.square(after.mean(0))
    found = {}
    for gene, own in inputs.items():
        square = gram[np.ix_(own, own)] + PENALTY * np.eye(len(own))
        slopes = np.linalg.solve(square, gram[own, gene])
        error = test[gene, gene] - 2 * slopes @ test[own, gene]
        error += slopes @ test[np.ix_(own, own)] @ slopes
        found[gene] = float(1 - error / whole[gene]) if whole[gene] > 0 else 0.0
    return found


def distance_percentile(edges: pd.DataFrame, pairs: Pairs, count: int) -> dict[str, float]:
    """Return how far the distances of each intervened regulator's strongest targets are above
    those of all genes, as the mean share of these below (ws_precision; src/metrics/ws_distance).

    A missing edge counts as one drawn at random: .5.
    """
    top = strongest(edges, "source", count)
    found = {}
    for source in sorted({source for source, _ in pairs.distance}):
        every = np.array([each for pair, each in pairs.distance.items() if pair[0] == source])
        targets = top.loc[top["source"] == source, "target"]
        own = [pairs.distance[source, gene] for gene in targets if (source, gene) in pairs.distance]
        below = [float((each > every).mean()) for each in own]
        found[source] = float(np.mean(below + [0.5] * (count - len(below))))
    return found


def activity(weight: np.ndarray, change: np.ndarray) -> float:
    """Return t of the slope of changes [N] on weights [N]: decoupler's univariate linear model."""
    return float(activities(weight[None], change)[0])


def activities(weights: np.ndarray, change: np.ndarray) -> np.ndarray:
    """Return the same of several weights [S, N], as [S]."""
    centred = weights - weights.mean(1, keepdims=True)
    change = change - change.mean()
    size = np.linalg.norm(centred, axis=1) * np.linalg.norm(change)
    r = centred @ change / np.maximum(size, 1e-12)
    return r * np.sqrt((len(change) - 2) / np.maximum(1 - r * r, 1e-12))


def recovered_regulators(
    edges: pd.DataFrame, change: Mapping[str, np.ndarray], genes: list[str], count: int, seed: int
) -> float:
    """Return t of a paired test of |activity| of intervened regulators against that of as many
    random targets (t_rec; src/metrics/tf_recovery). A regulator without edges counts 0 on both
    sides.

    change: intervened regulator -> change of all genes [N].
    """
    generator = np.random.default_rng(seed)
    top = strongest(edges, "source", count)
    own, random = [], []
    for source, of_source in change.items():
        kept = np.array([gene != source for gene in genes])
        known = top[top["source"] == source].set_index("target")["weight"]
        weight = known.reindex(genes).fillna(0).to_numpy(float)[kept]
        if (weight != 0).sum() < 3:
            own, random = [*own, 0.0], [*random, 0.0]
            continue
        own.append(abs(activity(weight, of_source[kept])))
        marked = np.zeros(len(weight))
        marked[: int((weight != 0).sum())] = 1
        draws = generator.permuted(np.tile(marked, (DRAWS, 1)), axis=1)
        random.append(float(np.abs(activities(draws, of_source[kept])).mean()))
    return float(stats.ttest_rel(own, random).statistic)


def recovered_sets(
    edges: pd.DataFrame, sets: Mapping[str, set[str]], samples: np.ndarray, genes: list[str]
) -> dict[str, float]:
    """Return precision, recall and F1 of the gene sets in which targets of a regulator are
    enriched, for those that are active in the samples (gs_recovery; src/metrics/gs_recovery).

    sets: name -> genes. samples [S, N]: log expression of pseudobulks.
    """
    every = set(genes)
    known = {
        name: members & every
        for name, members in sets.items()
        if SET_SIZE[0] <= len(members & every) <= SET_SIZE[1]
    }
    usable = {name: each for name, each in known.items() if len(each) >= FEWEST_TARGETS}
    active = {name for name, each in usable.items() if is_active(each, samples, genes)}
    top = strongest(edges, "source", MOST_TARGETS)
    targets = [set(part["target"]) & every for _, part in top.groupby("source")]
    targets = [each for each in targets if len(each) >= FEWEST_TARGETS]
    enriched = {
        name
        for name, members in usable.items()
        if any(enrichment(each, members, len(every)) < ENRICHED / len(known) for each in targets)
    }
    right = len(active & enriched)
    precision = right / len(enriched) if enriched else 0.0
    recall = right / len(active) if active else 0.0
    both = precision + recall
    return {
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / both if both else 0.0,
        "active": float(len(active)),
        "sets": float(len(usable)),
    }


def is_active(members: set[str], samples: np.ndarray, genes: list[str]) -> bool:
    """Return whether a set's genes are higher than others over samples [S, N]."""
    weight = np.array([float(gene in members) for gene in genes])
    found = [activity(weight, sample) for sample in samples]
    return bool(stats.ttest_1samp(found, 0.0, alternative="greater").pvalue < ACTIVE)


def enrichment(targets: set[str], members: set[str], genes: int) -> float:
    """Return Fisher's p-value, one-sided, that as many members are among the targets."""
    both = len(targets & members)
    return float(stats.hypergeom.sf(both - 1, genes, len(members), len(targets)))
