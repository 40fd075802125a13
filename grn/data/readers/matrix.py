"""Any expression matrix (dense, CSR or CSC, in memory or on disk) as one clean CSR matrix."""

from __future__ import annotations

from collections.abc import Iterator

import h5py
import numpy as np
from anndata.abc import CSCDataset, CSRDataset
from scipy import sparse

from grn.errors import DataError

ROWS = 4096  # cells that are read from disk at a time


def to_csr(values, where: str) -> sparse.csr_matrix:
    """`values` [C, N] as CSR with sorted indices, duplicate entries summed and no stored zeros. Always a copy.

    where: the matrix's name in messages. Raises DataError for indices outside the matrix, as in damaged files.
    """
    try:
        blocks = [_clean(block, where) for block in _blocks(values)]
    except (OSError, ValueError, IndexError, KeyError, RuntimeError, TypeError) as problem:
        raise DataError(f"{where} cannot be read ({problem}); the file is damaged: write it again.") from problem
    return blocks[0] if len(blocks) == 1 else sparse.vstack(blocks, format="csr")


def locate(values: sparse.csr_matrix, entry: int) -> tuple[int, int]:
    """Row and column of the stored value number `entry`."""
    return int(np.searchsorted(values.indptr, entry, side="right")) - 1, int(values.indices[entry])


def _blocks(values) -> Iterator:
    """A dense matrix, or one on disk, in blocks of rows, so that no copy is ever whole; any other as one block."""
    if isinstance(values, CSCDataset):  # in a column-wise file, the values of a cell are scattered over all of it
        yield values.to_memory()
    elif isinstance(values, CSRDataset):
        yield from _rows_of(values)
    elif isinstance(values, (h5py.Dataset, np.ndarray)) and values.ndim == 2:
        for start in range(0, max(values.shape[0], 1), ROWS):
            yield values[start : start + ROWS]
    else:
        yield values


def _rows_of(values: CSRDataset) -> Iterator[sparse.csr_matrix]:
    """Blocks of rows, from the stored arrays: AnnData's own slicing would use indices before they are checked."""
    data, indices, indptr = (values.group[name] for name in ("data", "indices", "indptr"))
    cells, genes = values.shape
    refuse_no_positions(indices, indptr)
    ends = indptr[:]
    if ends.size != cells + 1 or ends[0] != 0 or ends[-1] > data.size or (np.diff(ends) < 0).any():
        raise ValueError("its row pointers do not match its shape")
    for start in range(0, max(cells, 1), ROWS):
        own = ends[start : start + ROWS + 1]
        stored = slice(own[0], own[-1])
        yield sparse.csr_matrix((data[stored], indices[stored], own - own[0]), shape=(own.size - 1, genes))


def refuse_no_positions(*arrays) -> None:
    """Raises ValueError where indices or row pointers are no whole numbers: SciPy would cut fractions off."""
    for array in arrays:
        if array.dtype.kind not in "iu":
            raise ValueError(f"its indices are of type {array.dtype}, not whole numbers")


def _clean(block, where: str) -> sparse.csr_matrix:
    if np.ma.is_masked(block):
        raise DataError(f"{where} has masked values, which are neither counts nor zeros; fill them in first.")
    if not sparse.issparse(block):
        block = np.asarray(block)
    if block.dtype.kind not in "fiub":
        raise DataError(
            f"{where} holds values of type {block.dtype}; expression must be numbers: convert them, or set data.counts "
            "to another matrix."
        )
    if sparse.issparse(block) and block.format in ("csr", "csc"):
        refuse_no_positions(block.indices, block.indptr)
        block.check_format(full_check=True)  # before a conversion uses these indices
    matrix = sparse.csr_matrix(block, copy=True, dtype=np.float64 if block.dtype.itemsize > 4 else np.float32)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix
