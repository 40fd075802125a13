"""Numbers of cells in obsm: embeddings and activities."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from grn.errors import DataError


def numbers_in_obsm(values: object, key: str) -> np.ndarray:
    """What obsm[key] holds, an array, a sparse matrix or a table, as float64. Raises DataError for what are no finite
    numbers.
    """
    try:
        dense = values.toarray() if sparse.issparse(values) else values  # type: ignore[attr-defined]
        if np.asarray(dense).dtype.kind in "bcMm":
            raise TypeError
        found = np.asarray(dense, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"obsm[{key!r}] holds no numbers; compute it again.") from None
    if not np.isfinite(found).all():
        raise DataError(f"obsm[{key!r}] has values that are not finite; compute it again.")
    return found
