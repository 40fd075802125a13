"""Counts from log1p values: exactly, or not at all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from grn.cells.preprocessing.counts import read_expression
from grn.cells.preprocessing.recover import recovery
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError


def counts_with_a_one(
    seed: int, cells: int = 30, genes: int = 60, largest: float = 20
) -> np.ndarray:
    generator = np.random.default_rng(seed)
    counts = generator.poisson(generator.gamma(0.4, largest, (cells, genes)))
    counts[:, 0] = 1
    return counts


def recover(stored):
    """Counts, and the largest error."""
    values = sparse.csr_matrix(stored)
    how = recovery(lambda: [values], np.arange(values.shape[0]).take, "X")
    return how.counts(values), how.error


def logged(counts: np.ndarray, scale: float) -> np.ndarray:
    return np.log1p(counts * scale / np.maximum(counts.sum(axis=1, keepdims=True), 1))


@given(
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1e3, 1e4, 1e5]),
    decimals=st.sampled_from([None, 5, 4]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_recovering_undoes_normalising(seed, scale, decimals, dtype):
    counts = counts_with_a_one(seed)
    counts[seed % 30] = 0  # a cell without counts
    stored = logged(counts, scale).astype(dtype)
    stored = stored if decimals is None else np.round(stored, decimals)
    recovered, error = recover(stored)
    np.testing.assert_array_equal(recovered.toarray(), counts)
    assert error <= (6e-6 if decimals is None else 0.5 * 10.0**-decimals + 6e-6)


def test_pbmc68k_counts_give_its_raw_values_back():
    cells = pytest.importorskip("scanpy").datasets.pbmc68k_reduced()
    found = read_expression(cells, DataConfig(path="scanpy:pbmc68k_reduced", counts="recover"))
    counts = found.values.toarray()
    assert np.array_equal(counts, np.rint(counts)) and counts.max() > 100
    again = np.log1p(counts * 1e4 / cells.obs["n_counts"].to_numpy()[:, None])
    assert np.abs(again - cells.raw.X.toarray()).max() < 6e-4
    assert ".raw" in found.origin


def with_value(value: float) -> np.ndarray:
    stored = logged(counts_with_a_one(0), 1e4)
    stored[3, 1] = value
    return stored


@pytest.mark.parametrize(
    "values",
    [
        with_value(-1.0),
        with_value(np.nan),
        with_value(80.0),
        logged(2 * counts_with_a_one(0) + (counts_with_a_one(0) > 1), 1e4),
        0.1 * np.hstack([np.ones((50, 1)), np.random.default_rng(0).integers(0, 60, (50, 39))]),
        np.random.default_rng(0).gamma(1, 1, (50, 40)),
        np.round(np.random.default_rng(0).gamma(1, 1, (50, 40)), 3),
        np.sqrt(counts_with_a_one(0)),
        logged(counts_with_a_one(0), 1e4) / np.log(2),
    ],
)
def test_values_that_are_not_log1p_of_counts_are_refused(values):
    with pytest.raises(DataError):
        recover(values)


def test_pieces_of_cells_are_recovered_as_all_of_them():
    """Counts, error and the sentence about a cell that is wrong are the same to the last bit."""
    values = logged(np.random.default_rng(3).poisson(1.5, (50, 30)).astype(float), 1e4)
    values[:10] = 0  # a piece without any value
    names = np.array([f"c{i}" for i in range(50)]).take

    def recovered(size: int):
        pieces = [sparse.csr_matrix(piece) for piece in np.split(values, 50 // size)]
        how = recovery(lambda: pieces, names, "X")
        return how.error, sparse.vstack([how.counts(piece) for piece in pieces]).toarray()

    (error, counts), (in_parts, parts) = recovered(50), recovered(10)
    assert error == in_parts and np.array_equal(counts, parts)
    values[41, values[41].argmax()] += 0.01
    said = set()
    for size in (50, 10):
        with pytest.raises(DataError, match="in cell c41 ") as found:
            recovered(size)
        said.add(str(found.value))
    assert len(said) == 1
