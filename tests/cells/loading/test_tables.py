"""Rows of a table are those of the matrix, wherever the table lies."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from grn.cells.loading import tables
from grn.cells.loading.tables import Table

CELLS, GENES = 9, 5
gpu = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


def table_of(device: str, seed: int = 0) -> tuple[np.ndarray, Table]:
    random = np.random.default_rng(seed)
    values = random.poisson(0.5, (CELLS, GENES)).astype(np.float32)
    basal = random.random(CELLS).astype(np.float32)
    return values, Table.of(sparse.csr_matrix(values), basal, random.random(CELLS), device)


@pytest.mark.parametrize("device", ["cpu", gpu])
@given(rows=st.lists(st.integers(0, CELLS - 1), max_size=12), seed=st.integers(0, 3))
def test_rows_of_a_table_are_those_of_the_matrix(device, rows, seed):
    """In any order, more than once, none, and cells without entries."""
    values, table = table_of(device, seed)
    rows = np.array(rows, np.int64)
    found = table[rows]
    np.testing.assert_array_equal(found.dense(found.value).cpu(), values[rows])
    assert torch.equal(found.basal, table.basal[rows]) and torch.equal(found.unit, table.unit[rows])
    assert (found.value > 0).all() and (found.cell.diff() >= 0).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_table_that_would_take_the_memory_of_the_gpu_stays_on_the_host(monkeypatch):
    monkeypatch.setattr(tables, "SHARE", 0.0)
    assert table_of("cuda")[1].value.device.type == "cpu"
