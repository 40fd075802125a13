"""Direct effects: the part of an association that goes through other regulators is estimated and taken out.

A regulator's count says with noise how much of it there is, and the other regulators know some of the rest. So A keeps
an effect on C in a chain A -> B -> C although B is read beside it: A tells what the count of B missed. Two signed
layers in succession describe that:

    first    b~ = (1 - a_b) m_b + a_b sum_j p_bj m_j       how much there is of b: its count, and what the others say
    second   y_i = sum_b d_ib b~                           the direct effects

p_bj is the network of the regulators among themselves. a_b is the part that counting makes of what they leave of the
variance of b: with Gaussian levels and noise, b~ is then the expectation of the level. A layer that was fitted to the
counts has the *total* effects of both, w_ij = (1 - a_j) d_ij + sum_b d_ib a_b p_bj, and (1 - a_j) d_ij is the direct
one. To solve this for d exactly lets the noise of every weight into it (docs/decisions/signed-layers.md). So only paths
count of which both ends are certain, as the knock-offs see it (c, 0 to 1), and they take no more than all of a weight:

    direct_ij = w_ij - sum_b c_ib direct_ib a_b / (1 - a_b) c_bj p_bj          between 0 and w_ij

which is iterated, from direct = w on: of A -> B -> C, B is then less and less explained by A.

Letters: C cells, N genes, R regulators.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

ITERATIONS = 4
MOST = 0.8  # of a: else all that is associated with a rare regulator would be taken to pass through it


@dataclass(frozen=True)
class Paths:
    """certain [N, R], 0 to 1: that a regulator and a target are associated.   by_counting [R]: a_b, 0 to MOST.
    own [R]: the gene that each regulator is.   sd [R]: of each regulator, as the target that it is, too, in its unit as
    a regulator.
    """

    certain: Tensor
    by_counting: Tensor
    own: Tensor
    sd: Tensor

    def direct(self, total: Tensor) -> Tensor:
        """The direct effects [N, R] of total ones, which are for one unit of the regulator, in sds of the target."""
        certain, total_of = self.certain.to(self.sd), total.to(self.sd)
        among = self.sd[:, None] * (certain * total_of)[self.own]
        passed_on = certain * (self.by_counting / (1 - self.by_counting))
        found = total_of
        for _ in range(ITERATIONS):
            rest = total_of - (passed_on * found) @ among
            found = torch.where(total_of > 0, rest.clamp(min=0).minimum(total_of), rest.clamp(max=0).maximum(total_of))
        return found.to(total)

    def in_units(self, factor: Tensor) -> Paths:
        """The same where the units of the regulators are larger by the factor [R]."""
        return replace(self, sd=self.sd / factor)


@dataclass(frozen=True)
class PathsByState:
    """together: those over all states.   of_states: those in each."""

    together: Paths
    of_states: list[Paths]

    def direct(self, total: Tensor) -> Tensor:
        """The direct effects of total ones in each state, [K, N, R]."""
        return torch.stack([paths.direct(each) for paths, each in zip(self.of_states, total, strict=True)])


def share_of_counting(m: Tensor, cells: Tensor, noise: Tensor, among: Tensor) -> Tensor:
    """a_b [R]: the noise over the variance that the other regulators leave of each.

    m [C, R]: in units.   cells [C]: the share of each cell, which sum to 1.   noise [R]: mean variance by counting, in
    squared units.   among [R, R]: what one unit of a regulator (column) adds to another (row), in units.
    """
    rest = m - cells @ m
    rest = rest - rest @ among.mT
    left = cells @ rest.square()
    return (noise / left.clamp(min=1e-12)).clamp(max=MOST).where(left > 1e-12, torch.zeros_like(left))
