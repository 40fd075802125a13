"""The cells that a regulation layer is fitted on, and all that the fit knows of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from grn.data.cells import Cells


@dataclass(frozen=True)
class FitCells:
    """C cells over N genes, R of them regulators.

    multiplicity: CSR float32 [C, N].   basal [C]: multiplicity of each cell's basal gene, which carries its depth.
    weight [C]: how much a cell counts.   rows: positions of the cells that are fitted, the others are never read.
    regulators: vocabulary positions [R].   mean, sd [N]: of the targets.
    groups [C]: a number per donor or batch, whose cells are held out together; None: each cell by itself.
    """

    multiplicity: sp.csr_matrix
    basal: np.ndarray
    weight: np.ndarray
    rows: np.ndarray
    regulators: np.ndarray
    mean: Tensor
    sd: Tensor
    groups: np.ndarray | None = None

    @classmethod
    def of(cls, cells: Cells, rows: np.ndarray, mean: Tensor, sd: Tensor) -> FitCells:
        """Some cells of a data set; every gene may regulate where it names no regulators."""
        genes = len(cells.vocabulary)
        regulators = np.arange(genes) if cells.regulators is None else cells.regulators
        return cls(cells.multiplicity, cells.basal, cells.weight, rows, regulators, mean, sd, cells.groups)

    def alone(self) -> FitCells:
        """The cells in `rows` without the others."""
        return replace(
            self,
            multiplicity=self.multiplicity[self.rows],
            basal=self.basal[self.rows],
            weight=self.weight[self.rows],
            rows=np.arange(len(self.rows)),
            groups=self.fitted_groups(),
        )

    def fitted_groups(self) -> np.ndarray | None:
        """The group of each cell in `rows`; None where no two of them differ: there is then nothing to keep apart."""
        if self.groups is None:
            return None
        found = self.groups[self.rows]
        return found if (found != found[0]).any() else None
