"""Rows and columns of sparse matrices as SciPy has them: signed."""

from __future__ import annotations

from typing import TypeVar

from scipy import sparse

Matrix = TypeVar("Matrix", sparse.csr_matrix, sparse.csc_matrix)


def signed_positions(matrix: Matrix) -> Matrix:
    """Return a CSR or CSC matrix with its positions signed, its values not copied.

    AnnData stores unsigned ones, of as few bytes as possible, where its
    `settings.write_csr_csc_indices_with_min_possible_dtype` is on, and reads them back as such.
    SciPy warns of them, and cannot sum duplicates among them.
    Raises ValueError for positions that do not match the shape.
    """
    if "u" not in (matrix.indices.dtype.kind, matrix.indptr.dtype.kind):
        return matrix
    parts = (matrix.data, matrix.indices, matrix.indptr)
    return type(matrix)(parts, shape=matrix.shape)
