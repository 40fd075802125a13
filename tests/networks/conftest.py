"""Cells whose networks are read."""

import numpy as np
import pytest
from scipy import sparse

from grn.cells.cells import Cells
from grn.evidence.states import States

GENES = tuple(f"g{gene}" for gene in range(12))


def some_cells(
    count: int = 9, states: int = 1, regulators=(0, 3, 5), soft: bool = True
) -> tuple[Cells, States]:
    """Multiplicities of 12 genes, a third of them 0, and states, to which cells belong in part if
    `soft`.
    """
    generator = np.random.default_rng(4)
    values = generator.gamma(2.0, 1.0, (count, 12)) * (generator.random((count, 12)) < 0.7)
    share = generator.random((count, states)) if soft else np.eye(states)[np.arange(count) % states]
    share = (share / share.sum(1, keepdims=True)).astype(np.float32)
    cells = Cells(
        multiplicity=sparse.csr_matrix(values.astype(np.float32)),
        vocabulary=GENES,
        regulators=None if regulators is None else np.array(regulators),
        labels=share.argmax(1),
        classes=tuple("abc"[:states]),
        obs_names=np.arange(count).astype(str),
        basal=generator.uniform(0.5, 1.5, count).astype(np.float32),
        depth=None,
        measures_depth=np.ones(12, bool),
        depth_share=np.full(12, 1 / 12),
        target_total=None,
        counts_from="drawn",
    )
    return cells, States(share, tuple("abc"[:states]), "labels" if states > 1 else "one")


@pytest.fixture
def make_cells():
    return some_cells
