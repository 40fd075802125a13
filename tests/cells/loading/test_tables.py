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
gpu = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
)


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_of_a_table_is_used_again_only_when_steps_have_read_it():
    def filled(number: float) -> Table:
        values = sparse.csr_matrix(np.full((500, 400), number, np.float32))
        return tables.beside_steps(
            lambda: Table.of(values, np.ones(500, np.float32), None, "cuda"), "cuda"
        )

    table = filled(1.0)
    torch.cuda._sleep(2 * 10**9)  # a second, in which the GPU has no time to read it
    read = table.value.clone()
    del table
    others = [filled(2.0) for _ in range(3)]
    assert not torch.cuda.current_stream().query(), "these did not wait"
    assert (read == 1).all() and all((each.value == 2).all() for each in others)
