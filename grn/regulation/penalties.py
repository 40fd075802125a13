"""The penalties with which the signed blocks are trained, chosen by held-out prediction.

Ridge regression with deviations by state is a linear shadow of a signed block: it tells in seconds which penalty
predicts cells that were held out best, and which form of it (penalty.py). The three best are taken by the members in
turn. What is exported is read from the trained blocks and never from these regressions.

Letters: C cells, R regulators, S states, n targets, F features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from grn.model.penalty import Penalty
from grn.regulation.cell_table import CellTable
from grn.regulation.ridge import products

FORMS = ((0.0, 1.0), (0.1, 1.0), (0.1, 2.0), (0.05, 2.0), (0.05, 4.0), (0.03, 4.0), (0.03, 8.0))  # t, times ridge's
RHOS = (0.05, 0.25, 1.0, 2.0)
RIDGE = tuple(10 ** np.arange(0.5, 4.6, 0.25))
STRENGTHS = (0.5, 1.0, 2.0, 4.0)  # times ridge's penalty, with deviations
KEPT = 3  # of the best penalties, which the members take in turn
OPERATIONS, OPERATIONS_ON_GPU = 4e10, 3e12  # that choosing a form may take
FEATURES = 2048  # of more regulators and states, deviations and forms are not compared: the usual ones are taken
USUAL = (1.0, 0.05, 2.0)  # rho, t and times ridge's
CELLS, NUMBERS = 20_000, 2**25  # cells, and multiplicities of targets, that are enough to choose
TOLERANCE, ROUNDS = 1e-10, 200  # of conjugate gradients: of the squared residual, and at most
PRODUCTS = 40  # operations for each number of the table that they usually take
REWEIGHTED = 4  # rounds that a curved penalty takes
# Times the cells, the largest penalty. Where hardly any gene follows the regulators, held-out errors are flat, and a
# hundred times as much is as good; but slopes would then be smaller than the optimiser's noise, with signs by chance.
MOST = 8.0
COUNTED = 0.8  # largest share of counting: else a rare regulator would be nothing but what the others say


def shares_of_counting(table: CellTable) -> tuple[Tensor, Tensor]:
    """r [R]: the share of counting in what the other regulators leave of each; and the sds of m', [R + 1]."""
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
    """Each regulator of the cells `of` [C, R] as ridge regression on the others, fitted to x [C, R], predicts it."""
    inverse = torch.linalg.inv(x.T @ x + penalty * torch.eye(x.shape[1], device=x.device, dtype=x.dtype))
    return of @ (-inverse / inverse.diagonal()).fill_diagonal_(0)


