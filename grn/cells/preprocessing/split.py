"""The split of cells into training and test: every cell is in one part, with its copies and its
group.

Letters: C cells, N genes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import GroupShuffleSplit

from grn.cells.preprocessing.multiplicity import weighted_sums
from grn.runtime.errors import DataError

MANY = 20  # cells; of fewer, each may well be of another type
GENES = 20  # detected genes of a cell that no other cell equals by chance
# Share of such cells that may equal another one. Expression has more: simulated states without
# noise, repeated samples.
SHARE = {"counts": 0.01, "expression": 0.1}


@dataclass(frozen=True)
class Split:
    """The rows of each part, int64, sorted; the parts are disjoint and together hold all cells."""

    train: np.ndarray
    test: np.ndarray


def copies_of(values: sparse.csr_matrix, kind: str = "counts") -> np.ndarray | None:
    """`first_equal`; None where no more cells equal another one than by chance.

    kind: `data.values`.
    """
    found = first_equal(values)
    large = np.diff(values.indptr) >= GENES
    return found if is_copy(found)[large].sum() > SHARE[kind] * large.sum() else None


def distinct_cells(values: sparse.csr_matrix) -> np.ndarray:
    """The rows of cells [C, N] of which none is a copy of another; of cells with few detected
    genes, all.
    """
    return np.flatnonzero(
        (first_equal(values) == np.arange(values.shape[0])) | (np.diff(values.indptr) < GENES)
    )


def first_equal(values: sparse.csr_matrix) -> np.ndarray:
    """The row of the first cell that is equal to each cell, int64 [C].

    values: CSR [C, N] with sorted indices. Cells without values are equal to none.
    """
    _, first, place = np.unique(marks_of(values), return_index=True, return_inverse=True)
    return np.where(np.diff(values.indptr) > 0, first[place], np.arange(values.shape[0]))


def marks_of(values: sparse.csr_matrix) -> np.ndarray:
    """A number for each cell, float64 [C], that two cells share if all their values are equal, else
    by chance alone (2^-52): the sum of their values, each times a random number of its gene.

    values: CSR [C, N] with sorted indices.
    """
    return weighted_sums(values, np.random.default_rng(0).random(values.shape[1]))


def is_copy(copies: np.ndarray) -> np.ndarray:
    """Which cells equal another one, bool [C]. copies: see first_equal."""
    return np.bincount(copies, minlength=len(copies))[copies] > 1


def joined(groups: np.ndarray | None, copies: np.ndarray | None) -> np.ndarray | None:
    """Numbers of the groups, int64 [C], where groups with copies of the same cell are one; None
    without either.
    """
    if groups is None or copies is None:
        return copies if groups is None else groups
    cells = np.arange(len(groups))
    names, group = np.unique(groups, return_inverse=True)
    start = np.concatenate([group, len(names) + copies])  # nodes: groups, then cells
    graph = sparse.coo_matrix((np.ones(len(start)), (start, np.tile(len(names) + cells, 2))))
    graph.resize(*[len(names) + len(cells)] * 2)
    return connected_components(graph, directed=False)[1][len(names) :].astype(np.int64)


def split_cells(
    labels: np.ndarray,
    groups: np.ndarray | None,
    test_fraction: float,
    seed: int,
    copies: np.ndarray | None = None,
) -> Split:
    """A split that is stratified by `labels` [C] or, with `groups` [C], keeps each group in one
    part.

    Cells without a label (-1) are a stratum, too.
    copies: see copies_of; they stay in one part.
    Raises DataError where cells or groups are too few.
    """
    together = None if groups is None else joined(groups, copies)
    if together is not None:
        count = np.unique(together).size
        if count < 1 + (test_fraction > 0):
            problem = (
                f"The number of groups in the column of {{field}} is {count}, but the split needs 2"
            )
            raise DataError(
                problem,
                field="data.group_key",
                advice="set {field} to null, or data.test_fraction to 0",
            )
        # The fraction is of groups, not of cells.
        split = Split(*_divide(np.arange(together.size), together, test_fraction, seed))
    elif copies is not None:
        rows, number = np.unique(copies, return_inverse=True)
        once = _stratified(labels[rows], test_fraction, seed)
        split = Split(*(np.flatnonzero(np.isin(number, part)) for part in (once.train, once.test)))
    else:
        split = _stratified(labels, test_fraction, seed)
    if test_fraction and not split.test.size:
        problem = (
            f"{labels.size} cells with {np.unique(labels).size} labels are too few to split, as a "
            "label with one "
        )
        problem += "or two cells is for training alone"
        advice = "use more cells, or set {field} to a column with cell types or to null"
        raise DataError(problem, field="data.label_key", advice=advice)
    return split


def _stratified(labels: np.ndarray, test_fraction: float, seed: int) -> Split:
    """The test cells are a share of every stratum, and at least one cell of each stratum of three
    or more.

    scikit-learn's StratifiedShuffleSplit refuses strata this small and may leave a part without a
    rare type.
    """
    generator = np.random.default_rng(seed)
    train, test = [], []
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        # one cell is for training
        first = members.size - min(_share(test_fraction, members.size), members.size - 1)
        train.append(members[:first])
        test.append(members[first:])
    return Split(*(np.sort(np.concatenate(part)) for part in (train, test)))


def _share(fraction: float, size: int) -> int:
    """Number of cells for a fraction of a stratum; strata of fewer than three cells are not
    divided.
    """
    return max(round(fraction * size), 1) if fraction > 0 and size >= 3 else 0


def _divide(
    rows: np.ndarray, groups: np.ndarray, fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the groups that stay and of those that are taken; at least one is taken, and at least
    one stays.
    """
    if fraction == 0:
        return rows, rows[:0]
    count = np.unique(groups).size
    taken = int(np.clip(round(fraction * count), 1, count - 1))
    splitter = GroupShuffleSplit(1, test_size=taken, random_state=seed)
    stay, take = next(splitter.split(rows, groups=groups))
    return rows[stay], rows[take]
