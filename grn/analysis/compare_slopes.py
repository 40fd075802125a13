"""Differences of slopes between two conditions, and how large they are beside their own noise.

    y_i = levels + sum_j (beta_ij + s/2 delta_ij) x_j          s: -1 or +1, the condition of a cell

Levels (of types, donors and conditions, and what follows the depth within each) are taken out first. The shared slopes
beta are then taken out *without a penalty*, as far as there are cells for it: a shrunken beta would leave a part of
itself to delta wherever a regulator varies more in one condition than in the other, although no slope differs. Only
delta is penalised, by kappa, so that what several regulators have in common is shared among them.

The error of each difference comes from the residuals of the same cells, squared where they are (White's sandwich, under
the hypothesis that no slope differs), so that neither a noisier condition nor one in which the regulator varies more
counts as a difference. Where donors are given, the residuals of a donor are added up before they are squared.

Letters: C cells, N targets, R regulators, G groups of cells with a level of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ROOM = 2  # cells for each shared slope that is free; with fewer cells, the shared slopes are penalised until that holds
LEAST = 1e-9  # of a variance, relative to the largest one


@dataclass(frozen=True)
class Sample:
    """The cells of one comparison.

    x float64 [C, R]: regulators.   y float32 [C, N]: targets.   own [R]: the target that each regulator is.
    stratum int64 [C]: number of the cell's type, or of its type and donor.   type int64 [C].   donor int64 [C]: 0 to
    the number of donors - 1, or None: each cell speaks for itself.   basal float64 [C]: carries the depth.
    """

    x: Tensor
    y: Tensor
    own: Tensor
    type: Tensor
    stratum: Tensor
    donor: Tensor | None
    basal: Tensor


@dataclass(frozen=True)
class Differences:
    """Each [R, N], in the units of x and y; NaN where a regulator is the target itself.

    effect: slope where s is +1, minus that where it is -1.   error: its standard error.   score: how many standard
    errors it is away from 0, the error computed as if no slope differed.
    """

    effect: Tensor
    error: Tensor
    score: Tensor


def without_levels(sample: Sample, sign: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x, y, and the root of each cell's weight [C], with the levels of each stratum in each condition taken out.

    sign [C]: -1 or +1. The weights balance the conditions within each type. Without them, types with different slopes
    would differ between conditions because the types are mixed differently.
    """
    group, strata = 2 * sample.stratum + (sign > 0), 2 * (int(sample.stratum.max()) + 1)
    centred = _centred(sample.basal[:, None], group, strata)
    x, y = _centred(sample.x, group, strata), _centred(sample.y, group, strata)
    if bool(centred.abs().max() > LEAST):
        square = _sums(centred.square(), group, strata).clamp(min=LEAST)
        x = x - centred * (_sums(centred * x, group, strata) / square)[group]
        narrow = centred.to(y)
        y = y - narrow * (_sums(narrow * y, group, strata) / square.to(y))[group]
    weight = balance(sample.type, sign)
    return x * weight[:, None], y * weight[:, None].to(y), weight


def balance(cell_type: Tensor, sign: Tensor) -> Tensor:
    """The root of each cell's weight, [C], with which each type weighs as much in one condition as in the other."""
    group = 2 * cell_type + (sign > 0)
    size = torch.bincount(group, minlength=2 * (int(cell_type.max()) + 1)).to(torch.float64).unflatten(0, (-1, 2))
    harmonic = 2 * size.prod(1) / size.sum(1).clamp(min=1)
    return (harmonic[:, None] / size.clamp(min=1)).flatten()[group].sqrt()


