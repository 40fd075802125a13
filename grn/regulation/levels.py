"""How far do differences between states of cells count as regulation? States that are left out tell.

Cells of different states (types, for example) have different levels of their genes. Where these differences come from
regulators, they tell of slopes what differences between cells of one state tell only with noise. Where they come from
what the states are made of, as in blood, they mislead. Least squares takes any part of them: of each state's mean it
leaves a part of its way to the mean of all cells in the cells, from none (0: within states) to all (1: as if there were
no states). That is a penalty on what states have for themselves.

A part has to pass two tests. Held-out cells of known states: around the means of their states, its slopes must
predict them no worse than slopes without levels do. In blood, slopes through levels are wrong within a type. Left out
states: slopes of the other states predict their cells from the means of these, and explain differences within them at
least half as well as slopes of such differences alone. Of the parts that pass, the one that predicts left out states
best counts, if it is better than none by more than chance.

Letters: C cells, N genes, K = R + 1 keys, S states, n targets, L penalties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grn.regulation.cell_table import CellTable
from grn.regulation.exact import products

PARTS, FEW_PARTS = (
    (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
    (0.0, 0.4, 0.8),
)  # that are tried; the second where it would take long
PENALTIES = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0)
CHANCE = 2.0  # standard errors, over targets, by which a part must lower the error
ENOUGH = 0.5  # of what slopes of differences within states explain there, slopes through levels must explain
WORSE = 1e-4  # share by which the error of unseen cells of known states may be larger
GENES = 512  # targets that are enough to decide
MOST, LONG = 4096, 4e9  # regulators, with more of which levels do not count; and operations from which on few parts do


@dataclass(frozen=True)
class Levels:
    """part: of the differences between states that counts.   without, with_part: squared error of cells of states that
    are left out, over that of the other states' means, with none and with the part that predicts best.   best: that
    part, among those with which unseen cells of known states are predicted no worse."""

    part: float
    without: float
    with_part: float
    best: float

    def summary(self) -> str:
        errors = f"error {self.without:.4f} without them, {self.with_part:.4f} with {self.best:.0%} of them"
        if self.part:
            return f"Differences between states count as regulation: they help to predict other states ({errors})."
        if not self.best:
            return (
                "Differences between states do not count as regulation: they may be composition, as what they say of "
                "slopes is wrong within states, or predicts no other state better."
            )
        return (
            "Differences between states do not count as regulation: they do not help to predict other states by more "
            f"than chance ({errors})."
        )


@dataclass(frozen=True)
class OfStates:
    """What the states' cells say: means x [S, K], y [S, n], number [S], and around the means gram [S, K, K],
    cross [S, K, n] and square [S, n]."""

    x: Tensor
    y: Tensor
    number: Tensor
    gram: Tensor
    cross: Tensor
    square: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor, state: Tensor, states: int) -> OfStates:
        """x [C, K], y [C, n], state [C]: the number of each cell's state."""
        found = []
        for number in range(states):
            here = state == number
            mean_x, mean_y = (each[here].mean(0) if here.any() else each.new_zeros(each.shape[1]) for each in (x, y))
            own_x, own_y = x[here] - mean_x, y[here] - mean_y
            sums = products(own_x, own_x), products(own_x, own_y), own_y.square().sum(0)
            found.append((mean_x, mean_y, here.sum().to(x), *sums))
        return cls(*(torch.stack(each) for each in zip(*found, strict=True)))

    def errors(self, part: float) -> tuple[Tensor, Tensor]:
        """Squared error of left out states' cells by the best of PENALTIES, [n], and what of it is within states by
        each of them, the best first, [L]."""
        total = self.square.new_zeros(len(PENALTIES), self.square.shape[1])
        within = torch.zeros_like(total)
        for state in range(len(self.number)):
            rest = torch.arange(len(self.number), device=self.x.device) != state
            size = self.number[rest]
            centre = [(size / size.sum()) @ each[rest] for each in (self.x, self.y)]
            x, y = (part * (each[rest] - mean) for each, mean in zip((self.x, self.y), centre, strict=True))
            gram = self.gram[rest].sum(0) + (x * size[:, None]).T @ x
            cross = self.cross[rest].sum(0) + (x * size[:, None]).T @ y
            unit = (gram.diagonal() / size.sum()).sqrt().clamp(min=1e-6)
            values, vectors = torch.linalg.eigh(gram / (unit[:, None] * unit))
            rotated = vectors.T @ (cross / unit[:, None])
            way, change = self.x[state] - centre[0], self.y[state] - centre[1]
            way[-1] = 0  # the depth differs for technical reasons
            for number, penalty in enumerate(PENALTIES):
                slopes = (vectors @ (rotated / (values.clamp(min=0)[:, None] + penalty))) / unit[:, None]
                own = (slopes * (self.gram[state] @ slopes - 2 * self.cross[state])).sum(0) + self.square[state]
                within[number] += own
                total[number] += own + self.number[state] * (change - way @ slopes).square()
        best = int(total.mean(1).argmin())
        return total[best], within.sum(1).roll(-best)

    def by_means(self) -> Tensor:
        """The same error by the means of the other states, [n]."""
        size = self.number[:, None]
        others = (size * self.y).sum(0) - size * self.y
        change = self.y - others / (size.sum() - size).clamp(min=1e-9)
        return (self.square + size * change.square()).sum(0)


