"""A digest of the cells that a run reads, by which a later command knows whether they are still the same.

It is over the values as they were read, not over multiplicities: logarithms differ in the last bit between processors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from scipy import sparse

from grn.cells.preprocessing.split import Split
from grn.config.schema import DataConfig


def digest_of_cells(
    values: sparse.csr_matrix,
    config: DataConfig,
    split: Split,
    names: tuple[Sequence[str], Sequence[str]],
    columns: Sequence[np.ndarray | None],
) -> str:
    """32 hex digits over everything that training reads from the cells.

    values: CSR float32 [C, N], as read, over the chosen genes.   config: of its fields, those that say how values
    become multiplicities.   names: genes and classes.   columns: labels, regulators and the like, or None.
    """
    found = hashlib.blake2b(digest_size=16)
    # Positions always have the same width, whatever width a reader has chosen for them.
    arrays = [values.indptr.astype(np.int64), values.indices.astype(np.int32, copy=False), values.data]
    arrays += [split.train, split.validation, split.test]
    for array in [*arrays, *columns]:
        found.update(b"none" if array is None else f"{array.dtype}{array.shape}".encode())
        if array is not None:
            found.update(np.ascontiguousarray(array).data)
    for texts in (*names, (config.values, config.multiplicity, config.depth)):
        found.update(repr(list(texts)).encode())
    return found.hexdigest()