def _sums(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """[C, V] -> [G, V]"""
    return values.new_zeros(groups, values.shape[1]).index_add_(0, group, values)


def _centred(values: Tensor, group: Tensor, groups: int) -> Tensor:
    size = torch.bincount(group, minlength=groups).clamp(min=1).to(values)
    return values - (_sums(values, group, groups) / size[:, None])[group]


class SlopeFit:
    """The fit of one labelling of the cells. x [C, R] and y [C, N]: without levels; sign [C]; kappa: see above."""

    def __init__(self, x: Tensor, y: Tensor, sign: Tensor, own: Tensor, donor: Tensor | None, kappa: float):
        self.own, self.donor, self.kappa = own, donor, kappa
        regulators = x.shape[1]
        each = torch.arange(regulators)
        by_condition = sign[:, None] * x / 2
        product, cross = x.T @ x, x.T @ by_condition
        penalty = free_penalty(product, len(x) // ROOM)
        product = product + penalty * torch.eye(regulators, dtype=x.dtype)
        deviations = by_condition.T @ by_condition + kappa * torch.eye(regulators, dtype=x.dtype)
        inverse = torch.linalg.inv(torch.cat([torch.cat([product, cross], 1), torch.cat([cross.T, deviations], 1)]))
        operator = inverse.to(y) @ torch.cat([x, by_condition], 1).to(y).T
        self.shared, self.different = operator[:regulators], operator[regulators:]  # each [R, C]
        alone = torch.linalg.inv(product)
        shared = (alone.to(y)) @ (x.to(y).T @ y)
        shared[:, own] = (-alone / alone.diagonal()).to(y)
        shared[each, own] = 0
        self.rest = y - x.to(y) @ shared  # [C, N]
        taken = penalty * inverse.diagonal()[:regulators].sum() + kappa * inverse.diagonal()[regulators:].sum()
        self.freedom = 2 * regulators - float(taken)  # degrees of freedom of the fit
        # A regulator is never explained by itself: what its own two features took is given back.
        columns = torch.stack([each, each + regulators], 1)
        block = inverse[columns[:, :, None], columns[:, None, :]]
        self.own_parts = torch.linalg.solve(block, inverse[columns][:, :, regulators:])  # [R, 2, R]
        gain = inverse.diagonal()[regulators:, None].repeat(1, y.shape[1])
        gain[:, own] -= (self.own_parts * inverse[columns][:, :, regulators:]).sum(1).T
        # How much of a difference of one pair alone the penalty leaves.
        self.gain = (1 - kappa * gain).clamp(min=LEAST).to(y)
        self.deviating = (by_condition - x @ (alone @ cross)).to(y)  # without what the shared slopes explain

    def scores(self) -> Tensor:
        """Differences.score alone."""
        total, square = self._sums(self.rest)
        return self._without_own(total / square.sqrt().clamp(min=1e-30))

    def differences(self) -> Differences:
        total, square = self._sums(self.rest)
        score = total / square.sqrt().clamp(min=1e-30)
        shrunk = total.clone()
        shrunk[torch.arange(len(self.own)), self.own] = 0
        left = self._sums(self.rest - self.deviating @ shrunk)[1].sqrt()
        return Differences(*map(self._without_own, (total / self.gain, left / self.gain, score)))

    def _without_own(self, table: Tensor) -> Tensor:
        table[torch.arange(len(self.own)), self.own] = torch.nan
        return table

    def _sums(self, rest: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over cells of operator x residual, and of the squares of these products (summed in each donor first):
        twice [R, N]."""
        if self.donor is None:
            return self._sum(rest, slice(None)), self._squares(rest)
        total, square = torch.zeros_like(self.gain), torch.zeros_like(self.gain)
        for donor in range(int(self.donor.max()) + 1):
            part = self._sum(rest, self.donor == donor)
            total += part
            square += part.square()
        return total, square

    def _sum(self, rest: Tensor, cells: Tensor | slice) -> Tensor:
        of_cells = rest[cells]
        total = self.different[:, cells] @ of_cells
        mine = of_cells[:, self.own].T  # [R, C]
        own = torch.stack([(part[:, cells] * mine).sum(1) for part in (self.shared, self.different)], 1)
        total[:, self.own] -= (self.own_parts.to(total) * own[:, :, None]).sum(1).T
        return total

    def _squares(self, rest: Tensor) -> Tensor:
        square = self.different.square() @ rest.square()
        mine = rest[:, self.own].square().T
        parts = [part * mine for part in (self.shared, self.different)]
        first, second = self.own_parts.to(square).unbind(1)  # [regulator that is the target, R]
        crossed = [(self.different @ part.T).T for part in parts]
        within = [[(a * b).sum(1)[:, None] for b in (self.shared, self.different)] for a in parts]
        change = first.square() * within[0][0] + second.square() * within[1][1] + 2 * first * second * within[0][1]
        square[:, self.own] += (change - 2 * (first * crossed[0] + second * crossed[1])).T
        return square.clamp(min=0)


def free_penalty(product: Tensor, most: int) -> float:
    """The smallest penalty with which regulators with these products [R, R] have at most `most` degrees of freedom."""
    values = torch.linalg.eigvalsh(product).clamp(min=0)
    least = float(values[-1]) * 1e-7 + 1e-12  # of regulators that are copies of each other, one must be free only
    if float((values / (values + least)).sum()) <= most:
        return least
    low, high = least, max(float(values.sum()) / max(most, 1), 2 * least)
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if float((values / (values + middle)).sum()) > most else (low, middle)
    return high
