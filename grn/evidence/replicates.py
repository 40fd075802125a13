"""What each replicate says of interventions, and how well it is known how replicates differ.

Letters: C cells, N genes, T genes that were intervened on, D replicates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.stats import chi2

from grn.cells.interventions import FEWEST

CAUTIOUS = 0.1  # of data sets, in which differences vary less in size than they do on the whole


@dataclass(frozen=True)
class Replicate:
    """The differences of one replicate, over its states; 0 where it has too few cells.

    difference [T, N]: between intervened cells and controls.
    square [T, N]: of their standard errors, with cells as units.
    size [T]: of how many cells against infinitely many a difference would be as well known.
    freedom [T]: of the cells.
    controls: how many. control_variance [N]: of them, within states.
    """

    difference: np.ndarray
    square: np.ndarray
    size: np.ndarray
    freedom: np.ndarray
    controls: float
    control_variance: np.ndarray


@dataclass(frozen=True)
class Weighed:
    """Weighted means of the replicates' differences.

    mean [T, N].
    square [T, N]: of its error with cells as units, in variances of the genes.
    around [T, N]: the weighted squares of the differences around it, summed, in the same unit.
    steps [D, T]: means over genes of what each replicate adds to `around`, by its difference from
        the mean of those before it; they are independent of each other.
    sizes [D, T]: means over genes of the logarithms of the same.
    """

    mean: np.ndarray
    square: np.ndarray
    around: np.ndarray
    steps: np.ndarray
    sizes: np.ndarray


def of_replicate(
    multiplicity: sparse.csr_matrix,
    squares: sparse.csr_matrix,
    given: sparse.csr_matrix,
    is_control: np.ndarray,
    state: np.ndarray,
) -> Replicate:
    """Return the differences of one replicate.

    multiplicity, squares [C, N]: of its cells.
    given [C, T]: which interventions they have, each alone, and how surely.
    is_control [C]: bool. state [C]: cells are compared within it.
    """
    shape = given.shape[1], multiplicity.shape[1]
    total, square = np.zeros(shape), np.zeros(shape)
    whole, freedom = np.zeros(shape[0]), np.zeros(shape[0])
    controls, control_variance = 0.0, np.zeros(shape[1])
    for one in np.unique(state):
        here = state == one
        control = here & is_control
        if control.sum() < FEWEST:
            continue
        size = float(control.sum())
        mean = np.asarray(multiplicity[control].mean(0)).ravel()
        spread = np.maximum(np.asarray(squares[control].mean(0)).ravel() - mean**2, 0)
        controls, control_variance = controls + size, control_variance + size * spread
        share = given[here].T.tocsr()  # [T, cells of the stratum]
        sums = np.asarray(share.sum(1)).ravel()
        most = np.asarray(share.multiply(share).sum(1)).ravel()
        effective = sums**2 / np.maximum(most, 1e-12)
        enough = effective >= FEWEST
        of_gene = (share @ multiplicity[here]).toarray() / np.maximum(sums, 1e-12)[:, None]
        own = (share @ squares[here]).toarray() / np.maximum(sums, 1e-12)[:, None] - of_gene**2
        weight = np.where(enough, 1 / (1 / np.maximum(effective, 1e-12) + 1 / size), 0)
        # The larger of two variances: of a gene that the intervened cells happen to lack, their own
        # would be 0.
        errors = np.maximum(own, spread) / np.maximum(effective, 1e-12)[:, None] + spread / size
        total += weight[:, None] * (of_gene - mean)
        square += weight[:, None] ** 2 * errors
        whole += weight
        freedom += enough * (effective + size - 2)
    known = np.maximum(whole, 1e-12)[:, None]
    return Replicate(
        total / known,
        square / known**2,
        whole,
        freedom,
        controls,
        control_variance / max(controls, 1),
    )


def evened(size: np.ndarray, steps: np.ndarray, several: np.ndarray) -> np.ndarray:
    """Return weights of differences [D, T], one over their variances: that of their cells, 1 /
    size, and that between replicates, which is taken to be the same for all interventions with
    `several` [T]. By cells alone, the replicate with the most of them would decide.

    size [D, T]: the weights by cells alone. steps [D, T]: see Weighed, with these weights.
    Source: DerSimonian and Laird 1986.
    """
    size, steps = size[:, several], steps[:, several]
    whole = size.sum(0)
    excess = (steps.sum(0) - (size > 0).sum(0) + 1).sum()
    between = max(float(excess / (whole - (size**2).sum(0) / whole).sum()), 0.0)
    found = np.zeros((len(size), len(several)))
    found[:, several] = np.where(size > 0, 1 / (between + 1 / np.maximum(size, 1e-30)), 0)
    return found


def freedom_of(sizes: np.ndarray) -> float:
    """Return how many degrees of freedom the variance between replicates has over all genes and
    interventions, by how single differences vary in size: genes that go together say less than as
    many independent ones. The logarithm of a variance with n of them has the variance 2 / n.

    sizes: see Weighed. Where they are few, their variance is taken to be as large as one of ten
    such data sets would hide (CAUTIOUS).
    """
    count = len(sizes)
    if count < 2:
        return float(count)
    apart = float(sizes.var(ddof=1)) * (count - 1) / chi2.ppf(CAUTIOUS, count - 1)
    return max(2 * count / max(apart, 1e-30), count)
