"""The shadow of a signed block, and the penalties that predict held-out cells best.

Ridge regression with deviations by state is a linear shadow of a signed block. Its exact solution
(exact.py) tells which penalty predicts cells that were held out best, and which form of it
(penalty.py); the three best are taken by the members in turn. The same solution, of all cells that
a member learns from, is where its blocks start (start.py).

Letters: C cells, R regulators, S states, n targets, K = R + 1 keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from grn.evidence.cell_table import CellTable
from grn.evidence.exact import Moments, Solution, operations, solve
from grn.model.penalty import Penalty

FORMS = (
    (0.0, 1.0),
    (0.1, 1.0),
    (0.1, 2.0),
    (0.05, 2.0),
    (0.05, 4.0),
    (0.03, 4.0),
    (0.03, 8.0),
)  # t, times ridge's
RHOS = (0.0, 0.25, 1.0, 2.0)  # 0: states share their slopes
RIDGE = tuple(10 ** np.arange(0.5, 4.6, 0.25))
STRENGTHS = (0.5, 1.0, 2.0, 4.0)  # times ridge's penalty, with deviations
KEPT = 3  # of the best penalties, which the members take in turn
# The logarithm must predict held-out cells better than ridge regression by so many standard errors
# over these cells. From few samples it chooses one of several regulators that vary together, by
# chance, and ranks the others last.
CHANCE = 3.0
OPERATIONS, OPERATIONS_ON_GPU = 4e10, 3e12  # that choosing a form may take
# rho, t and times ridge's: the one form beside ridge regression where comparing all takes too long
USUAL = (1.0, 0.05, 2.0)
CELLS, NUMBERS = 20_000, 2**25  # cells, and multiplicities of targets, that are enough to choose
PRODUCTS = 60  # rounds of conjugate gradients that a form usually takes, all reweighting together
FEWEST = 16  # targets that choose
# Times the cells, the largest penalty. Where hardly any gene follows the regulators, held-out
# errors are flat, and a hundred times as much is as good; but slopes would then be smaller than the
# optimiser's noise, with signs by chance.
MOST = 8.0
COUNTED = (
    0.8  # largest share of counting: else a rare regulator would be nothing but what the others say
)


def shares_of_counting(table: CellTable) -> tuple[Tensor, Tensor]:
    """r [R]: the share of counting in what the other regulators leave of each; and the sds of m',
    [R + 1].
    """
    count = len(table.regulators)
    none = torch.zeros(count, device=table.device), torch.ones(count + 1, device=table.device)
    if table.counting is None or count < 2:
        return none
    x = (table.inputs - table.membership @ table.means()[0])[:, :-1].double()
    hat = by_others(x, x)
    share = (table.counting / (x - hat).var(0).clamp(min=1e-6)).clamp(0, COUNTED)
    unit = (x + share * (hat - x)).std(0).clamp(min=1e-3)
    return share.float(), F.pad(unit.float(), (0, 1), value=1.0)


def by_others(x: Tensor, of: Tensor, penalty: float = 10.0) -> Tensor:
    """Each regulator of the cells `of` [C, R] as ridge regression on the others, fitted to x
    [C, R], predicts it.
    """
    inverse = torch.linalg.inv(
        x.T @ x + penalty * torch.eye(x.shape[1], device=x.device, dtype=x.dtype)
    )
    return of @ (-inverse / inverse.diagonal()).fill_diagonal_(0)


class Shadow:
    """Keys and targets of the cells without the levels of their states, as a member sees them that
    does not learn from the cells of one fold.

    x [C, K]: regulators and depth as they were counted.
    read [C, K]: as block 2 reads them; after `correct`, m' in its units.
    y [C, n]: targets.
    own [n]: the number of each target among the regulators, none of which is predicted from itself;
        -1 for the others.
    learned, judged: the rows of the cells.

    genes: the targets, positions; None: genes that do not regulate, or all where every gene does,
        in a random order.
    """

    def __init__(
        self, table: CellTable, fold: np.ndarray, held_out: int, genes: np.ndarray | None = None
    ):
        self.share, device = table.membership, table.device
        rows = np.flatnonzero(fold != held_out)
        self.learned = torch.as_tensor(rows, device=device)
        self.judged = torch.as_tensor(np.flatnonzero(fold == held_out), device=device)
        centre, self.level = (table.mixed @ each for each in table.means(rows))
        self.table = table
        self.scores = self.scores_of(rows)
        self.x = self.without_programmes((table.inputs - self.share @ centre).double())
        if genes is None:
            every = np.arange(table.multiplicity.shape[1])
            others = np.setdiff1d(every, table.regulators)
            genes = np.random.default_rng(0).permutation(others if len(others) else every)
            genes = genes[: max(64, NUMBERS // len(table))]
        self.y = self.targets(genes)
        number = np.full(table.multiplicity.shape[1], -1)
        number[table.regulators] = np.arange(len(table.regulators))
        self.own = torch.as_tensor(number[genes], device=device)
        self.read = self.x
        self.of_keys: Tensor | None = None

    def scores_of(self, rows: np.ndarray) -> Tensor:
        """The scores of programmes around the means of states, [C, G], as the cells `rows` have
        them; G is 0 without programmes."""
        scores = self.table.scores.double()
        share = self.share.double()
        size = share[rows].sum(0)[:, None].clamp(min=1e-9)
        return scores - share @ (share[rows].mT @ scores[rows] / size)

    def without_programmes(self, values: Tensor) -> Tensor:
        """values [C, V] without what the scores of programmes predict of them in the cells that are
        learned from."""
        if not self.scores.shape[1]:
            return values
        scores = self.scores.to(values)
        known = torch.linalg.pinv(scores[self.learned]) @ values[self.learned]
        return torch.addmm(values, scores, known, alpha=-1)

    def correct(self, others: Solution, counting: Tensor, unit: Tensor) -> None:
        """Let block 2 read regulators that are moved to what the others say of them.

        share [R]: of counting.
        unit [K]: of the keys.
        others: see `among`.
        """
        change = self.uncut(self.x @ others.shared - self.x[:, :-1])
        self.read = (self.x + F.pad(counting * change, (0, 1))) / unit

    def uncut(self, change: Tensor) -> Tensor:
        """change [C, R], 0 of regulators that an intervention has set: the others say nothing of
        them.
        """
        cut = self.table.is_cut(self.table.regulators)
        return change if cut is None else change.masked_fill(cut, 0.0)

    def targets(self, genes: np.ndarray) -> Tensor:
        """[C, n]: standardised, without the levels of their states; 0 where an intervention set
        them, so that nothing is learned of what regulates them.
        """
        level = self.level[:, torch.as_tensor(genes, device=self.level.device)]
        found = self.without_programmes(self.table.targets(genes).sub_(self.share @ level))
        cut = self.table.is_cut(genes)
        return found if cut is None else found.masked_fill_(cut, 0.0)

    def among(self, penalty: Penalty) -> Solution:
        """Block 1: what the regulators say of each other, and none of itself."""
        x = self.x
        own = torch.arange(x.shape[1] - 1, device=x.device)
        moments = Moments.of(
            x, self.uncut(x[:, :-1]), torch.ones_like(self.share[:, :1]), self.learned
        )
        return solve(moments, penalty, self_key=own)

    def moments(self, genes: np.ndarray) -> Moments:
        """Of the cells that are learned from, for other targets; those of the keys are computed
        once.
        """
        found = Moments.of(self.read, self.targets(genes), self.share, self.learned, self.of_keys)
        self.of_keys = found.gram
        return found

    @cached_property
    def of_learned(self) -> Moments:
        return Moments.of(self.read, self.y, self.share, self.learned)

    @cached_property
    def of_judged(self) -> Moments:
        return Moments.of(self.read, self.y, self.share, self.judged)

    def errors(
        self, penalties: Sequence[Penalty], targets: int, weight: Tensor | None = None
    ) -> Tensor:
        """Held-out squared error of the first targets for each penalty, [penalties, targets].

        weight [targets, R]: what each pair's penalty is multiplied by; None: 1.
        """
        learned, judged = self.of_learned.some(targets), self.of_judged.some(targets)
        states, own = len(learned.cross), self.own[:targets]
        pairs = None if weight is None else F.pad(weight.to(learned.gram), (0, 1), value=1.0).T
        found = []
        for penalty in penalties:
            solution = solve(learned, penalty, self_key=own, weight=pairs)
            found.append(judged.errors(solution.of_states(states)))
        return torch.stack(found)

    def errors_of_cells(self, penalty: Penalty, targets: int) -> Tensor:
        """Return the mean squared error of the first targets in each held-out cell, [judged]."""
        learned, own = self.of_learned.some(targets), self.own[:targets]
        slopes = solve(learned, penalty, self_key=own).of_states(len(learned.cross))
        x, share, left = (each[self.judged] for each in (self.read, self.share, self.y))
        left = left[:, :targets].to(x)
        for state, of_state in enumerate(slopes):
            left = left - share[:, state, None] * (x @ of_state)
        return left.square().mean(1)


def ridge_penalties(cells: int) -> tuple[float, ...]:
    """RIDGE and, of many cells, larger ones up to the largest."""
    return RIDGE + tuple(10 ** np.arange(4.75, np.log10(MOST * cells) + 0.25, 0.25))


def enough_cells(count: int) -> np.ndarray:
    """Which of so many cells choose penalties, and whether levels count: rows, sorted."""
    return np.sort(np.random.default_rng(0).permutation(count)[:CELLS])


def choose_penalties_of_blocks(
    table: CellTable, fold: np.ndarray, layered: bool, learned: int | None = None
) -> list[Penalty]:
    """Return the best penalties of block 2, the best first, and last that of block 1.

    fold [C]: folds 0 and 1 are held out.
    learned: how many cells are trained on; None: those of the table.
    """
    most = MOST * (learned or len(table))
    return [
        replace(each, lam=min(float(each.lam), most))
        for each in best_penalties(table, fold, layered)
    ]


def best_penalties(table: CellTable, fold: np.ndarray, layered: bool) -> list[Penalty]:
    """Return the best penalties of block 2, the best first, and last that of block 1, however large
    they are.
    """
    states, keys = table.states.shape[1], len(table.regulators) + 1
    tries = 2 if keys * states < 300 and (fold == 1).any() else 1
    parts = [Shadow(table, fold, number) for number in range(tries)]
    work = OPERATIONS_ON_GPU if torch.device(table.device).type == "cuda" else OPERATIONS

    def errors(penalties: Sequence[Penalty], targets: int) -> np.ndarray:
        found = sum(part.errors(penalties, targets).mean(1).nan_to_num(9.0) for part in parts)
        return found.cpu().numpy()  # type: ignore[union-attr]

    def enough(several: int, of_states: int) -> int:
        """Targets that so many penalties can be compared on."""
        each = tries * several * operations(of_states, keys, PRODUCTS)
        return min(parts[0].y.shape[1], max(FEWEST, int(work / each)))

    tried_by_ridge = ridge_penalties(len(table))
    among = Penalty(_among(parts[0], tried_by_ridge))
    if layered:  # as block 1 starts, whose solution block 2 reads
        counting, unit = shares_of_counting(table)
        for part in parts:
            part.correct(part.among(among), counting, unit)
    ridge = [Penalty(lam, 0.0) for lam in tried_by_ridge]
    of_ridge = torch.stack([part.errors(ridge, parts[0].y.shape[1]) for part in parts]).sum(0)
    lam = ridge[largest_of_the_best(of_ridge)].lam
    # Where levels count as regulation, slopes of single states would take up their levels.
    rhos = (0.0,) if states == 1 or table.levels else RHOS
    several = len(rhos) * (len(FORMS) + (len(STRENGTHS) if states > 1 else 1))
    if work / (tries * several * operations(states, keys, PRODUCTS)) < FEWEST:
        rho, t, strength = USUAL
        rho, kept = 0.0 if table.levels else rho, 1
        ordered = [Penalty(lam * strength, rho, t), Penalty(lam, rho)]
    else:
        tried: list[tuple[float, Penalty]] = []
        for rho in rhos:
            strengths = [Penalty(lam * each, rho) for each in (STRENGTHS if rho else (1.0,))]
            targets = enough(several, states if rho else 1)
            best = strengths[int(errors(strengths, targets).argmin())].lam
            forms = [Penalty(best * strength, rho, t) for t, strength in FORMS]
            tried += zip(errors(forms, targets).tolist(), forms, strict=True)
        ordered, kept = [penalty for _, penalty in sorted(tried, key=lambda one: one[0])], KEPT
    of_ridge_form = [penalty for penalty in ordered if not penalty.t]
    if not predicts_better(parts, ordered[0], of_ridge_form[0], enough(2, states), table.groups):
        ordered = of_ridge_form
    return [*ordered[:kept], among]


def predicts_better(
    parts: Sequence[Shadow],
    penalty: Penalty,
    other: Penalty,
    targets: int,
    groups: np.ndarray | None,
) -> bool:
    """Return whether held-out cells are predicted better by one penalty than by another, by more
    than chance.

    groups [C]: whose cells are no independent samples of each other; None: every cell is one.
    """
    gain, unit = [], []
    for part in parts:
        change = part.errors_of_cells(other, targets) - part.errors_of_cells(penalty, targets)
        gain.append(change.cpu().numpy())
        rows = part.judged.cpu().numpy()
        unit.append(rows if groups is None else groups[rows])
    sums = pd.Series(np.concatenate(gain)).groupby(np.concatenate(unit)).sum()
    return bool(sums.sum() > CHANCE * len(sums) ** 0.5 * sums.std())


def largest_of_the_best(errors: Tensor) -> int:
    """Return the number of the largest penalty that is within a standard error, over targets, of
    the best.

    errors [penalties, targets]: by rising penalty.
    Where they hardly differ, edges rank better by the larger. Source: Breiman et al. 1984.
    """
    errors = errors.nan_to_num(9.0)
    more = errors - errors[errors.mean(1).argmin()]
    chance = more.std(1) / more.shape[1] ** 0.5
    return int((more.mean(1) <= chance).nonzero()[-1])


def _among(part: Shadow, penalties: Sequence[float]) -> float:
    """Return the penalty of ridge regression with which the regulators predict each other best."""
    x, judged = part.x[part.learned, :-1], part.x[part.judged, :-1]
    errors = [float((judged - by_others(x, judged, lam)).square().mean()) for lam in penalties]
    return penalties[int(np.argmin(errors))]
