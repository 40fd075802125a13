"""What interventions caused: each gene's change in intervened cells against controls of the same
stratum.

A stratum is a donor or replicate and a state of cells (its type), so that neither is taken for an
effect. The effect is the mean difference in sds of the gene in controls, with the sign of more of
the regulator: what falls after a knock-out is raised by the gene. It is a total effect: whether
other regulators pass it on is not known from it.

Letters: C cells, N genes, T genes that were intervened on, L strata.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from scipy.special import stdtr

from grn.cells.cells import Cells
from grn.cells.interventions import FEWEST, Interventions
from grn.evidence.q_values import benjamini_hochberg, null_share
from grn.evidence.states import States

NORMAL = 1.959964  # 95 % of a normal distribution lie within so many sds


@dataclass(frozen=True)
class Caused:
    """The effects of interventions; NaN for a gene's own row, and where there are too few cells.

    effect [N, T]: in sds of the gene.
    error [N, T]: its standard error.
    q [N, T]: its q-value.
    sd [N]: of the genes' multiplicities in control cells, within strata.
    """

    effect: np.ndarray
    error: np.ndarray
    q: np.ndarray
    sd: np.ndarray

    @property
    def certainty(self) -> np.ndarray:
        """The share of an estimated effect that is to be believed, [N, T], 0 to 1: by its q-value,
        and by its error beside the usual size of effects, as what few cells or weak guides say is
        mostly noise.
        """
        usual = max(float(np.nanmean(np.square(self.effect) - np.square(self.error))), 0.0)
        shrunk = usual / np.maximum(usual + np.square(self.error), 1e-12)
        return np.nan_to_num(shrunk * (1 - self.q))

    @property
    def low(self) -> np.ndarray:
        """Of the 95 % interval."""
        return self.effect - NORMAL * self.error

    @property
    def high(self) -> np.ndarray:
        return self.effect + NORMAL * self.error


def caused_effects(
    cells: Cells, states: States | None = None, rows: np.ndarray | None = None
) -> Caused:
    """Of every intervention of the cells, alone in a cell. rows: of the cells that are read; None:
    all.
    """
    done = cells.interventions
    assert done is not None, "the caller has asked"
    rows = np.arange(len(cells)) if rows is None else rows
    stratum = np.zeros(len(cells), np.int64) if states is None else states.membership.argmax(1)
    if cells.groups is not None:
        stratum = np.unique(
            stratum * (cells.groups.max() + 2) + cells.groups + 1, return_inverse=True
        )[1]
    return _effects(cells.multiplicity[rows], done.some(rows), stratum[rows])


def _effects(multiplicity: sparse.csr_matrix, done: Interventions, stratum: np.ndarray) -> Caused:
    genes, count = multiplicity.shape[1], len(done.names)
    total, weight, freedom = np.zeros((count, genes)), np.zeros(count), np.zeros(count)
    variance, controls, control_variance = np.zeros((count, genes)), 0.0, np.zeros(genes)
    given = done.given.multiply((np.diff(done.given.indptr) == 1)[:, None]).tocsr()
    squares = multiplicity.multiply(multiplicity).tocsr()
    for one in np.unique(stratum):
        here = stratum == one
        control = here & done.control
        if control.sum() < FEWEST:
            continue
        size = float(control.sum())
        mean = np.asarray(multiplicity[control].mean(0)).ravel()
        spread = np.maximum(np.asarray(squares[control].mean(0)).ravel() - mean**2, 0)
        controls, control_variance = controls + size, control_variance + size * spread
        share = given[here].T.tocsr()  # [T, cells of the stratum]
        sums, most = (
            np.asarray(share.sum(1)).ravel(),
            np.asarray(share.multiply(share).sum(1)).ravel(),
        )
        effective = sums**2 / np.maximum(most, 1e-12)
        enough = (effective >= FEWEST)[:, None]
        of_gene = (share @ multiplicity[here]).toarray() / np.maximum(sums, 1e-12)[:, None]
        own = np.maximum(
            (share @ squares[here]).toarray() / np.maximum(sums, 1e-12)[:, None] - of_gene**2, 0
        )
        counts = np.where(enough[:, 0], 1 / (1 / np.maximum(effective, 1e-12) + 1 / size), 0)
        # The larger of two variances: of a gene that the intervened cells happen to lack, their own
        # would be 0.
        errors = np.maximum(own, spread) / np.maximum(effective, 1e-12)[:, None] + spread / size
        total += counts[:, None] * (of_gene - mean)
        variance += counts[:, None] ** 2 * errors
        weight += counts
        freedom += enough[:, 0] * (effective + size - 2)
    known = (weight > 0)[:, None] & (control_variance > 0)
    sd = np.sqrt(np.maximum(control_variance / max(controls, 1), 1e-30))
    with np.errstate(invalid="ignore", divide="ignore"):
        effect = np.where(known, done.sign * total / weight[:, None] / sd, np.nan).T
        error = np.where(known, np.sqrt(variance) / weight[:, None] / sd, np.nan).T
    effect[~(error > 0)], error[~(error > 0)] = (
        np.nan,
        np.nan,
    )  # two samples that agree by chance say nothing
    measured = np.flatnonzero(done.place >= 0)
    for table in (effect, error):
        table[done.place[measured], measured] = np.nan
        table[done.key] = np.nan
    # Student's t: bulk samples are few.
    p = 2 * stdtr(np.maximum(freedom, 1), -np.abs(effect) / error)
    q, finite = np.full(p.shape, np.nan), np.isfinite(p)
    found = torch.as_tensor(p[finite])
    q[finite] = benjamini_hochberg(found, null_share(found)).numpy()
    return Caused(effect.astype(np.float32), error.astype(np.float32), q, sd)
