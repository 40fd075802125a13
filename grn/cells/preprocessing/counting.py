"""The noise of counting: how much of a multiplicity's variance is there because transcripts were counted.

Letters: C cells, R genes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse


@dataclass(frozen=True)
class Counting:
    """How the counts of cells became multiplicities.

    unit [C], float64: what one count of the cell adds to exp(multiplicity) - 1; None: multiplicities are the counts.
    """

    unit: np.ndarray | None

    def variance(self, multiplicity: sparse.csr_matrix) -> sparse.csr_matrix:
        """An estimate of each multiplicity's variance by counting, whose mean over cells is what is of use: CSR
        float32 [C, R], of multiplicities CSR [C, R].

        For a count c of a Poisson distribution and any f, the mean of c (f(c) - f(c - 1))^2 is at least the variance
        of f(c), and equal to it where f is linear (the Poincare inequality of the Poisson distribution); for log1p of
        counts around 1 it is larger by a twentieth.
        """
        if self.unit is None:
            return multiplicity
        unit = np.repeat(self.unit, np.diff(multiplicity.indptr))
        above = np.expm1(multiplicity.data.astype(np.float64))  # count times unit
        step = multiplicity.data - np.log1p(np.maximum(above - unit, 0))
        noise = (above / unit * np.square(step)).astype(np.float32)
        return sparse.csr_matrix((noise, multiplicity.indices, multiplicity.indptr), shape=multiplicity.shape)
