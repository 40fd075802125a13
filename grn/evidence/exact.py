"""The exact solution of the linear problem behind a signed block.

It has shared slopes w, and what each state adds to them, v_s:

    minimise  sum over cells (y - sum_s p_s x . (w + rho v_s))^2
              + lambda t^2 sum over keys log(1 + size_j / t^2)

    size_j = w_j^2 + sum_s v_js^2

p_s: how much the cell belongs to state s.
That is what a signed block learns while its norms hardly bend, with the penalty of training
(grn/model/penalty.py). It needs sums over cells alone, `Moments`: a commutative monoid, so that
parts of the cells add up in any order. Features are never written out for each state: where cells
belong to one state, its products are those of its own cells.

The logarithm is reweighted: its slope at the last solution weighs the squares of the next one.
t = 0 is ridge regression.

Letters: C cells, K keys (the regulators and, last, the depth), S states, n targets, B pairs of
states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grn.model.penalty import Penalty

FREE = 1e-3  # penalty of the slope on the depth that states share
REWEIGHTED = 4  # rounds that the logarithm takes
# Conjugate gradients: where they end (of the squared residual), at the last reweighting and before;
# at most how many; and the dtype of their numbers. Looser ends before the last one (1e-4) moved
# small slopes enough to rank edges worse.
TOLERANCE, ON_THE_WAY, ROUNDS, ITERATED = 1e-8, 1e-6, 200, torch.float32
STILL = 0.7  # share of the targets that go on, below which the others are left out
# states of which so small a share of the cells is in both are taken to have none in common
APART = 1e-3
CELLS = 4096  # whose products are added at a time


@dataclass(frozen=True)
class Moments:
    """Sums over cells of products of keys x and targets y, those of states weighted by memberships.

    pairs [B]: states that have cells in common. gram [B, K, K]. cross [S, K, n]. square [n].
    cells: their number.
    """

    pairs: tuple[tuple[int, int], ...]
    gram: Tensor
    cross: Tensor
    square: Tensor
    cells: int

    @classmethod
    def of(
        cls,
        x: Tensor,
        y: Tensor,
        share: Tensor,
        rows: Tensor | None = None,
        gram: Tensor | None = None,
    ) -> Moments:
        """Return the sums over some cells.

        x [C, K], y [C, n], share [C, S]: of all cells.
        rows: of these cells; None: all.
        gram: if it is known already.
        """
        x, y, share = (each if rows is None else each[rows] for each in (x, y, share))
        pairs = pairs_of_states(share)
        if gram is None:
            gram = x.new_empty(len(pairs), x.shape[1], x.shape[1])
            for number, (one, other) in enumerate(pairs):
                both = share[:, one] * share[:, other]
                here = both.nonzero()[:, 0]
                gram[number] = products(x[here] * both[here, None].to(x), x[here])
        cross = x.new_empty(share.shape[1], x.shape[1], y.shape[1])
        for state in range(share.shape[1]):
            here = share[:, state].nonzero()[:, 0]
            cross[state] = products(x[here] * share[here, state, None].to(x), y[here])
        return cls(
            pairs, gram, cross, torch.linalg.vector_norm(y, dim=0, dtype=x.dtype).square(), len(x)
        )

    def __add__(self, other: Moments) -> Moments:
        """Of both sets of cells, which have the same pairs of states."""
        return Moments(
            pairs=self.pairs,
            gram=self.gram + other.gram,
            cross=self.cross + other.cross,
            square=self.square + other.square,
            cells=self.cells + other.cells,
        )

    def __sub__(self, other: Moments) -> Moments:
        """Without cells that are among these, with the same pairs of states."""
        return Moments(
            pairs=self.pairs,
            gram=self.gram - other.gram,
            cross=self.cross - other.cross,
            square=self.square - other.square,
            cells=self.cells - other.cells,
        )

    def together(self) -> Moments:
        """Return the moments of all cells as if they were of one state."""
        if len(self.cross) == 1:
            return self
        gram = sum(
            (
                each if one == other else each + each.mT
                for each, (one, other) in zip(self.gram, self.pairs, strict=True)
            ),
            torch.zeros_like(self.gram[0]),
        )
        return Moments(
            ((0, 0),), gram[None], self.cross.sum(0, keepdim=True), self.square, self.cells
        )

    def to(self, dtype: torch.dtype) -> Moments:
        """Return these moments in another dtype."""
        return replace(
            self, **{name: getattr(self, name).to(dtype) for name in ("gram", "cross", "square")}
        )

    def some(self, count: int) -> Moments:
        """Of the first targets."""
        return Moments(
            self.pairs, self.gram, self.cross[..., :count], self.square[:count], self.cells
        )

    def product(self, slopes: Tensor) -> Tensor:
        """Each state's products with what its slopes [S, K, n] predict: [S, K, n]."""
        if len(self.pairs) == len(slopes):  # no two states have cells in common
            return self.gram @ slopes
        total = torch.zeros_like(slopes)
        for gram, (one, other) in zip(self.gram, self.pairs, strict=True):
            total[one] += gram @ slopes[other]
            if one != other:
                total[other] += gram.mT @ slopes[one]
        return total

    def errors(self, slopes: Tensor) -> Tensor:
        """Mean squared error of each target by slopes [S, K, n] of the states: [n]."""
        explained = (slopes * (self.product(slopes) - 2 * self.cross)).sum((0, 1))
        return (self.square + explained) / max(self.cells, 1)


