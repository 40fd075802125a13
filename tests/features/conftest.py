"""Cells of the run that the tests share."""

from __future__ import annotations

import pytest

from grn.cells.simulated.cells import simulate


@pytest.fixture
def adata(run):
    """The cells of the run."""
    return simulate(run.config.data.simulated)