def levels_of(table: CellTable, fold: np.ndarray) -> Levels | None:
    """What held-out cells, and states that are left out, say; None with one state, one gene, or too many regulators.

    fold [C]: those of fold 0 are held out. Where every gene regulates, half of the genes, and at most GENES, are
    explained by the others: none by itself.
    """
    states, regulators = table.states.shape[1], len(table.regulators)
    others = np.setdiff1d(np.arange(table.multiplicity.shape[1]), table.regulators)
    most = GENES if len(others) else min(GENES, regulators // 2)
    genes = np.random.default_rng(0).permutation(others if len(others) else table.regulators)[:most]
    if states < 2 or regulators > MOST or not len(genes):
        return None
    read = torch.as_tensor(~np.isin(table.regulators, genes), device=table.inputs.device)
    x = torch.cat([table.inputs[:, :-1][:, read], table.inputs[:, -1:]], 1).double()
    y, share = table.targets(genes).double(), table.membership
    parts: tuple[float, ...] = FEW_PARTS if states * x.shape[1] ** 3 > LONG else PARTS
    folds = range(5) if len(parts) == len(PARTS) else range(1)
    of_folds = [
        within_states(x, y, share.double(), torch.as_tensor(fold == each, device=x.device), parts) for each in folds
    ]
    within = torch.stack(of_folds).sum(0)
    alone = 0.0  # share of differences within states that slopes of such differences explain
    right = [place for place, error in enumerate(within.tolist()) if error <= within[0] * (1 + WORSE)]
    found = OfStates.of(x, y, share.argmax(1), states)
    inside, errors = found.square.sum().clamp(min=1e-9), {}
    for place in right:
        error, own = found.errors(parts[place])
        explained = 1 - float(own[0] / inside)
        alone = 1 - float(own.min() / inside) if place == 0 else alone
        if place == 0 or explained >= ENOUGH * max(alone, 0.0):
            errors[place] = error
    scale = found.by_means().mean().clamp(min=1e-9)
    best = min(errors, key=lambda place: float(errors[place].mean()))
    gain = (errors[0] - errors[best]) / scale
    helps = best > 0 and float(gain.mean()) > CHANCE * float(gain.std()) / len(gain) ** 0.5
    of_none, of_best = (float(errors[place].mean() / scale) for place in (0, best))
    return Levels(parts[best] if helps else 0.0, of_none, of_best, parts[best])


def within_states(x: Tensor, y: Tensor, share: Tensor, judged: Tensor, parts: Sequence[float]) -> Tensor:
    """Mean squared error of the judged cells around the means of their states, by ridge regression with each part of
    the differences between states, [parts]. x [C, K], y [C, n], share [C, S], judged [C]."""
    own = share[~judged]
    size = own.sum(0)
    means = [(own.T @ each[~judged]) / size[:, None].clamp(min=1e-9) for each in (x, y)]
    x_within, y_within = (each - share @ mean for each, mean in zip((x, y), means, strict=True))
    x_of, y_of = (mean - (size / size.sum()) @ mean for mean in means)  # [S, K], [S, n]
    x_own, y_own, x_judged, y_judged = x_within[~judged], y_within[~judged], x_within[judged], y_within[judged]
    inside, common, cross = products(x_own, x_own), own.T @ own, products(x_own, y_own)
    with_share, to_share = own.T @ x_own, own.T @ y_own  # 0 where cells have one state each
    found = []
    for part in parts:
        mixed = part * x_of.T @ with_share
        gram = inside + mixed + mixed.T + part**2 * x_of.T @ common @ x_of
        sums = cross + part * (x_of.T @ to_share + with_share.T @ y_of) + part**2 * x_of.T @ common @ y_of
        unit = (gram.diagonal() / len(own)).sqrt().clamp(min=1e-6)
        values, vectors = torch.linalg.eigh(gram / (unit[:, None] * unit))
        rotated, read = vectors.T @ (sums / unit[:, None]), (x_judged / unit) @ vectors
        errors = [
            (y_judged - read @ (rotated / (values[:, None].clamp(min=0) + lam))).square().mean() for lam in PENALTIES
        ]
        found.append(torch.stack(errors).min())
    return torch.stack(found)


def state_levels(multiplicity, states):
    """Mean multiplicity of each gene in each state, [S, N]; 0 in a state without cells.

    multiplicity [C, N] and states [C, S]: sparse or dense arrays, or tensors.
    """
    size = states.sum(0)
    return (states / (size + (size == 0))).T @ multiplicity
