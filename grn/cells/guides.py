"""Which guides worked? The cells of each guide are a mixture of cells in which it worked and of
cells like the controls.

For each gene, half of its cells give a direction (the genes that differ from controls by more than
chance), and the other half is judged along it. The mixture has two components: controls, and cells
in which the guide worked. Both are the same for all guides of a gene, and each guide has a share of
its own. The idea is Mixscape's (Papalexi et al. 2021). The implementation in pertpy, which is no
dependency, gives the guides of a gene no shares of their own.

Letters: C cells, N genes, n cells of a gene.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import sparse

from grn.cells.interventions import BETWEEN, Interventions

ROUNDS = 60  # of expectation maximisation
FEWEST, MOST_CONTROLS = 10, 4000  # cells of a gene, and controls, of which a mixture is fitted
FAILED = 0.5  # share of its cells below which a guide is said to fail


def with_weights(
    multiplicity: sparse.csr_matrix, interventions: Interventions, groups: np.ndarray | None
) -> tuple[Interventions, pd.DataFrame]:
    """Return the interventions, with the probability that each cell's guide worked in `given`, and
    a table of the guides.

    The table has the columns gene, guide, cells, and share: of its cells, the share in which the
    guide worked; NaN where it is not known, as no effect of its gene stands out.

    multiplicity: CSR float32 [C, N], as measured.
    groups [C]: number of the donor or replicate; cells are compared within it. None: all cells are
        one group.
    """
    group = np.zeros(len(interventions.guide), np.int64) if groups is None else groups
    weight, rows = interventions.given.tocsc(copy=True), []
    controls = Controls.of(multiplicity, np.flatnonzero(interventions.control), group)
    single = np.diff(interventions.given.indptr) == 1
    for number, name in enumerate(interventions.names):
        here = slice(weight.indptr[number], weight.indptr[number + 1])
        cells = weight.indices[here][single[weight.indices[here]]]
        worked = controls.worked(
            multiplicity[cells].toarray(), group[cells], interventions.guide[cells]
        )
        shares = {}
        for guide in np.unique(interventions.guide[cells]):
            own = interventions.guide[cells] == guide
            shares[interventions.guides[guide]] = (
                math.nan if worked is None else float(worked[own].mean())
            )
            rows.append(
                (
                    name,
                    interventions.guides[guide],
                    int(own.sum()),
                    shares[interventions.guides[guide]],
                )
            )
        # a cell with several guides has the shares that these have elsewhere
        if worked is not None:
            of_cell = dict(zip(cells.tolist(), worked.tolist(), strict=True))
            weight.data[here] = [
                of_cell[cell] if cell in of_cell else _share(interventions, cell, shares)
                for cell in weight.indices[here].tolist()
            ]
    table = pd.DataFrame(rows, columns=["gene", "guide", "cells", "share"])
    return replace(interventions, given=weight.tocsr().astype(np.float32)), table


def _share(interventions: Interventions, cell: int, shares: dict[str, float]) -> float:
    """Return the share of the first guide of a cell that `shares` has; 1 where it has none."""
    guides = BETWEEN.split(interventions.guides[interventions.guide[cell]])
    return next((shares[guide] for guide in guides if guide in shares), 1.0)


@dataclass(frozen=True)
class Controls:
    """Some control cells, with which cells of guides are compared.

    values [c, N]: multiplicities less the mean of the controls of the group.
    level: mean of the controls [N], by group.
    sd [N]: of the values.
    half [c]: bool, a random half of the controls.
    generator: draws the halves.
    """

    values: np.ndarray
    level: dict[int, np.ndarray]
    sd: np.ndarray
    half: np.ndarray
    generator: np.random.Generator

    @classmethod
    def of(
        cls, multiplicity: sparse.csr_matrix, control: np.ndarray, group: np.ndarray
    ) -> Controls:
        """Draw at most MOST_CONTROLS of the controls.

        control: their rows.
        group [C]: of every cell.
        """
        generator = np.random.default_rng(0)
        some = np.sort(generator.permutation(control)[:MOST_CONTROLS])
        values, level = multiplicity[some].toarray(), {}
        for name in np.unique(group[some]).tolist():
            level[name] = values[group[some] == name].mean(0)
            values[group[some] == name] -= level[name]
        return cls(
            values,
            level,
            values.std(0) + 1e-6,
            generator.permutation(len(some)) % 2 == 0,
            generator,
        )

    def worked(self, values: np.ndarray, group: np.ndarray, guide: np.ndarray) -> np.ndarray | None:
        """Return the probability that the guide of each of a gene's cells worked, [n]; None where
        no effect stands out.

        values [n, N]: multiplicities.
        group, guide [n]: of these cells.
        """
        if min(len(values), len(self.values)) < FEWEST:
            return None
        usual = np.mean(list(self.level.values()), 0)  # of a group without controls
        for name in np.unique(group).tolist():
            values[group == name] -= self.level.get(name, usual)
        own_half = self.generator.permutation(len(values)) % 2 == 0
        score, control = np.zeros(len(values)), np.zeros(len(self.values))
        for first, other in (
            (True, False),
            (False, True),
        ):  # one half gives the direction, the other is judged
            given, controls = values[own_half == first], self.values[self.half == first]
            z = (given.mean(0) - controls.mean(0)) / (
                self.sd * math.sqrt(1 / len(given) + 1 / len(controls))
            )
            direction = (
                np.sign(z)
                * np.maximum(np.abs(z) - math.sqrt(2 * math.log(len(z) + 1)), 0)
                / self.sd
            )
            if not direction.any():
                return None
            along = self.values[self.half == other] @ direction
            centre, spread = along.mean(), max(along.std(), 1e-9)
            score[own_half == other] = (values[own_half == other] @ direction - centre) / spread
            control[self.half == other] = (along - centre) / spread
        return _mixture(score, control, guide)


def _mixture(score: np.ndarray, control: np.ndarray, guide: np.ndarray) -> np.ndarray | None:
    """Return the probability [n] that each cell belongs to the component in which guides worked.

    The first component is the density of the controls, the second a normal density that is fitted.
    None where no guide has the second one in at least half of its cells: it is then the tail of
    the first, and no effect.

    score [n]: of each cell along the direction of the effect, with mean 0 and sd 1 in controls.
    control [c]: scores of the controls.
    guide [n]: number of each cell's guide, which has its own share of the second component.
    """
    from scipy.stats import gaussian_kde

    unlike = np.log(gaussian_kde(control)(score) + 1e-9)  # 1e-9: beyond all controls
    _, guide = np.unique(guide, return_inverse=True)
    size = np.bincount(guide)
    share = np.full(len(size), 0.8)
    mean, sd = max(float(np.quantile(score, 0.7)), 1e-3), max(float(score.std()), 0.5)
    for _ in range(ROUNDS):
        odds = np.log(share / (1 - share))[guide] - np.log(sd) - ((score - mean) / sd) ** 2 / 2
        odds -= unlike + math.log(2 * math.pi) / 2
        worked = 1 / (1 + np.exp(-np.clip(odds, -50, 50)))
        # One cell more of each kind, so that no share is certain.
        share = (np.bincount(guide, worked) + 1) / (size + 2)
        total = worked.sum()
        mean = float(worked @ score / total)
        sd = max(float(np.sqrt(worked @ np.square(score - mean) / total)), 0.5)
    return worked if mean > 0 and share.max() >= FAILED else None


def summary(table: pd.DataFrame) -> list[str]:
    """Return sentences about what the guides did."""
    known = table[table["share"].notna()]
    failed = known[known["share"] < FAILED]
    each = ", ".join(f"{row.guide} {row.share:.0%}" for row in failed.head(12).itertuples())
    lines = [
        f"Guides: {len(known)} of {len(table)} are of genes whose loss shows; they worked in "
        f"{np.average(known['share'], weights=known['cells']):.0%} of their cells."
        if len(known)
        else f"Guides: no effect stands out for any of the {len(table)}, so that all count as "
        "working."
    ]
    if len(failed):
        lines.append(f"{len(failed)} guides worked in less than half of their cells: {each}.")
    return lines
