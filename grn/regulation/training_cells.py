"""The cells that a regulation layer is fitted on, with everything that the fit reads of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from grn.cells.cells import Cells


@dataclass(frozen=True)
class TrainingCells:
    """C cells over N genes, R of them regulators.

    multiplicity: CSR float32 [C, N].   basal [C]: multiplicity of each cell's basal gene, which carries its sequencing
    depth.   rows: positions of the cells that are fitted; the others are never read.   regulators: vocabulary positions
    [R].   mean, sd [N]: of every gene, the unit of the targets.   groups [C]: number of each cell's donor or batch,
    whose cells are held out together; None: none are tied.   states: float32 [C, K], how much each cell belongs to each
    state, which sums to 1; None: all cells have one state.
    """

    multiplicity: sp.csr_matrix
    basal: np.ndarray
    rows: np.ndarray
    regulators: np.ndarray
    mean: Tensor
    sd: Tensor
    groups: np.ndarray | None = None
    states: np.ndarray | None = None

    @classmethod
    def of(
        cls, cells: Cells, rows: np.ndarray, mean: Tensor, sd: Tensor, states: np.ndarray | None = None
    ) -> TrainingCells:
        """The cells `rows` of a data set. Where it names no regulators, every gene may regulate."""
        genes = len(cells.vocabulary)
        regulators = np.arange(genes) if cells.regulators is None else cells.regulators
        return cls(cells.multiplicity, cells.basal, rows, regulators, mean, sd, cells.groups, states)

    def memberships(self) -> np.ndarray:
        """The states, float32 [C, K]; one for all cells where there are none."""
        return np.ones((len(self.basal), 1), np.float32) if self.states is None else self.states

    def only_fitted(self) -> TrainingCells:
        """The same without the cells that are not in `rows`."""
        every = np.array_equal(self.rows, np.arange(len(self.basal)))
        return replace(
            self,
            multiplicity=self.multiplicity if every else self.multiplicity[self.rows],
            basal=self.basal[self.rows],
            rows=np.arange(len(self.rows)),
            groups=self.fitted_groups(),
            states=None if self.states is None else self.states[self.rows],
        )

    def fitted_groups(self) -> np.ndarray | None:
        """The group of each cell in `rows`; None where all are of one group, so that there is nothing to keep apart."""
        if self.groups is None:
            return None
        groups = self.groups[self.rows]
        return groups if (groups != groups[0]).any() else None
