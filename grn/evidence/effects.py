"""How large effects are: not shrunk by a penalty, with standard errors, as fold changes.

A weight is made for ranking: its penalty shrinks it, in blood to next to nothing. One step of
debiasing takes that back. Of a cell that a member has not learned from, e_j is what the other
regulators leave of regulator j, and r_i what the member's signed block leaves of gene i:

    d_ij     = sum r_i e_j / sum e_j^2
    slope_ij = (slope of the block along e_j + d_ij) / known_j
    se_ij^2  = sum (r_i - d_ij e_j)^2 e_j^2 / (sum e_j^2)^2 / known_j^2

known_j: the share of e_j that is not noise of counting, which hides as much of a slope. From slopes
of multiplicities follow fold changes: log2 of that of the gene for a doubling of the regulator. A
gene's mean count mu has the expected log1p h(mu) of a Poisson number, and h(mu) changes by mu
h'(mu) where log mu changes by 1.

These are sizes of associations, for edges that knock-offs call certain; as a test of their own they
are not calibrated. Source of the step: C.-H. Zhang and S. Zhang 2014; of its errors: White 1980.

Letters: P members, C cells, N genes, R regulators, S states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from grn.cells.cells import Cells
from grn.cells.interventions import cut_rows
from grn.evidence.states import States
from grn.model.derivatives import in_parts
from grn.model.one_member import one_member
from grn.model.regulation import Model

OF_SLOPES = 64  # of these, at which the slopes of the blocks are read
TOGETHER = 512  # cells that are predicted at the same time
CELLS, WORK, WORK_ON_GPU = (
    8192,
    2e11,
    1e13,
)  # of a state that are read, and multiplications that all may take
COUNTS = 200  # whose Poisson probabilities are summed; larger means have h(mu) = log1p(mu)
LARGE = 100.0
UNKNOWN = (
    0.1  # least share that is not counting: what is left of rarer regulators says nothing of sizes
)
LEAST = 1e-3  # mean count below which no fold change is told


@dataclass(frozen=True)
class Effects:
    """The effects of regulators on genes, over all cells and in states.

    effect, error [N, R]: log2 fold changes for a doubling of the regulator (of values that are no
        counts: change in their own unit for a unit of the regulator) and their standard errors; NaN
            where there is none.
    of_states: of each state alone.
    """

    effect: np.ndarray
    error: np.ndarray
    of_states: tuple[Effects, ...] = ()


@dataclass
class Sums:
    """Sums over cells: residuals times what is left of regulators, [N, R], and powers of both.

    slope [N, R]: those of the blocks, times `size`.
    size, fourth [R]: sums of squares and of fourth powers of what is left.
    noise [R]: of variances by counting.
    """

    product: Tensor
    squares: Tensor
    third: Tensor
    slope: Tensor
    size: Tensor
    fourth: Tensor
    noise: Tensor

    @classmethod
    def none(cls, genes: int, regulators: int, like: Tensor) -> Sums:
        tables = (like.new_zeros(genes, regulators) for _ in range(4))
        return cls(*tables, *(like.new_zeros(regulators) for _ in range(3)))

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            *(one + two for one, two in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    def slopes(self) -> tuple[Tensor, Tensor]:
        """Slopes and their standard errors, [N, R]."""
        size = self.size.clamp(min=1e-9)
        step = self.product / size
        square = (self.squares - 2 * step * self.third + step.square() * self.fourth).clamp(min=0)
        known = (1 - self.noise / size).clamp(min=UNKNOWN)
        return (self.slope / size + step) / known, square.sqrt() / size / known


@torch.no_grad()
def effects_of(model: Model, cells: Cells, states: States, fold: np.ndarray) -> Effects:
    """Over all cells and in each state. fold [C]: of each cell, see Model.held_out; -1: no member
    has learned from it.

    Each cell is read by one member that has not learned from it.
    """
    model = model.eval()
    regulators, held_out = len(model.regulators), model.held_out.tolist()
    reader = np.where(np.isin(fold, held_out), fold, held_out[0])
    members = [one_member(model, member) for member in range(len(held_out))]
    total, found = Sums.none(model.genes, regulators, model.mean), []
    for state, rows in enumerate(rows_of_states(model, states)):
        own = Sums.none(model.genes, regulators, model.mean)
        for member, number in zip(members, held_out, strict=True):
            for some in np.array_split(
                rows[reader[rows] == number], max(1, -(-len(rows) // TOGETHER))
            ):
                if len(some):
                    own = own + sums_of(member, cells, states, some, state)
        total = total + own
        found.append(fold_changes(own.slopes(), model, scale_of(cells, rows)))
    overall = fold_changes(total.slopes(), model, scale_of(cells, np.arange(len(cells))))
    return Effects(*overall, tuple(Effects(*each) for each in found))


def rows_of_states(model: Model, states: States) -> list[np.ndarray]:
    """Of each state the cells that are read, those that belong to it most: all, or of many cells a
    sample, which is the same whenever it is drawn on the same kind of device.
    """
    work = WORK_ON_GPU if model.mean.device.type == "cuda" else WORK
    most = int(
        np.clip(
            work / (6 * model.genes * len(model.regulators)) / len(states), TOGETHER // 4, CELLS
        )
    )
    owner, generator = states.membership.argmax(1), np.random.default_rng(0)
    return [
        np.sort(generator.permutation(np.flatnonzero(owner == state))[:most])
        for state in range(len(states))
    ]


def sums_of(model: Model, cells: Cells, states: States, rows: np.ndarray, state: int) -> Sums:
    """Return the sums over some cells of a state. model: of one member."""
    device = model.mean.device
    true = model.standardised(torch.as_tensor(cells.multiplicity[rows].toarray(), device=device))
    m = model.inputs(
        torch.as_tensor(
            cells.multiplicity[rows][:, model.regulators.cpu().numpy()].toarray(), device=device
        ),
        torch.as_tensor(cells.basal[rows], device=device),
    )
    share = torch.as_tensor(states.membership[rows], device=device)
    among = model.among(m, share)
    cut = None  # genes that an intervention set
    if cells.interventions is not None:
        cut = torch.as_tensor(cut_rows(cells.interventions, rows, model.genes), device=device)
    of_keys = None if cut is None else cut[:, model.regulators]
    corrected = model.corrected(m, among if model.layered else None, share, of_keys)
    left = true.clone()
    left[:, model.regulators] -= among[0]
    for pick in torch.arange(len(model.targets), device=device).split(model.genes_at_once):
        left[:, model.targets[pick]] -= model.blocks[1](corrected, share, pick)[0]
    if cut is not None:  # nothing is left of what regulates them
        left = left.masked_fill(cut, 0.0)
    rest = left[:, model.regulators]
    size = rest.square().sum(0)
    few = slice(None, None, -(-len(m) // OF_SLOPES))  # the mean of derivatives settles soon
    even = m.new_full((len(m[few]),), 1 / len(m[few]))
    slope = m.new_zeros(model.genes, len(model.counting))
    slope[model.regulators] = in_parts(model, model.blocks[0], m[few], state, even)[0]
    # A unit of e_j moves what block 2 reads by the part of it that is not corrected.
    own = ((1 - model.counting) if model.layered else 1) / model.unit[:-1]
    slope[model.targets] = in_parts(model, model.blocks[1], corrected[:, few], state, even)[0] * own
    noise = m.new_zeros(len(model.counting))
    if cells.counting is not None:
        unit = cells.counting.unit
        counted = type(cells.counting)(None if unit is None else unit[rows])
        variance = counted.variance(
            cells.multiplicity[rows][:, model.regulators.cpu().numpy()]
        ).sum(0)
        noise = (
            torch.as_tensor(np.asarray(variance).ravel()).to(m)
            / model.sd[model.regulators].square()
        )
    return Sums(
        product=left.T @ rest,
        squares=left.square().T @ rest.square(),
        third=left.T @ rest**3,
        slope=slope * size,
        size=size,
        fourth=rest.square().square().sum(0),
        noise=noise,
    )


def fold_changes(
    slopes: tuple[Tensor, Tensor], model: Model, scale: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Slopes and errors in sds of the genes as log2 fold changes. scale [N]: mu h'(mu); None:
    values are no counts.
    """
    regulators = model.regulators.cpu().numpy()
    sd = model.sd.cpu().double().numpy()
    unit = sd if scale is None else sd / scale  # of the gene's log mean, or of its value, for an sd
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = unit[:, None] / unit[regulators]
        found = [each.double().cpu().numpy() * factor for each in slopes]
    for table in found:
        table[~np.isfinite(factor)] = np.nan
        table[regulators, np.arange(len(regulators))] = np.nan
    return found[0].astype(np.float32), found[1].astype(np.float32)


def scale_of(cells: Cells, rows: np.ndarray) -> np.ndarray | None:
    """mu h'(mu) of each gene in the cells `rows`, [N], NaN for next to no counts; None where values
    are no counts.
    """
    if cells.counting is None:
        return None
    logarithmic = cells.counting.unit is not None
    counts = sparse.csr_matrix(cells.multiplicity[rows])
    if logarithmic:
        np.expm1(counts.data, out=counts.data)
    mean = np.asarray(counts.mean(0)).ravel()
    found = mean * expected_step(mean) if logarithmic else mean
    return np.where(mean > LEAST, found, np.nan)


def expected_step(mean: np.ndarray) -> np.ndarray:
    """h'(mu) = E[log(K + 2) - log(K + 1)] of Poisson numbers K with the means mu.

    >>> expected_step(np.array([1e-9, 1e6])).round(6).tolist()
    [0.693147, 1e-06]
    """
    from scipy.stats import poisson

    count = np.arange(COUNTS)
    small = np.minimum(mean, LARGE)
    step = poisson.pmf(count, small[:, None]) @ (np.log(count + 2) - np.log(count + 1))
    return np.where(mean < LARGE, step, 1 / (1 + mean))
