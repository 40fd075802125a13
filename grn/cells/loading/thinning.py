"""Cells as they would be with fewer counts: binomial thinning, which is sequencing the same cell
less deeply.

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

    normalised: whether a count's unit is over the cell's total, which is smaller after thinning.
    depth_sd: of the log totals; None: the basal multiplicity does not tell the depth.
    """

    normalised: bool
    depth_sd: float | None

    @classmethod
    def of(cls, cells: Cells, multiplicity: str) -> Thinning | None:
        """None where there are no counts. multiplicity: as in DataConfig."""
        if cells.counting is None:
            return None
        return cls(
            multiplicity == "log1p_normalised", None if cells.depth is None else cells.depth[1]
        )

    def thinned(
        self, rows: Rows, share: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Multiplicities [B, N] and basal multiplicities [B] of cells that keep a share [B] of
        their counts, each count with this probability; a cell with the share 1 is as it was.
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
    """The share of its counts that each cell keeps, [cells]: 1 for a share `whole` of the cells,
    for the others log-uniform between `least` and 1.
    """
    drawn, chance = (
        torch.rand(cells, generator=generator, device=generator.device) for _ in range(2)
    )
    return torch.where(chance < whole, 1.0, torch.exp(math.log(least) * drawn))
