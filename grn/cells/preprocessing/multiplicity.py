"""From counts to multiplicities: a cell's depth, the transforms, and the noise of counting.

Every transform keeps 0 at 0, so matrices stay sparse.

A cell's total leaves out the regulators, as long as the other genes hold at least half of the
counts: with them, a count more for a regulator means a smaller share for the others, so that every
regulator would seem to repress.

A model that is not given the depth infers it from the regulators, and every regulator then seems to
activate every target. So it is given the depth as the multiplicity of the basal gene: 1 at the mean
log total of the training cells, 0.5 more or less for each standard deviation of it. For values that
are not counts, the number of detected genes measures depth (the *cellular detection rate* of Finak
et al. 2015, MAST), provided that it varies between cells by more than independent zeros of the
genes explain.

Letters: C cells, N genes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from grn.runtime.errors import DataError

STEP = 0.5  # change of the basal multiplicity for one sd of the log total
# smallest basal multiplicity: with less, a single gene would dominate a nearly empty bag
LEAST = 0.5
# genes that are needed to estimate depth from zeros: with fewer, zeros reflect those genes'
# regulation
FEWEST = 50
CELLS = 4096  # whose totals are computed at a time
# of the target total: cells with a smaller total are scaled as if they had this one
LEAST_TOTAL = 0.05

DepthScale = tuple[float, float]  # mean and sd of the log totals of the training cells


def measures_depth(counts: sparse.csr_matrix, regulators: np.ndarray | None) -> np.ndarray:
    """Return which genes the depth of a cell is measured over, bool [N].

    counts: of the training cells, CSR [C, N].
    regulators [R]: positions; None: every gene may regulate.
    """
    others = np.ones(counts.shape[1], dtype=bool)
    if regulators is not None:
        others[regulators] = False
    total = np.asarray(counts.sum(axis=0, dtype=np.float64)).ravel()
    return others if 2 * total[others].sum() >= total.sum() else np.ones_like(others)


def totals(counts: sparse.csr_matrix, measures: np.ndarray) -> np.ndarray:
    """Return the total of each cell over the genes that measure depth, float64 [C].

    counts: CSR [C, N].
    measures [N]: bool, these genes.
    """
    return weighted_sums(counts, measures.astype(np.float64))


def weighted_sums(values: sparse.csr_matrix, weight: np.ndarray) -> np.ndarray:
    """Return the sum of each cell's values, each times the weight of its gene, float64 [C].

    values: CSR [C, N].
    weight [N]: float64.
    """
    # Some at a time: SciPy makes all numbers of a product float64.
    parts = [values[first : first + CELLS] @ weight for first in range(0, values.shape[0], CELLS)]
    return np.concatenate([np.empty(0), *parts])


def depth_share(counts: sparse.csr_matrix, measures: np.ndarray) -> np.ndarray:
    """Return the share of all counts in each gene, among the genes that measure depth, float64 [N];
    0 for other genes.

    counts: CSR [C, N].
    measures [N]: bool, the genes that measure depth.
    """
    held = np.asarray(counts.sum(axis=0, dtype=np.float64)).ravel() * measures
    return held / max(held.sum(), 1)


def detected(values: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return 1 for each gene that was detected in a cell, CSR [C, N].

    values: CSR [C, N] without stored zeros.
    """
    return sparse.csr_matrix(
        (np.ones_like(values.data), values.indices, values.indptr), shape=values.shape
    )


def zeros_reflect_depth(found: sparse.csr_matrix, measures: np.ndarray) -> bool:
    """Return whether cells differ in the number of detected genes mainly by their depth: whether
    its variance is more than twice the variance that independent zeros would give.

    found: of the training cells, CSR [C, N], see `detected`.
    measures [N]: bool, the genes that measure depth.
    """
    rate = np.asarray(found.mean(axis=0, dtype=np.float64)).ravel()[measures]
    return len(rate) >= FEWEST and bool(
        totals(found, measures).var() > 2 * (rate * (1 - rate)).sum()
    )


