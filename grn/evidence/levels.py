"""How far do differences between states of cells count as regulation? States that are left out
tell.

Cells of different states (types, for example) have different levels of their genes. Where these
differences come from regulators, they tell of slopes what differences between cells of one state
tell only with noise. Where they come from what the states are made of, as in blood, they mislead.
Least squares takes any part of them: of each state's mean it leaves a part of its way to the mean
of all cells in the cells, from none (0: within states) to all (1: as if there were no states). That
is a penalty on what states have for themselves.

A part has to pass two tests. Held-out cells of known states: around the means of their states, its
slopes must predict them no worse than slopes without levels do. In blood, slopes through levels are
wrong within a type. Left out states: slopes of the other states predict their cells from the means
of these, and explain differences within them at least half as well as slopes of such differences
alone. Of the parts that pass, the one that predicts left out states best counts, if it is better
than none by more than chance.

Letters: C cells, N genes, K = R + 1 keys, S states, n targets, L penalties.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from grn.evidence.cell_table import CellTable
from grn.evidence.exact import products

PARTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # that are tried
FEW_PARTS = (0.0, 0.4, 0.8)  # where that would take long
PENALTIES = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0)
CHANCE = 2.0  # standard errors, over targets, by which a part must lower the error
# of what slopes of differences within states explain there, slopes through levels must explain
ENOUGH = 0.5
WORSE = 1e-4  # share by which the error of unseen cells of known states may be larger
GENES = 512  # targets that are enough to decide
MOST = 4096  # regulators; with more, levels do not count
LONG = 1e9  # multiplications from which on few parts are tried, in one fold


@dataclass(frozen=True)
class Levels:
    """The share of the differences between states that counts.

    part: of the differences between states that counts.
    without, with_part: squared error of cells of states that are left out, over that of the other
        states' means, with none and with the part that predicts best.
    best: that part, among those with which unseen cells of known states are predicted no worse.
    """

    part: float
    without: float
    with_part: float
    best: float

    def summary(self) -> str:
        errors = (
            f"error {self.without:.4f} without them, {self.with_part:.4f} with {self.best:.0%} of "
            "them"
        )
        if self.part:
            return (
                "Differences between states count as regulation: they help to predict other "
                f"states ({errors})."
            )
        if not self.best:
            return (
                "Differences between states do not count as regulation: they may be composition, "
                "as what they say of slopes is wrong within states, or predicts no other state "
                "better."
            )
        return (
            "Differences between states do not count as regulation: they do not help to predict "
            f"other states by more than chance ({errors})."
        )


@dataclass(frozen=True)
class OfStates:
    """Sums over the cells of each state: means x [S, K], y [S, n], number [S], and around the means
    gram [S, K, K], cross [S, K, n] and square [S, n].
    """

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
            mean_x, mean_y = (
                each[here].mean(0) if here.any() else each.new_zeros(each.shape[1])
                for each in (x, y)
            )
            own_x, own_y = x[here] - mean_x, y[here] - mean_y
            sums = products(own_x, own_x), products(own_x, own_y), own_y.square().sum(0)
            found.append((mean_x, mean_y, here.sum().to(x), *sums))
        return cls(*(torch.stack(each) for each in zip(*found, strict=True)))

    def without(self, state: int) -> OfStates:
        """Return these states but for one."""
        rest = torch.arange(len(self.number), device=self.x.device) != state
        return OfStates(*(each[rest] for each in vars(self).values()))

    def centre(self) -> tuple[Tensor, Tensor]:
        """Return the means of all cells, [K] and [n]."""
        share = self.number / self.number.sum().clamp(min=1)
        return share @ self.x, share @ self.y

    def slopes(self, part: float) -> Iterator[Tensor]:
        """Ridge regression with a part of the differences between states, [K, n] for each of
        PENALTIES, in units of the root mean square of a key.
        """
        x, y = (
            part * (each - mean) for each, mean in zip((self.x, self.y), self.centre(), strict=True)
        )
        weighted = x * self.number[:, None]
        gram, cross = self.gram.sum(0) + weighted.T @ x, self.cross.sum(0) + weighted.T @ y
        unit = (gram.diagonal() / self.number.sum()).sqrt().clamp(min=1e-6)
        values, vectors = torch.linalg.eigh(gram / (unit[:, None] * unit))
        rotated = vectors.T @ (cross / unit[:, None])
        for penalty in PENALTIES:
            yield (vectors @ (rotated / (values.clamp(min=0)[:, None] + penalty))) / unit[:, None]

    def errors(self, state: int, slopes: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Squared error of a state's cells that slopes predict from a point x [K], y [n], and the
        part of it that is within the state: [n] each.
        """
        within = (slopes * (self.gram[state] @ slopes - 2 * self.cross[state])).sum(
            0
        ) + self.square[state]
        missed = (self.y[state] - y) - (self.x[state] - x) @ slopes
        return within + self.number[state] * missed.square(), within

    def left_out(self, part: float) -> tuple[Tensor, Tensor]:
        """Squared error of each state's cells by the others' slopes, from the others' means, with
        the best of PENALTIES, [n]; and what of it is within states, with each of them, the best
        first, [L].
        """
        total = self.square.new_zeros(len(PENALTIES), self.square.shape[1])
        within = torch.zeros_like(total)
        for state in range(len(self.number)):
            others = self.without(state)
            x, y = others.centre()
            x[-1] = self.x[state, -1]  # the depth differs for technical reasons
            for number, slopes in enumerate(others.slopes(part)):
                found = self.errors(state, slopes, x, y)
                total[number] += found[0]
                within[number] += found[1]
        best = int(total.mean(1).argmin())
        return total[best], within.sum(1).roll(-best)

    def held_out(self, unseen: OfStates, part: float) -> float:
        """Squared error of unseen cells of the same states, from the means of these, with the best
        of PENALTIES.
        """
        errors = []
        for slopes in self.slopes(part):
            of_states = (
                unseen.errors(state, slopes, self.x[state], self.y[state])
                for state in range(len(self.x))
            )
            errors.append(float(sum(float(total.sum()) for total, _ in of_states)))
        return min(errors)

    def by_means(self) -> Tensor:
        """Return the squared error of predicting each state's mean by the other states'
        means, [n].
        """
        size = self.number[:, None]
        others = (size * self.y).sum(0) - size * self.y
        change = self.y - others / (size.sum() - size).clamp(min=1e-9)
        return (self.square + size * change.square()).sum(0)