class HeldOut:
    """Regulators and targets of the cells, the levels of their states taken out, and which cells are held out.

    genes: the targets, positions; None: genes that do not regulate, or all where every gene does, in a random order.
    """

    def __init__(
        self, table: CellTable, fold: np.ndarray, held_out: int, layered: bool = False, genes: np.ndarray | None = None
    ):
        rows = np.flatnonzero(fold != held_out)
        self.states, device = table.membership, table.device
        self.judged = torch.as_tensor(fold == held_out, device=device)
        self.training = ~self.judged
        centre, level = table.means(rows)
        self.x = (table.inputs - self.states @ centre).double()
        if genes is None:
            every = np.arange(table.multiplicity.shape[1])
            others = np.setdiff1d(every, table.regulators)
            genes = np.random.default_rng(0).permutation(others if len(others) else every)
            genes = genes[: max(64, NUMBERS // len(table))]
        self.y = table.targets(genes).sub_(self.states @ level[:, torch.as_tensor(genes, device=device)])
        # The number of each target among the regulators, none of which is predicted from itself; -1 for the others.
        number = np.full(table.multiplicity.shape[1], -1)
        number[table.regulators] = np.arange(len(table.regulators))
        self.own = torch.as_tensor(number[genes], device=device)
        self.among = self.x[:, :-1]
        if layered:
            share, unit = shares_of_counting(table)
            hat = by_others(self.among[self.training], self.among)
            corrected = self.among + share * (hat - self.among)
            self.x = torch.cat([corrected, self.x[:, -1:]], 1) / unit

    def features(self, rho: float) -> Tensor:
        """[C, F]: regulators and depth, then rho times the regulators in each state."""
        if not rho or self.states.shape[1] == 1:
            return self.x
        cells, states, regulators = *self.states.shape, self.among.shape[1]
        found = self.x.new_empty(cells, regulators + 1 + states * regulators)
        found[:, : regulators + 1] = self.x
        of_states = found[:, regulators + 1 :].view(cells, states, regulators)
        torch.mul(rho * self.states.double()[:, :, None], self.x[:, None, :-1], out=of_states)
        return found

    def errors(self, penalties: Sequence[Penalty], rho: float, targets: int) -> list[float]:
        """Held-out squared error of the first targets, for penalties of one rho."""
        found = self.errors_of_targets(penalties, rho, targets)
        return found.mean(1).nan_to_num(9.0).tolist()

    def errors_of_targets(
        self, penalties: Sequence[Penalty], rho: float, targets: int, weight: Tensor | None = None
    ) -> Tensor:
        """The same of each target, [penalties, targets]. weight [targets, R]: what each pair's penalty is multiplied
        by; None: 1."""
        x, y, number, count = self.features(rho), self.y[:, :targets], self.own[:targets], self.x.shape[1] - 1
        blocks = (x.shape[1] - 1) // max(count, 1)
        learned, judged = self.training.nonzero()[:, 0], self.judged.nonzero()[:, 0]
        gram, cross = products(x, cells=learned), products(x, y, learned)
        # The squared error of y - x w is y y - 2 w x y + w x x w.
        judged_gram, judged_cross = products(x, cells=judged), products(x, y, judged)
        squares_of_y = torch.linalg.vector_norm(y[judged], dim=0, dtype=x.dtype).square()
        # The features of one regulator are one group; the depth is a group of its own, hardly penalised.
        group = torch.cat([torch.arange(count + 1), torch.arange(count).repeat(blocks - 1)]).to(x.device)
        itself = (number[:, None] == group) & (number[:, None] >= 0)  # [targets, F]
        plain = weight is None and not bool(itself.any())
        pairs = x.new_ones(y.shape[1], count + 1)
        pairs[:, :-1] = 1.0 if weight is None else weight.to(x)
        found = []
        for penalty in penalties:
            base = torch.full((x.shape[1],), penalty.lam, device=x.device, dtype=x.dtype)
            base[count] = 1e-3
            system = gram + torch.diag(base)
            root = torch.linalg.cholesky(system)
            w = torch.cholesky_solve(cross, root)
            if not plain:
                w = solved(system, root, cross, base, pairs[:, group], itself, w)
            for _ in range(REWEIGHTED if penalty.t else 0):
                squares = x.new_zeros(count + 1, w.shape[1]).index_add_(0, group, w.square())
                factor = 1 / (1 + squares / penalty.t**2)
                factor[count] = 1
                w = solved(system, root, cross, base, (factor.T * pairs)[:, group], itself, w)
            found.append((squares_of_y + (w * (judged_gram @ w - 2 * judged_cross)).sum(0)) / len(judged))
        return torch.stack(found)


def solved(
    system: Tensor, root: Tensor, cross: Tensor, base: Tensor, factor: Tensor, never: Tensor, start: Tensor
) -> Tensor:
    """w [F, targets] with (G + diag(base x factor_i)) w_i = cross_i for each target, and 0 where `never` [targets, F].

    Conjugate gradients with the solution for a factor of 1 as preconditioner: as factors are mostly near 1, a dozen
    products take the place of a factorisation for each target. system [F, F] = G + diag(base), root: its Cholesky
    factor.   factor [targets, F].   start: where the search begins.
    """
    change, there = (base * (factor - 1)).T, (~never).T.to(cross)
    w = start * there
    rest = (cross - system @ w - change * w) * there
    size = rest.square().sum(0)
    least = TOLERANCE * cross.square().sum(0)
    way, before = torch.zeros_like(w), torch.ones_like(size)
    for _ in range(ROUNDS):
        if bool((size <= least).all()):
            break
        near = torch.cholesky_solve(rest, root) * there
        now = (rest * near).sum(0)
        way = near + way * (now / before)
        moved = (system @ way + change * way) * there
        step = now / (way * moved).sum(0).clamp(min=torch.finfo(w.dtype).tiny)
        w, rest, before = w + step * way, rest - step * moved, now.clamp(min=torch.finfo(w.dtype).tiny)
        size = rest.square().sum(0)
    return w


def ridge_penalties(cells: int) -> tuple[float, ...]:
    """RIDGE and, of many cells, larger ones up to the largest."""
    return RIDGE + tuple(10 ** np.arange(4.75, np.log10(MOST * cells) + 0.25, 0.25))


def enough_cells(count: int) -> np.ndarray:
    """Which of so many cells choose penalties, and whether levels count: rows, sorted."""
    return np.sort(np.random.default_rng(0).permutation(count)[:CELLS])


def choose_penalties_of_blocks(
    table: CellTable, fold: np.ndarray, layered: bool, learned: int | None = None
) -> list[Penalty]:
    """The best penalties of block 2, the best first, and last that of block 1. fold [C]: folds 0 and 1 are held out.
    learned: how many cells are trained on; None: those of the table."""
    most = MOST * (learned or len(table))
    return [replace(each, lam=min(float(each.lam), most)) for each in best_penalties(table, fold, layered)]


def best_penalties(table: CellTable, fold: np.ndarray, layered: bool) -> list[Penalty]:
    """The same, however large they are."""
    states, count = table.states.shape[1], len(table.regulators)
    tries = 2 if count * (states + 1) < 300 and (fold == 1).any() else 1
    parts = [HeldOut(table, fold, number, layered) for number in range(tries)]

    def errors(penalties: Sequence[Penalty], rho: float, targets: int) -> np.ndarray:
        return np.sum([part.errors(penalties, rho, targets) for part in parts], 0)

    every, size = parts[0].y.shape[1], count + 1
    tried_by_ridge = ridge_penalties(len(table))
    work = OPERATIONS_ON_GPU if torch.device(table.device).type == "cuda" else OPERATIONS
    if bool((parts[0].own >= 0).any()):  # every target has a solution of its own, without itself
        every = min(every, max(16, int(work / (tries * len(tried_by_ridge) * PRODUCTS * size**2))))
    ridge = [Penalty(lam) for lam in tried_by_ridge]
    lam = ridge[int(errors(ridge, 0.0, every).argmin())].lam
    among = Penalty(_among(parts[0], tried_by_ridge))
    if count * (states + 1) > FEATURES:
        rho, t, strength = USUAL
        return [Penalty(lam * strength, RHOS[0] if table.pooled else rho, t), among]
    tried: list[tuple[float, Penalty]] = []
    # Where levels count as regulation, slopes of single states would take up their levels.
    rhos = (0.0,) if states == 1 else RHOS[:1] if table.pooled else RHOS
    for rho in rhos:
        several = [Penalty(lam * strength, rho) for strength in (STRENGTHS if states > 1 else (1.0,))]
        best = several[int(errors(several, rho, every).argmin())].lam
        size = count + 1 + states * count * (states > 1)
        targets = min(every, max(16, int(work / (tries * REWEIGHTED * len(FORMS) * len(rhos) * PRODUCTS * size**2))))
        forms = [Penalty(best * strength, rho, t) for t, strength in FORMS]
        tried += zip(errors(forms, rho, targets).tolist(), forms, strict=True)
    return [penalty for _, penalty in sorted(tried, key=lambda one: one[0])[:KEPT]] + [among]


def _among(part: HeldOut, penalties: Sequence[float]) -> float:
    """The penalty of ridge regression with which the regulators predict each other best."""
    x, judged = part.among[part.training], part.among[part.judged]
    errors = [float((judged - by_others(x, judged, lam)).square().mean()) for lam in penalties]
    return penalties[int(np.argmin(errors))]
