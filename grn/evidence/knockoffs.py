"""Knock-off regulators, and linear fits that read them beside the real ones.

A knock-off has the multiplicities of its regulator, moved to other cells of the same state and
donor: it correlates with other regulators, and with their knock-offs, as its own regulator does.
The fit reads regulators and knock-offs side by side, under one penalty; targets stay as they are,
and no knock-off is a target. A pair stands out only where its regulator predicts the target beyond
what the cell's state, its donor, the depth, the scores of programmes that are regressed out and the
other regulators predict together.

This does not control false *causes*: a regulator that was not measured, or measured with noise,
leaves what it explains to those that correlate with it (Kernfeld et al. 2024).
benchmarks/false_discovery.py measures how much that is. Sources: knock-offs, Candes et al. 2018;
their independent shares, Spector and Janson 2022.

Letters: C cells, N genes, R regulators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grn.evidence.cell_table import CellTable
from grn.evidence.linear import Columns, slopes_on, without
from grn.evidence.regressions import columns_of, held_out_penalty, sampled
from grn.evidence.sorting import ascending, ascending_order
from grn.model.regulation import LIMIT

ROUNDS, SETTLED = (
    100,
    1e-4,
)  # of the search for the independent shares: most rounds, and the least relative gain
# cells per regulator: with at least so many, correlations are taken as measured, without shrinkage
ENOUGH = 5
# added to correlations, so that regulators which never vary leave the matrix positive definite
RIDGE = 1e-3
READ_ONCE = 2**27  # numbers of targets that a processor keeps in memory for all draws
CHANCE = 2e10  # multiplications that the search for the largest correlation by chance may take
BASAL_POWERS = 3  # of the basal gene's multiplicity that a regulator's mean may follow

Draws = Callable[[Tensor, Tensor, np.ndarray, torch.Generator], Iterator[Tensor]]


def fits_with_knockoffs(
    table: CellTable, *, seed: int, draws: Draws | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each draw of knock-offs, without end, a linear fit: the slopes of regulators and of
    knock-offs, [N, R] each.

    Slopes are for an sd of the regulator within strata, in sds of the target, and the same in all
    states.
    draws: in place of `knockoffs`.
    """
    read = Read.of(table, seed)
    rows, rest, real, own = read.rows, read.rest, read.values, torch.as_tensor(table.regulators)
    here, scores = rows.cpu().numpy(), table.scores[rows]
    x = read.standardised(real)
    y, own = columns_of(table, rows, x).each(rest), own.to(x.device)
    # a GPU has the GiB that they are at most (`sampled`)
    if x.is_cuda or y.shape[0] * y.shape[1] <= READ_ONCE:
        y = Columns.of(y.read(slice(None)))
    # One penalty for all targets: a target that seems to depend on the real regulators by chance
    # would choose a smaller one, and with it have larger slopes than those of knock-offs elsewhere.
    penalty = held_out_penalty(table, x, y, rows)
    basal = torch.as_tensor(table.basal[here], device=table.device)
    powers = basal[:, None].double() ** torch.arange(1, BASAL_POWERS + 1, device=table.device)
    followed = torch.cat([powers, scores.double()], 1)
    products = torch.cat([x.mT @ values for _, values in y.blocks()], 1)
    for false in (draws or knockoffs)(
        real, followed, read.stratum, torch.Generator(table.device).manual_seed(seed)
    ):
        both = torch.cat([x, read.standardised(false)], 1)
        slopes = slopes_on(both, y, own, penalty, products)
        yield slopes[:, : len(own)], slopes[:, len(own) :]


@dataclass(frozen=True)
class Read:
    """What a fit reads of a table: some cells, of whose genes only what their strata, depth and
    programmes leave counts.

    rows [C]: of the table.
    stratum [C]: see strata_of.
    rest: values [C, V] -> what is left of them.
    values [C, R]: multiplicities of the regulators.
    mean, sd [R].
    """

    rows: Tensor
    stratum: np.ndarray
    rest: Callable[[Tensor], Tensor]
    values: Tensor
    mean: Tensor
    sd: Tensor

    @classmethod
    def of(cls, table: CellTable, seed: int) -> Read:
        rows, own = sampled(table, seed), torch.as_tensor(table.regulators)
        here = rows.cpu().numpy()
        stratum = strata_of(table)[here]
        levels = torch.as_tensor(stratum[:, None] == np.unique(stratum), device=table.device)
        depth, scores = table.inputs[rows, -1:], table.scores[rows]
        known = [table.membership[rows], levels, depth - depth.mean(), scores - scores.mean(0)]
        values = table.values(table.regulators)[rows]
        units = (each[own].to(table.device) for each in (table.mean, table.sd))
        return cls(rows, stratum, without(torch.cat(known, 1)), values, *units)

    def standardised(self, values: Tensor) -> Tensor:
        """What is left of the regulators' multiplicities [C, R], in its own sds."""
        return unit_columns(self.rest(((values - self.mean) / self.sd).clamp(max=LIMIT)))


def unit_columns(values: Tensor) -> Tensor:
    """values [C, V] with mean 0, each column in its root mean square."""
    return values / values.square().mean(0).sqrt().clamp(min=1e-6)


