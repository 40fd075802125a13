"""CausalBench's two statistical scores of a network, on cells that were intervened on.

Source: Chevalley et al. 2025, section on statistical evaluation, and its package (causalbench
1.1.2 on PyPI, class Evaluator); written from the definitions. The package estimates the share of
omitted pairs from a random sample of them; here every one counts.

Letters: C cells, N genes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from scipy.stats import mannwhitneyu, wasserstein_distance

CHANGED = 0.05  # largest p-value of a pair whose target's distribution changes
Pair = tuple[str, str]


@dataclass(frozen=True)
class Pairs:
    """What every intervention does to every other gene.

    distance, p: (intervened gene, other gene) -> Wasserstein's distance between the gene's
        distributions in intervened and control cells, and Mann and Whitney's p-value.
    """

    distance: Mapping[Pair, float]
    p: Mapping[Pair, float]

    @classmethod
    def of(cls, values: np.ndarray, label: np.ndarray, genes: list[str], control: str) -> Pairs:
        """Compare the cells of each measured gene that was intervened on with control cells.

        values [C, N]: log multiplicities.
        label [C]: the gene that was intervened on, or `control`.
        """
        base = values[label == control]
        distance, p = {}, {}
        for source in sorted(set(label) & set(genes)):
            given = values[label == source]
            chance = np.nan_to_num(mannwhitneyu(base, given, axis=0).pvalue, nan=1.0)
            for place, target in enumerate(genes):
                if target != source:
                    pair = source, target
                    distance[pair] = wasserstein_distance(base[:, place], given[:, place])
                    p[pair] = float(chance[place])
        return cls(distance, p)

    def scores(self, edges: Iterable[Pair], longest: int | None = None) -> dict[str, float]:
        """Return the mean distance over the edges that can be judged, and the share of pairs that
        change among those that no path of edges connects.

        longest: most edges of such a path; None: any number.
        """
        edges = set(edges)
        connected = reachable(edges, longest)
        judged = [self.distance[pair] for pair in edges if pair in self.distance]
        omitted = [p < CHANGED for pair, p in self.p.items() if pair not in connected]
        return {
            "wasserstein": float(np.mean(judged)) if judged else float("nan"),
            "false_omission": float(np.mean(omitted)) if omitted else float("nan"),
        }


def reachable(edges: Iterable[Pair], longest: int | None = None) -> set[Pair]:
    """Return the pairs that a path of at most `longest` edges connects (None: of any length)."""
    after: dict[str, set[str]] = {}
    for source, target in edges:
        after.setdefault(source, set()).add(target)
    found = set()
    for source in after:
        reached, front, length = set(), {source}, 0
        while front and (longest is None or length < longest):
            front = set().union(*(after.get(gene, set()) for gene in front)) - reached
            reached |= front
            length += 1
        found |= {(source, target) for target in reached - {source}}
    return found
