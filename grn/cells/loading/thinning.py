"""Binomial thinning: cells with fewer counts, as if they had been sequenced less deeply.

Letters: B cells, N genes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from grn.cells.cells import Cells
from grn.cells.loading.tables import Rows
from grn.cells.preprocessing.multiplicity import LEAST, STEP


@dataclass(frozen=True)
class Thinning:
    """How the multiplicities of cells follow from their counts.

    normalised: whether counts are divided by the cell's total, which is smaller after thinning.
    depth_sd: sd of the log totals; None: the basal multiplicity does not follow the depth.
    """

    normalised: bool
    depth_sd: float | None

    @classmethod
    def of(cls, cells: Cells, multiplicity: str) -> Thinning | None:
        """Return the thinning of these cells; None where their values are not counts.

        multiplicity: as in DataConfig.
        """
        if cells.counting is None:
            return None
        return cls(
            multiplicity == "log1p_normalised", None if cells.depth is None else cells.depth[1]
        )

    def thinned(
        self, rows: Rows, share: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the multiplicities [B, N] and basal multiplicities [B] of cells with fewer counts.

        share [B]: the probability to keep each count of a cell; where it is 1, the cell stays as it
            is.
        """
        cell, value, basal, unit = rows.cell, rows.value, rows.basal, rows.unit
        counts = value if unit is None else torch.expm1(value) / unit[cell]
        counts = torch.binomial(counts.round(), share[cell], generator=generator)
        if unit is not None:
            counts = torch.log1p(counts * (unit / share if self.normalised else unit)[cell])
        whole = share == 1
        if self.depth_sd is not None:
            lower = (basal + STEP * share.log() / self.depth_sd).clamp(min=LEAST)
            basal = torch.where(whole, basal, lower)
        return rows.dense(torch.where(whole[cell], value, counts)), basal


def shares(cells: int, least: float, whole: float, generator: torch.Generator) -> Tensor:
    """Draw the share of its counts that each cell keeps, [cells].

    least: shares are log-uniform between this and 1.
    whole: the part of the cells that keep all counts.
    """
    drawn, chance = (
        torch.rand(cells, generator=generator, device=generator.device) for _ in range(2)
    )
    return torch.where(chance < whole, 1.0, torch.exp(math.log(least) * drawn))