def depth_scale(total: np.ndarray) -> DepthScale | None:
    """Return the mean and the sd of the log totals; None where all totals are equal.

    total [C]: of the training cells.
    """
    logs = np.log1p(total)
    return (float(logs.mean()), float(logs.std())) if logs.std() > 1e-6 else None


def basal_multiplicity(total: np.ndarray, scale: DepthScale | None) -> np.ndarray:
    """Return the multiplicity of the basal gene in each cell, float32 [C].

    total [C]: of each cell, see `totals`.
    scale: see depth_scale; None: the multiplicity is 1 in all cells.
    """
    if scale is None:
        return np.ones(len(total), np.float32)
    mean, sd = scale
    return np.maximum(1 + STEP * (np.log1p(total) - mean) / sd, LEAST).astype(np.float32)


def median_total(totals: np.ndarray) -> float:
    """Return the median of the totals that are above 0: the total to which `log1p_normalised`
    scales cells.

    totals [C]: of the training cells.
    Raises DataError where no total is above 0.
    """
    if not (totals > 0).any():
        raise DataError(
            "No training cell has a count in the chosen genes; choose other genes (data.genes)."
        )
    return float(np.median(totals[totals > 0]))


def to_multiplicity(
    counts: sparse.csr_matrix, transform: str, totals: np.ndarray, target_total: float | None = None
) -> sparse.csr_matrix:
    """Return the multiplicities of counts, CSR float32 [C, N].

    counts: CSR [C, N].
    transform: counts: the counts themselves; log1p: log(1 + count); log1p_normalised: log(1 + count
        * target_total / total of the cell).
    totals [C]: of each cell.
    target_total: see median_total; None with the other transforms.
    """
    # Shares the indices with `counts`, but not the values.
    values = sparse.csr_matrix(
        (counts.data.astype(np.float32), counts.indices, counts.indptr), shape=counts.shape
    )
    if (unit := counting_of(transform, totals, target_total).unit) is not None:
        values.data *= np.repeat(unit.astype(np.float32), np.diff(values.indptr))
        np.log1p(values.data, out=values.data)
    return values


def counting_of(transform: str, totals: np.ndarray, target_total: float | None = None) -> Counting:
    """Return how multiplicities follow from counts. Arguments: see to_multiplicity."""
    if transform != "log1p_normalised":
        return Counting(None if transform == "counts" else np.ones(len(totals)))
    assert target_total is not None, "log1p_normalised needs the target_total of the training cells"
    # Dividing by a total near 0 would give the few genes of an almost empty cell huge
    # multiplicities.
    return Counting(target_total / np.maximum(totals, LEAST_TOTAL * target_total))


@dataclass(frozen=True)
class Counting:
    """How the multiplicities of cells follow from their counts.

    unit [C]: float64, the part of exp(multiplicity) - 1 that one count of the cell makes; None:
        multiplicities are counts.
    """

    unit: np.ndarray | None

    def variance(self, multiplicity: sparse.csr_matrix) -> sparse.csr_matrix:
        """Estimate the variance by counting of each multiplicity, CSR float32 [C, R]. A single one
        says little; use their mean over cells.

        For a count c of a Poisson distribution and any f, the mean of c (f(c) - f(c - 1))^2 is at
        least the variance of f(c), and equal to it where f is linear (the Poincare inequality of
        the Poisson distribution); for log1p of counts around 1 it is larger by a twentieth.

        multiplicity: CSR [C, R].
        """
        if self.unit is None:
            return multiplicity
        unit = np.repeat(self.unit, np.diff(multiplicity.indptr))
        above = np.expm1(multiplicity.data.astype(np.float64))  # count times unit
        step = multiplicity.data - np.log1p(np.maximum(above - unit, 0))
        noise = (above / unit * np.square(step)).astype(np.float32)
        return sparse.csr_matrix(
            (noise, multiplicity.indices, multiplicity.indptr), shape=multiplicity.shape
        )
