"""Matrices as descriptors, from which kernels read tiles; what lies outside of a matrix reads as zero."""

from __future__ import annotations

from torch import Tensor

from flashsign.triton.common.layout import UncheckedDescriptor


def tiles_of(matrix: Tensor, rows: int, columns: int) -> UncheckedDescriptor:
    """Tiles [rows, columns] of a contiguous matrix whose rows are multiples of 16 bytes (dispatch.fold_widths)."""
    return UncheckedDescriptor(matrix, list(matrix.shape), [matrix.shape[1], 1], [rows, columns])
