"""What interventions caused: each gene's change in intervened cells against controls of the same
stratum.

A stratum is a donor or replicate and a state of cells (its type), so that neither is taken for an
effect. The effect is the mean difference in sds of the gene in controls, with the sign of more of
the regulator: what falls after a knock-out is raised by the gene. It is a total effect: whether
other regulators pass it on is not known from it.

Cells of a replicate share what happened to it, and are no replicates. Where an intervention has two
replicates with enough cells, each gives one difference, and the error is how these differ between
replicates: moderated by all genes and interventions, as replicates are few, and at least what cells
give. Other interventions have cells as their units.

Letters: C cells, N genes, T genes that were intervened on, D replicates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from scipy.special import stdtr, stdtrit

from grn.cells.cells import Cells
from grn.cells.interventions import FEWEST, Interventions
from grn.evidence.moderated import moderated
from grn.evidence.q_values import benjamini_hochberg, null_share
from grn.evidence.replicates import Replicate, Weighed, evened, freedom_of, of_replicate
from grn.evidence.states import States

NORMAL = 1.959964  # 95 % of a normal distribution lie within so many sds
FEWEST_REPLICATES = 2  # of an intervention whose units they are
SHOWN = 8  # names in a sentence


@dataclass(frozen=True)
class Caused:
    """The effects of interventions; NaN for a gene's own row, and where there are too few cells.

    effect [N, T]: in sds of the gene.
    error [N, T]: its standard error.
    q [N, T]: its q-value.
    sd [N]: of the genes' multiplicities in control cells, within strata.
    freedom [N, T]: degrees of freedom of the error.
    replicates [T]: how many replicates are the units; 0 where cells are.
    """

    effect: np.ndarray
    error: np.ndarray
    q: np.ndarray
    sd: np.ndarray
    freedom: np.ndarray | float = np.inf
    replicates: np.ndarray | None = None

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
        return self.effect - self.reach

    @property
    def high(self) -> np.ndarray:
        return self.effect + self.reach

    @property
    def reach(self) -> np.ndarray:
        """Half the width of the 95 % interval."""
        return stdtrit(self.freedom, 0.975) * self.error


def caused_effects(
    cells: Cells, states: States | None = None, rows: np.ndarray | None = None
) -> Caused:
    """Of every intervention of the cells, alone in a cell. rows: of the cells that are read; None:
    all.
    """
    done = cells.interventions
    assert done is not None, "the caller has asked"
    rows = np.arange(len(cells)) if rows is None else rows
    state = np.zeros(len(cells), np.int64) if states is None else states.membership.argmax(1)
    donor = np.zeros(len(cells), np.int64) if cells.only_copies else cells.groups
    donor = np.zeros(len(cells), np.int64) if donor is None else donor
    return _effects(cells.multiplicity[rows], done.some(rows), state[rows], donor[rows])


def units_in_words(caused: Caused, names: tuple[str, ...], *, named: bool) -> str:
    """Return a sentence about the units of effects: replicates, or cells, which are none.

    names [T]: of the interventions.
    named: whether replicates are (data.group_key).
    """
    assert caused.replicates is not None, "measured effects have units"
    known = np.isfinite(caused.effect).any(0)
    of_cells = [names[each] for each in np.flatnonzero(known & (caused.replicates == 0))]
    counts = caused.replicates[known & (caused.replicates > 0)]
    if not named:
        return (
            "Cells are the units of these effects, and cells are no replicates: name the column of "
            "donors or replicates (data.group_key) for a statement beyond these."
        )
    units = "Cells"
    if len(counts):
        several = f"{counts.min()} to {counts.max()}" if np.ptp(counts) else f"{counts[0]}"
        units = f"Replicates are the units of {len(counts)} interventions ({several} of each)"
        if not of_cells:
            return f"{units}."
        units = f"{units}; cells"
    listed = ", ".join(of_cells[:SHOWN]) + (", ..." if len(of_cells) > SHOWN else "")
    return (
        f"{units} are the units of {len(of_cells)} ({listed}), which have fewer than "
        f"{FEWEST_REPLICATES} replicates with {FEWEST} intervened cells and {FEWEST} controls: "
        "cells are no replicates, so little is known of how these effects differ between any."
    )


def _effects(
    multiplicity: sparse.csr_matrix, done: Interventions, state: np.ndarray, donor: np.ndarray
) -> Caused:
    given = done.given.multiply((np.diff(done.given.indptr) == 1)[:, None]).tocsr()
    squares = multiplicity.multiply(multiplicity).tocsr()
    shape = len(done.names), multiplicity.shape[1]
    donors = np.unique(donor)

    def replicates() -> Iterator[Replicate]:
        """Each anew, as all of them would take the memory of D x T x N numbers."""
        for one in donors:
            here = np.flatnonzero(donor == one)
            yield of_replicate(
                multiplicity[here], squares[here], given[here], done.control[here], state[here]
            )

    def weighed(weight: np.ndarray) -> Weighed:
        mean, square, around = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        whole, steps, sizes = np.zeros((shape[0], 1)), [], []
        for each, own in zip(replicates(), weight[:, :, None], strict=True):
            share = own / np.maximum(whole + own, 1e-30)
            apart = each.difference - mean
            step = np.where(known, share * whole * apart**2 / sd**2, 0)
            mean += share * apart
            around += step
            square += own**2 * each.square
            steps.append(step.sum(1) / np.maximum(known.sum(1), 1))
            told = step > 0
            logs = np.log(step, where=told, out=np.zeros(shape))
            sizes.append(logs.sum(1) / np.maximum(told.sum(1), 1))
            whole += own
        square /= np.maximum(whole, 1e-30) ** 2 * sd**2
        return Weighed(mean, square, around, np.array(steps), np.array(sizes))

    size, freedom = [], np.zeros(shape[0])
    controls, control_variance = 0.0, np.zeros(shape[1])
    for each in replicates():
        size.append(each.size)
        freedom += each.freedom
        control_variance += each.controls * each.control_variance
        controls += each.controls
    weight = np.array(size)
    # Cells without a donor (-1) are no replicate.
    number = (weight[donors >= 0] > 0).sum(0)
    number = np.where(number >= FEWEST_REPLICATES, number, 0)
    weight[np.ix_(donors < 0, number > 0)] = 0
    sd = np.sqrt(np.maximum(control_variance / max(controls, 1), 1e-30))
    known = (weight.sum(0) > 0)[:, None] & (control_variance > 0)
    measured = np.flatnonzero(done.place >= 0)
    known[measured, done.place[measured]] = False
    known[:, done.key] = False
    found = weighed(weight)
    variance, degrees = found.square, np.broadcast_to(freedom[:, None], shape)
    if (several := number > 0).any():
        even = np.where(several, evened(weight, found.steps, several), weight)
        found, told = weighed(even), known & several[:, None]
        variance, degrees = variance.copy(), degrees.copy()
        of_replicates, freely = _between(found, sd, weight, even, number, told)
        variance[told] = np.maximum(of_replicates, found.square[told])
        degrees[told] = np.minimum(freely, degrees[told])
    # Two samples that agree by chance say nothing.
    known &= variance > 0
    effect = np.where(known, done.sign * found.mean / sd, np.nan).T
    error = np.where(known, np.sqrt(variance), np.nan).T
    degrees = np.maximum(degrees, 1).T
    # Student's t: replicates and bulk samples are few.
    p = 2 * stdtr(degrees, -np.abs(effect) / error)
    q, finite = np.full(p.shape, np.nan), np.isfinite(p)
    tested = torch.as_tensor(p[finite])
    q[finite] = benjamini_hochberg(tested, null_share(tested)).numpy()
    return Caused(effect.astype(np.float32), error.astype(np.float32), q, sd, degrees, number)


def _between(
    found: Weighed,
    sd: np.ndarray,
    by_cells: np.ndarray,
    weight: np.ndarray,
    number: np.ndarray,
    told: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the squared errors of means of replicates by how these differ, in variances of the
    genes, and their degrees of freedom.

    found: with `weight` [D, T]; by_cells [D, T]: what it would be by cells alone.
    number [T]: of replicates.
    told [T, N]: bool, of which this is asked.
    """
    whole = np.maximum(weight.sum(0), 1e-30)
    # Of a gene whose cells vary more or less in this intervention than controls do, by how much.
    usual = (weight**2 / np.where(by_cells > 0, by_cells, 1)).sum(0) / whole**2
    unit = np.maximum((found.square / np.maximum(usual, 1e-30)[:, None])[told], 1e-30)
    freedom = np.broadcast_to((number - 1.0)[:, None], told.shape)[told]
    size = np.abs(found.mean / sd)[told] / np.sqrt(np.maximum(found.square[told], 1e-30))
    # The first difference has none before it.
    later = (np.cumsum(weight > 0, 0) > 1) & (weight > 0) & (number > 0)
    variance, degrees = moderated(
        found.around[told] / freedom / unit, freedom, size, freedom_of(found.sizes[later])
    )
    return variance * unit / np.broadcast_to(whole[:, None], told.shape)[told], degrees
