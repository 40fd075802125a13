"""Any expression matrix (dense, CSR or CSC, in memory or on disk) as one clean CSR matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import h5py
import numpy as np
import zarr
from anndata.abc import CSCDataset, CSRDataset
from scipy import sparse

from grn.cells.readers import reading
from grn.runtime.positions import signed_positions

AnyMatrix: TypeAlias = (
    "np.ndarray | sparse.spmatrix | sparse.sparray | Stored | CSRDataset | CSCDataset"
)
Stored: TypeAlias = "h5py.Dataset | zarr.Array[Any]"
DENSE = (h5py.Dataset, zarr.Array)  # what a dense matrix in a file is
GAP = 64  # rows between two wanted ones up to which both are read at once, with those between them
ROWS = 4096  # cells that are read from disk at a time
ALL = slice(None)  # rows
# numbers that are read from disk at a time where cells are wanted in pieces, if a piece has fewer
STORED = 4_000_000


def to_csr(values: AnyMatrix, where: str) -> sparse.csr_matrix:
    """Return a copy of values [C, N] as CSR [C, N] with sorted indices, duplicate entries summed
    and no stored zeros, float32 or, of wider numbers, float64.

    where: their name in messages.
    Raises DataError for a damaged matrix.
    """
    blocks = list(csr_pieces(values, where))
    return blocks[0] if len(blocks) == 1 else sparse.vstack(blocks, format="csr")


def csr_pieces(
    values: AnyMatrix, where: str, rows: int | None = None, some: slice = ALL
) -> Iterator[sparse.csr_matrix]:
    """Yield values [C, N] as clean CSR (see `to_csr`), in pieces of consecutive cells.

    Of a matrix on disk, a piece at a time is in memory, unless it is stored by columns.

    where: the name of the values in messages.
    rows: cells of a piece, of which the last one may have fewer; None: pieces of any size.
    some: the cells that are wanted; all are read of a matrix that is stored by columns.
    Raises DataError for a damaged matrix.
    """
    with reading(f"{where} cannot be read", "make the matrix, or write it, again", field=None):
        for block in _blocks(values, rows, some):
            clean = _clean(block)
            if rows is None or clean.shape[0] <= rows:
                yield clean
            else:
                yield from (clean[start : start + rows] for start in range(0, clean.shape[0], rows))


class StoredRows(NamedTuple):
    """Rows as a file stores them.

    value (float32), column (int32): of the stored numbers, one row after another.
    size: how many of them each row has.
    place (int32): of each row among the R rows that were asked for; R for a row between these.
    """

    value: np.ndarray
    column: np.ndarray
    size: np.ndarray
    place: np.ndarray


def rows_of(
    values: CSRDataset | Stored,
    where: str,
    rows: np.ndarray,
    ends: np.ndarray | None,
    empty: Callable[..., np.ndarray] = np.empty,
) -> StoredRows:
    """Read some rows of a matrix that a file stores by rows, with rows between them that are
    cheaper to read than to skip.

    where: the name of the matrix in messages.
    rows [R]: sorted positions.
    ends: the row pointers of a sparse matrix; None: the matrix is dense.
    empty: makes the arrays of values and columns, as np.empty does.
    Raises DataError for a damaged matrix.
    """
    with reading(f"{where} cannot be read", field=None):
        near = np.split(rows, np.flatnonzero(np.diff(rows) > GAP) + 1)
        spans = [slice(int(each[0]), int(each[-1]) + 1) for each in near]
        read = np.concatenate([np.arange(span.start, span.stop) for span in spans])
        at = np.searchsorted(rows, read)
        place = np.where(rows[at] == read, at, len(rows)).astype(np.int32)
        if ends is None:
            block = sparse.csr_matrix(
                np.concatenate([values[span] for span in spans]), dtype=np.float32
            )
            return StoredRows(block.data, block.indices, np.diff(block.indptr), place)
        stored = [slice(int(ends[span.start]), int(ends[span.stop])) for span in spans]
        count = sum(part.stop - part.start for part in stored)
        value, column = empty(count, dtype=np.float32), empty(count, dtype=np.int32)
        for source, found in zip(arrays_of(values), (value, column), strict=True):
            _read(source, stored, found)
        if len(column) and not 0 <= column.min() <= column.max() < values.shape[1]:
            raise ValueError("it has positions outside of the matrix")
        return StoredRows(value, column, ends[read + 1] - ends[read], place)


def _read(source: Stored, parts: list[slice], found: np.ndarray) -> None:
    """Read parts of a one-dimensional array in a file into `found`, one after the other.

    HDF5 reads all of them in one call: Python's lock, which is taken and given back around every
    call, is what threads of a training run wait for.
    """
    if isinstance(source, h5py.Dataset) and len(found):
        places = source.id.get_space()
        places.select_none()
        for part in parts:
            if part.stop > part.start:
                places.select_hyperslab(
                    (part.start,), (part.stop - part.start,), op=h5py.h5s.SELECT_OR
                )
        source.id.read(h5py.h5s.create_simple((len(found),)), places, found)
        return
    first = 0
    for part in parts:
        size = part.stop - part.start
        found[first : first + size] = source[part]
        first += size


def arrays_of(values: CSRDataset) -> tuple[Any, Any]:
    """Return the arrays of values and of columns of a matrix on disk."""
    return values.group["data"], values.group["indices"]


def _blocks(values: AnyMatrix, rows: int | None, some: slice) -> Iterator[Any]:
    """Yield a dense matrix, or one on disk, in blocks of rows, so that no copy of all of it is
    made; any other matrix as one block.

    rows: the size of a block is a multiple of it, except the last one's; None: any size.
    some: see csr_pieces.
    """
    # in a column-wise file, the values of a cell are scattered over all of it
    if isinstance(values, CSCDataset):
        check_pointers(values)
        yield values.to_memory()
    elif isinstance(values, CSRDataset):
        yield from _rows_of(values, rows, some)
    elif isinstance(values, (*DENSE, np.ndarray)) and values.ndim == 2:
        step = ROWS if rows is None else rows * max(1, STORED // (rows * max(values.shape[1], 1)))
        yield from (values[span] for span in _spans(values, step, some))
    elif rows is not None and isinstance(values, (sparse.csr_matrix, sparse.csr_array)):
        values = checked(values)
        yield from (values[span] for span in _spans(values, rows, some))
    else:
        yield values


def _spans(values: AnyMatrix, step: int, some: slice) -> Iterator[slice]:
    """Yield spans of `step` rows, the last one shorter; one of no rows where there are none."""
    first, end, _ = some.indices(values.shape[0])
    for start in range(first, max(end, first + 1), step):
        yield slice(start, min(start + step, end))


def _rows_of(values: CSRDataset, rows: int | None, some: slice) -> Iterator[sparse.csr_matrix]:
    """Yield blocks of rows from the stored arrays: AnnData's own slicing would use indices before
    they are checked.

    rows, some: see _blocks.
    """
    ends = check_pointers(values)
    start, end, _ = some.indices(values.shape[0])
    last = max(end, start + 1)
    while start < last:
        stop = start + ROWS
        if rows is not None:
            fitting = int(np.searchsorted(ends, ends[start] + STORED, side="right")) - 1 - start
            stop = start + rows * max(1, fitting // rows)
        own = ends[start : min(stop, end) + 1]
        data, indices = (of[own[0] : own[-1]] for of in arrays_of(values))
        yield sparse.csr_matrix(
            (data, indices, own - own[0]), shape=(own.size - 1, values.shape[1])
        )
        start = stop


def check_pointers(values: CSRDataset | CSCDataset) -> np.ndarray:
    """Return the row (or column) pointers of a matrix on disk.

    Raises ValueError where they do not fit the matrix.
    """
    data, indices, indptr = (values.group[name] for name in ("data", "indices", "indptr"))
    check_kind(indices, indptr)
    ends = indptr[:]
    sizes = ends.size == values.shape[isinstance(values, CSCDataset)] + 1 and ends[-1] <= min(
        data.size, indices.size
    )
    if not sizes or ends[0] != 0 or (np.diff(ends) < 0).any():
        raise ValueError("its row pointers do not match its shape")
    return ends


def checked(matrix: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return a CSR or CSC matrix in memory, its positions signed.

    Raises ValueError for positions outside of it.
    """
    check_kind(matrix.indices, matrix.indptr)
    matrix = signed_positions(matrix)
    matrix.check_format(full_check=True)
    return matrix


def check_kind(*positions: Any, kinds: str = "iu") -> None:
    """Raise ValueError for arrays with another kind of values: SciPy would cut fractions of indices
    off.

    kinds: of NumPy's dtypes: i and u, integers; f, floats.
    """
    if odd := [array.dtype for array in positions if array.dtype.kind not in kinds]:
        raise ValueError(
            f"it has values of type {odd[0]} where {'whole ' if kinds == 'iu' else ''}numbers "
            "belong"
        )


def _clean(block: Any) -> sparse.csr_matrix:
    """Return a checked copy of a block as clean CSR (see to_csr)."""
    if not sparse.issparse(block):
        block = np.asarray(block)
    check_kind(block, kinds="fiu")
    if sparse.issparse(block) and block.format in ("csr", "csc"):
        block = checked(block)  # before a conversion uses these indices
    matrix = sparse.csr_matrix(
        block, copy=True, dtype=np.float64 if block.dtype.itemsize > 4 else np.float32
    )
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix
