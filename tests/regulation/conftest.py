"""Cells as regressions read them."""

import numpy as np
import pytest
import scipy.sparse as sp

from grn.regulation.cell_table import CellTable


def table_of(values: np.ndarray, states: np.ndarray, regulators, *, basal=None, pooled=False, **known) -> CellTable:
    """values [C, N] and states [C, S], or the number of each cell's state [C]."""
    membership = states if states.ndim == 2 else np.eye(states.max() + 1)[states]
    basal = np.ones(len(values)) if basal is None else basal
    cells = sp.csr_matrix(values.astype(np.float32)), basal.astype(np.float32), membership.astype(np.float32)
    return CellTable(*cells, np.asarray(regulators), pooled=pooled, **known)


@pytest.fixture(scope="session")
def make_table():
    return table_of