def levels_of(table: CellTable, fold: np.ndarray) -> Levels | None:
    """Return how much of the differences between states counts, as held-out cells and left-out
    states decide; None with one state, one gene, or too many regulators.

    fold [C]: each of the folds 0 to 4 is held out in turn. Where every gene regulates, half of the
        genes, and at most GENES, are explained by the others: none by itself.
    """
    states, regulators = table.states.shape[1], len(table.regulators)
    others = np.setdiff1d(np.arange(table.multiplicity.shape[1]), table.regulators)
    most = GENES if len(others) else min(GENES, regulators // 2)
    genes = np.random.default_rng(0).permutation(others if len(others) else table.regulators)[:most]
    if states < 2 or regulators > MOST or not len(genes):
        return None
    read = torch.as_tensor(~np.isin(table.regulators, genes), device=table.inputs.device)
    x = torch.cat([table.inputs[:, :-1][:, read], table.inputs[:, -1:]], 1).double()
    y, state = table.targets(genes).double(), table.membership.argmax(1)
    long = states * x.shape[1] ** 3 > LONG
    parts = FEW_PARTS if long else PARTS
    unseen = np.zeros(len(parts))
    for number in range(1 if long else 5):
        judged = torch.as_tensor(fold == number, device=x.device)
        learned, other = (
            OfStates.of(x[each], y[each], state[each], states) for each in (~judged, judged)
        )
        unseen += [learned.held_out(other, part) for part in parts]

    found, errors = OfStates.of(x, y, state, states), {}
    inside = found.square.sum().clamp(min=1e-9)
    for place, part in enumerate(parts):
        error, within = found.left_out(part)
        explained, most_explained = (1 - float(each / inside) for each in (within[0], within.min()))
        if place == 0:
            enough = ENOUGH * max(most_explained, 0.0)
        if place == 0 or (unseen[place] <= unseen[0] * (1 + WORSE) and explained >= enough):
            errors[place] = error
    scale = found.by_means().mean().clamp(min=1e-9)
    best = min(errors, key=lambda place: float(errors[place].mean()))
    gain = (errors[0] - errors[best]) / scale
    helps = best > 0 and float(gain.mean()) > CHANCE * float(gain.std()) / len(gain) ** 0.5
    of_none, of_best = (float(errors[place].mean() / scale) for place in (0, best))
    return Levels(parts[best] if helps else 0.0, of_none, of_best, parts[best])


def state_levels(multiplicity: sp.csr_matrix | np.ndarray, states: np.ndarray) -> np.ndarray:
    """Mean multiplicity of each gene in each state, [S, N]; 0 in a state without cells.

    multiplicity [C, N], states [C, S]: see States.
    """
    size = states.sum(0)
    return (states / (size + (size == 0))).T @ multiplicity