@dataclass(frozen=True)
class Solution:
    """shared [K, n].   deviations [S, K, n]: what each state adds; None: nothing."""

    shared: Tensor
    deviations: Tensor | None = None

    def of_states(self, states: int) -> Tensor:
        """[S, K, n]: the slopes in each state."""
        if self.deviations is None:
            return self.shared.expand(states, -1, -1)
        return self.shared + self.deviations


def pairs_of_states(share: Tensor) -> tuple[tuple[int, int], ...]:
    """Return the pairs of states of cells [C, S], each with itself first, that have more than APART
    of either in common.
    """
    size = share.sum(0)
    least = torch.minimum(size, size[:, None]) * APART
    common = (share.T @ share > least).nonzero().tolist()
    every = [(state, state) for state in range(share.shape[1])]
    return (*every, *((one, other) for one, other in common if one < other))


def products(x: Tensor, y: Tensor) -> Tensor:
    """x^T y of tables with a row for each cell, in the dtype of x."""
    total = x.new_zeros(x.shape[1], y.shape[1])
    for some, others in zip(x.split(CELLS), y.split(CELLS), strict=True):
        total.addmm_(some.mT, others.to(x))
    return total


def solve(
    moments: Moments,
    penalty: Penalty,
    *,
    self_key: Tensor | None = None,
    weight: Tensor | None = None,
    free: bool = True,
) -> Solution:
    """Return the minimiser.

    self_key [n]: the key that each target is, whose slopes are 0; -1: none.
    weight [K, n]: what each pair's penalty is multiplied by; None: 1.
    free: whether the last key is the depth, of which the shared slope is hardly penalised.
    """
    states = len(moments.cross)
    alone = states == 1 or not penalty.rho
    moments = moments.together() if alone else moments
    there = None
    if self_key is not None and bool((self_key >= 0).any()):
        there = torch.arange(moments.gram.shape[-1], device=self_key.device)[:, None] != self_key
    system = System.of(moments, penalty.lam, 0.0 if alone else penalty.rho, free)
    w = system.precondition(system.right_side())
    # one factorisation serves all targets
    same = weight is None and len(moments.pairs) == len(moments.cross)
    if same and there is not None and self_key is not None and alone:
        w[0] = system.without(w[0], self_key)
        there = None if not penalty.t else there
    if not same or there is not None or penalty.t:
        w = reweighted(system.to(ITERATED), penalty.t, there, weight, free, w.to(ITERATED)).to(w)
    return Solution(w[0], None if alone else penalty.rho * w[1:])


def reweighted(
    system: System, t: float, there: Tensor | None, weight: Tensor | None, free: bool, start: Tensor
) -> Tensor:
    """w [1 + S, K, n] of the logarithmic penalty, or the squared one where t is 0, from `start`."""
    cross = system.right_side()
    weights = torch.ones_like(start[0]) if weight is None else weight.to(start)
    if not t:
        return conjugate_gradients(system, cross, weights, there, start, TOLERANCE)
    w = (
        start
        if weight is None
        else conjugate_gradients(system, cross, weights, there, start, ON_THE_WAY)
    )
    for number in range(REWEIGHTED):
        size = w.square().sum(0)
        if free:  # the depth's shared slope is no part of it
            size[-1] = w[1:, -1].square().sum(0)
        factor = weights / (1 + weights * size / t**2)
        last = number == REWEIGHTED - 1
        w = conjugate_gradients(system, cross, factor, there, w, TOLERANCE if last else ON_THE_WAY)
    return w


