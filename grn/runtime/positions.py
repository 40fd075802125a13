"""Rows and columns of sparse matrices as SciPy has them: signed."""

from __future__ import annotations

from typing import Any

from scipy import sparse


def signed_positions(matrix: Any) -> Any:
    """Return a CSR or CSC matrix with its positions signed, its values not copied; anything else as
    it is.

    AnnData stores unsigned ones, of as few bytes as possible, where its
    `settings.write_csr_csc_indices_with_min_possible_dtype` is on, and reads them back as such.
    SciPy warns of them, and cannot sum duplicates among them.
    Raises ValueError for positions that do not match the shape.
    """
    if not sparse.issparse(matrix) or matrix.format not in ("csr", "csc"):
        return matrix
    if "u" not in (matrix.indices.dtype.kind, matrix.indptr.dtype.kind):
        return matrix
    return type(matrix)((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
