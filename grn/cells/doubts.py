"""Sentences about counts and names of cells that are accepted, and are seldom what they seem.

Letters: C cells, N genes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from scipy import sparse

FEWEST = 10  # cells, and values, of which all are alike, that no longer look like chance
ONE_DEPTH = 0.005  # sd of the totals in means of them
OF_SUMS = re.compile(r"(grand[ _.]?|col(umn)?[ _.]?)?(totals?|sums?)|mean|average", re.IGNORECASE)


def doubtful_counts(counts: sparse.csr_matrix) -> list[str]:
    """Sentences about counts [C, N] of all genes of the data: none is above 1, or all cells have nearly one total."""
    total = np.asarray(counts.sum(axis=1, dtype=np.float64)).ravel()
    total = total[total > 0]
    if counts.nnz >= FEWEST and counts.max() <= 1:
        return [
            "No count is above 1, as in matrices that only say whether a gene was seen; if that is so, give the raw "
            "counts."
        ]
    if len(total) >= FEWEST and total.std() <= ONE_DEPTH * total.mean():
        return [
            f"All cells have nearly the same total ({total.min():.0f} to {total.max():.0f}), as counts that were "
            "downsampled, or scaled to one depth and rounded; of the second kind, give the raw counts."
        ]
    return []


def doubtful_cells(names: Iterable[str]) -> list[str]:
    """A sentence about cells that are named like sums over cells, as the last row of a table may be."""
    found = [name for name in names if OF_SUMS.fullmatch(name.strip())]
    if not found:
        return []
    return [
        f"{len(found)} cells are named like a sum of others ({found[0]!r}) and count as cells; remove these rows if "
        "they are none."
    ]
