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
    """Return the row of the first cell that is equal to each cell (see first_equal), or None where
    no more cells equal another one than by chance.

    values: CSR [C, N].
    kind: `data.values`.
    """
    found = first_equal(values)
    large = np.diff(values.indptr) >= GENES
    return found if is_copy(found)[large].sum() > SHARE[kind] * large.sum() else None


def distinct_cells(values: sparse.csr_matrix) -> np.ndarray:
    """Return the rows of cells of which none is a copy of another. Cells with few detected genes
    are all kept, as they may be equal by chance.

    values: CSR [C, N].
    """
    return np.flatnonzero(
        (first_equal(values) == np.arange(values.shape[0])) | (np.diff(values.indptr) < GENES)
    )


def first_equal(values: sparse.csr_matrix) -> np.ndarray:
    """Return the row of the first cell that is equal to each cell, int64 [C].

    values: CSR [C, N] with sorted indices. Cells without values are equal to none.
    """
    _, first, place = np.unique(marks_of(values), return_index=True, return_inverse=True)
    return np.where(np.diff(values.indptr) > 0, first[place], np.arange(values.shape[0]))


def marks_of(values: sparse.csr_matrix) -> np.ndarray:
    """Return a number for each cell, float64 [C], which two cells share if all their values are
    equal, and else by chance alone (2^-52): the sum of the values, each times a random number of
    its gene.

    values: CSR [C, N] with sorted indices.
    """
    return weighted_sums(values, np.random.default_rng(0).random(values.shape[1]))


def is_copy(copies: np.ndarray) -> np.ndarray:
    """Return which cells equal another one, bool [C]. copies [C]: see first_equal."""
    return np.bincount(copies, minlength=len(copies))[copies] > 1


def joined(groups: np.ndarray | None, copies: np.ndarray | None) -> np.ndarray | None:
    """Join groups that have copies of one cell; return the number of each cell's group, int64 [C].

    groups [C]: numbers; None: each cell and its copies are a group.
    copies [C]: see first_equal; None: no cell is a copy. None is returned where both are None.
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
    """Split cells into training and test.

    labels [C]: numbers, -1 without a label. Each label has its share of both parts, and so have the
        cells without one.
    groups [C]: numbers; each group stays in one part, and labels do not count. None: no groups.
    test_fraction: of the cells, or of the groups.
    copies [C]: see copies_of; the copies of a cell stay in one part.
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
    """Take a share of the cells with each label as test cells, at least one of three or more.

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
    """Return how many cells of a label are test cells: none of fewer than three."""
    return max(round(fraction * size), 1) if fraction > 0 and size >= 3 else 0


def _divide(
    rows: np.ndarray, groups: np.ndarray, fraction: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Divide groups: return the rows of the groups that stay, and of the groups that are taken, at
    least one of each.

    groups: the number of each row's group.
    fraction: of the groups that are taken; 0: none is.
    """
    if fraction == 0:
        return rows, rows[:0]
    count = np.unique(groups).size
    taken = int(np.clip(round(fraction * count), 1, count - 1))
    splitter = GroupShuffleSplit(1, test_size=taken, random_state=seed)
    stay, take = next(splitter.split(rows, groups=groups))
    return rows[stay], rows[take]