@dataclass(frozen=True)
class System:
    """The linear system of one round, for w [1 + S, K, n]: shared slopes and, over rho, what states
    add.

    Its inverse for penalties without factors is the preconditioner: by blocks, as states meet in
    the shared slopes alone. It is exact where no two states have cells in common.

    base [K]: penalties of the shared slopes.
    inverse [K, K]: of the shared slopes' system without the states.
    of_states [S, K, K]: W_s = (rho^2 G_s + lambda)^-1, by which states answer; None where there is
        one state.
    """

    moments: Moments
    lam: float
    rho: float
    base: Tensor
    inverse: Tensor
    of_states: Tensor | None = None

    @classmethod
    def of(cls, moments: Moments, lam: float, rho: float, free: bool) -> System:
        base = moments.gram.new_full((moments.gram.shape[-1],), lam)
        if free:
            base[-1] = FREE
        gram = moments.gram[: len(moments.cross)]  # each state with itself
        if not rho:
            return cls(moments, lam, rho, base, inverse_of(gram[0] + base.diag()))
        of_states = inverse_of(rho**2 * gram + lam * torch.eye(len(base)).to(gram))
        # G_s - rho^2 G_s W_s G_s = lambda W_s G_s
        left = lam * (of_states @ gram).sum(0)
        return cls(
            moments, lam, rho, base, inverse_of((left + left.mT) / 2 + base.diag()), of_states
        )

    def to(self, dtype: torch.dtype) -> System:
        """Return this system in another dtype."""
        base, inverse = self.base.to(dtype), self.inverse.to(dtype)
        of_states = None if self.of_states is None else self.of_states.to(dtype)
        return System(self.moments.to(dtype), self.lam, self.rho, base, inverse, of_states)

    def right_side(self) -> Tensor:
        cross = self.moments.cross
        return (
            cross.clone()
            if not self.rho
            else torch.cat([cross.sum(0, keepdim=True), self.rho * cross])
        )

    def product(self, w: Tensor) -> Tensor:
        """Without penalties: [1 + S, K, n]."""
        if not self.rho:
            return self.moments.product(w)
        products_of_states = self.moments.product(w[0] + self.rho * w[1:])
        return torch.cat([products_of_states.sum(0, keepdim=True), self.rho * products_of_states])

    def penalties(self, factor: Tensor) -> Tensor:
        """Return the penalty of each slope, [1 + S, K, n].

        factor [K, n]: what the penalties of each key are multiplied by.
        """
        shared = self.base[:, None] * factor
        if self.base[-1] == FREE:
            shared[-1] = FREE
        if self.of_states is None:
            return shared[None]
        return torch.cat([shared[None], (self.lam * factor).expand(len(self.of_states), -1, -1)])

    def precondition(self, rest: Tensor) -> Tensor:
        if self.of_states is None:
            return self.inverse @ rest
        # Of the states, rho G_s W_s = (1 - lambda W_s) / rho, so that W_s alone is multiplied by.
        answers = self.of_states @ rest[1:]
        shared = self.inverse @ (rest[0] - (rest[1:] - self.lam * answers).sum(0) / self.rho)
        moved = (shared - self.lam * (self.of_states @ shared)) / self.rho
        return torch.cat([shared[None], answers - moved])

    def without(self, w: Tensor, self_key: Tensor) -> Tensor:
        """Solutions w [K, n] of one state without the key `own` [n] of each target.

        self_key: -1 of a target that has all keys.
        """
        at = self_key.clamp(min=0)
        column = self.inverse[:, at] * (self_key >= 0)
        itself = torch.arange(len(w), device=self_key.device)[:, None] == self_key
        rest = w - column * (w.gather(0, at[None]) / self.inverse[at, at])
        return rest.masked_fill(itself, 0.0)  # not but for rounding


def inverse_of(matrix: Tensor) -> Tensor:
    """Of positive definite matrices [.., K, K]."""
    return torch.cholesky_inverse(torch.linalg.cholesky(matrix))


def conjugate_gradients(
    system: System,
    cross: Tensor,
    factor: Tensor,
    there: Tensor | None,
    start: Tensor,
    tolerance: float,
) -> Tensor:
    """w [1 + S, K, n] of `system` with penalties times factor [K, n], and 0 outside of `there`
    [K, n].

    As factors are mostly near 1, a few products take the place of a factorisation for each target.
    """
    penalties = system.penalties(factor)
    kept = torch.ones_like(factor) if there is None else there.to(factor)
    w = start * kept
    rest = (cross - system.product(w) - penalties * w) * kept
    least, size = tolerance * cross.square().sum((0, 1)), rest.square().sum((0, 1))
    tiny = torch.finfo(w.dtype).tiny
    way, before = torch.zeros_like(w), torch.ones_like(size)
    solution, left = torch.empty_like(w), torch.arange(w.shape[-1], device=w.device)
    for _ in range(ROUNDS):
        going = (size > least).nonzero()[:, 0]
        if not len(going):
            break
        if len(going) < STILL * len(left):  # the other targets have settled
            solution[..., left] = w
            left, least, before = left[going], least[going], before[going]
            w, rest, way, penalties, kept = (
                each[..., going] for each in (w, rest, way, penalties, kept)
            )
        near = system.precondition(rest) * kept
        now = (rest * near).sum((0, 1))
        way = near + way * (now / before)
        moved = (system.product(way) + penalties * way) * kept
        step = now / (way * moved).sum((0, 1)).clamp(min=tiny)
        w, rest, before = w + step * way, rest - step * moved, now.clamp(min=tiny)
        size = rest.square().sum((0, 1))
    solution[..., left] = w
    return solution


def operations(states: int, keys: int, rounds: int) -> float:
    """Multiplications that a target takes, roughly, by so many rounds of conjugate gradients."""
    return float(rounds * keys**2 * (1 if states == 1 else 4 * states))