def strongest_by_chance(table: CellTable, pairs: Tensor, *, seed: int, draws: int) -> float:
    """The largest correlation, over pairs and draws, of genes with regulators whose values are
    permuted within strata; both without what strata, depth and programmes say of them.

    Genes that few cells have correlate by chance far more than those that most have.
    pairs [N, R]: bool.
    draws: at most so many; where they take more than CHANCE multiplications, fewer.
    """
    read, largest = Read.of(table, seed), 0.0
    draws = int(np.clip(CHANCE // (len(read.rows) * pairs.numel()), 1, draws))
    order, generator = Order.of(read.values, read.stratum), torch.Generator(table.device)
    generator.manual_seed(seed)
    permuted = []
    for _ in range(draws):
        noise = torch.rand(read.values.shape, generator=generator, device=table.device)
        permuted.append(read.standardised(order(noise)))
    columns = columns_of(table, read.rows, read.values).each(read.rest)
    for some, values in columns.blocks():
        y = unit_columns(values) / len(values)
        for x in permuted:
            found = (y.mT @ x).abs().masked_fill(~pairs[some], 0)
            largest = max(largest, float(found.max()))
    return largest


def strata_of(table: CellTable) -> np.ndarray:
    """Return the stratum of each cell, int64 [C]: its state (the one it belongs to most) and, where
    it has one, its donor.
    """
    state, groups = table.states.argmax(1), table.groups
    # copies of cells that were left out
    if groups is None or len(np.unique(groups)) == len(groups):
        return state
    return np.unique(np.stack([state, groups]), axis=1, return_inverse=True)[1].reshape(-1)


def knockoffs(
    values: Tensor, followed: Tensor, strata: np.ndarray, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield draws without end of values [C, R], each column permuted within strata into the order
    of a Gaussian knock-off.

    The means that follow from stratum, depth and programmes stay. Around them, the knock-offs
    correlate among each other and with the other regulators as the regulators themselves do.
    followed [C, F]: what means follow, powers of the basal gene's multiplicity and scores of
    programmes; strata [C]: the number of each.
    """
    from sklearn.covariance import ledoit_wolf

    levels = torch.as_tensor(strata[:, None] == np.unique(strata), device=values.device)
    rest = without(torch.cat([levels, followed.double()], 1))(values.double())
    expected = values - rest
    spread = rest.std(0, correction=0)
    spread[spread < 1e-6] = 1
    rest /= spread
    if len(rest) >= ENOUGH * rest.shape[1]:  # shrunken, they would make too weak a null
        correlation = rest.mT @ rest / len(rest)
    else:
        correlation = torch.as_tensor(ledoit_wolf(rest.cpu().numpy(), assume_centered=True)[0]).to(
            rest
        )
    one = torch.eye(len(correlation)).to(rest)
    correlation += RIDGE * one
    size = correlation.diagonal().sqrt()
    correlation /= size[:, None] * size
    share = independent_shares(correlation)
    kept = torch.linalg.solve(correlation, share.diag())  # S^-1 diag(s)
    root = torch.linalg.cholesky(2 * share.diag() - share[:, None] * kept + 1e-8 * one)
    # of draws, only the order counts
    kept_part = (expected + spread * (rest - rest @ kept)).float()
    order, spread_root = Order.of(values, strata), (spread * root.mT).float()
    while True:
        noise = torch.randn(rest.shape, generator=generator, device=rest.device)
        yield order(torch.addmm(kept_part, noise, spread_root))


@dataclass(frozen=True)
class Order:
    """The values of each stratum: its cells, [c], and their values in ascending order, [R, c]."""

    ascending: list[tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, values: Tensor, strata: np.ndarray) -> Order:
        """values [C, R]; strata [C]."""
        every = (
            torch.as_tensor(np.flatnonzero(strata == one), device=values.device)
            for one in np.unique(strata)
        )
        return cls([(cells, ascending(values[cells].mT.contiguous())) for cells in every])

    def __call__(self, drawn: Tensor) -> Tensor:
        """Return the values [C, R], each column sorted into the order of the same column of `drawn`
        within strata.
        """
        moved = torch.empty_like(drawn, dtype=self.ascending[0][1].dtype)
        for cells, sorted_values in self.ascending:
            order = ascending_order(drawn[cells].mT.contiguous())
            moved[cells] = torch.empty_like(sorted_values).scatter_(1, order, sorted_values).mT
        return moved


def independent_shares(correlation: Tensor) -> Tensor:
    """s [R], 0 to 1: the share of its variance that each knock-off does not have in common with its
    regulator.

    correlation S [R, R]: float64, positive definite. s minimises tr((2 S - diag s)^-1) + sum 1 / s.
    The gradient is 0 where s_j^-2 is the j-th diagonal element of (2 S - diag s)^-2. This is
    iterated, with shorter steps where a whole one would increase the loss or leave the cone of
    valid s. Source: Spector and Janson 2022.
    """
    twice = 2 * correlation
    share = twice.new_full((len(twice),), min(1.0, float(torch.linalg.eigvalsh(twice)[0]) / 2))

    def inverse(share: Tensor) -> tuple[Tensor, float]:
        factor, failed = torch.linalg.cholesky_ex(twice - share.diag())
        if failed:  # not positive definite: no valid share
            return twice, float("inf")
        inverted = torch.cholesky_inverse(factor)
        return inverted, float(inverted.trace() + (1 / share).sum())

    inverted, loss = inverse(share)
    for _ in range(ROUNDS):
        wanted = 1 / inverted.norm(dim=0)
        for step in (1.0, 0.5, 0.25, 0.1, 0.01):
            trial = (share ** (1 - step) * wanted**step).clamp(max=1.0)
            trial_inverted, trial_loss = inverse(trial)
            if trial_loss < loss:
                break
        else:
            break
        settled = loss - trial_loss < SETTLED * loss
        share, inverted, loss = trial, trial_inverted, trial_loss
        if settled:
            break
    return share
