"""The split of cells into training, validation and test: every cell is in exactly one part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import GroupShuffleSplit

from grn.errors import ConfigError, DataError

MANY = 20  # cells; of fewer, each may well be of another type


@dataclass(frozen=True)
class Split:
    """The rows of each part, int64, sorted; the parts are disjoint and together hold all cells."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def split_cells(
    labels: np.ndarray, groups: np.ndarray | None, validation_fraction: float, test_fraction: float, seed: int
) -> Split:
    """A split that is stratified by `labels` [C] or, with `groups` [C], keeps each group in one part.

    Cells without a label (-1) are a stratum, too. Raises ConfigError, and DataError where cells or groups are too few.
    """
    if validation_fraction + test_fraction >= 1:
        raise ConfigError(
            f"data.validation_fraction {validation_fraction} and data.test_fraction {test_fraction} leave no cell for "
            "training; their sum must stay below 1."
        )
    split = (
        _stratified(labels, validation_fraction, test_fraction, seed)
        if groups is None
        else _grouped(groups, validation_fraction, test_fraction, seed)
    )
    for name, part, fraction in (
        ("validation", split.validation, validation_fraction),
        ("test", split.test, test_fraction),
    ):
        if fraction > 0 and part.size == 0:
            strata = np.unique(labels).size
            if labels.size >= MANY and 3 * strata > labels.size:
                raise DataError(
                    f"No cell is left for {name}: the column of data.label_key has {strata} labels for {labels.size} "
                    "cells, which are no cell types; set data.label_key to another column, or to null."
                )
            raise DataError(
                f"No cell is left for {name}: {labels.size} cells are too few to split; use more cells."
                if strata == 1
                else f"No cell is left for {name}: {labels.size} cells with {strata} labels are too few to split: all "
                "cells of a label with one or two cells are for training; use more cells, or data.label_key: null."
            )
    return split


def _stratified(labels: np.ndarray, validation_fraction: float, test_fraction: float, seed: int) -> Split:
    """Each part gets its share of every stratum, and at least one cell of each stratum of three or more.

    scikit-learn's StratifiedShuffleSplit refuses strata this small and may leave a part without a rare type.
    """
    generator = np.random.default_rng(seed)
    if labels.size == 0:
        raise DataError("The data hold no cells; give other data.")
    parts: tuple[list, list, list] = ([], [], [])
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        spare = members.size - 1  # at least one cell is for training
        test = min(_share(test_fraction, members.size), max(spare - (validation_fraction > 0), 0))
        validation = min(_share(validation_fraction, members.size), spare - test)
        ends = [members.size - test - validation, members.size - test]
        for part, rows in zip(parts, np.split(members, ends), strict=True):
            part.append(rows)
    return Split(*(np.sort(np.concatenate(part)) for part in parts))


def _share(fraction: float, size: int) -> int:
    """Number of cells for a fraction of a stratum; strata of fewer than three cells are not divided."""
    return max(round(fraction * size), 1) if fraction > 0 and size >= 3 else 0


def _grouped(groups: np.ndarray, validation_fraction: float, test_fraction: float, seed: int) -> Split:
    """A split of whole groups; the fractions are of groups, not of cells."""
    wanted = 1 + (validation_fraction > 0) + (test_fraction > 0)
    count = np.unique(groups).size
    if count < wanted:
        raise DataError(
            f"The number of groups in the column of data.group_key is {count}, but the split needs {wanted}; set "
            f"data.group_key: null{', or data.test_fraction: 0' if count == 2 else ''}."
        )
    rest, test = _divide(np.arange(groups.size), groups, test_fraction, seed, leave=wanted - (test_fraction > 0))
    validation_fraction /= 1 - test_fraction
    train, validation = _divide(rest, groups, validation_fraction, seed + 1, leave=1)
    return Split(train, validation, test)


def _divide(
    rows: np.ndarray, groups: np.ndarray, fraction: float, seed: int, leave: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the groups that stay and of those that are taken; at least one is taken, and at least `leave` stay."""
    if fraction == 0:
        return rows, rows[:0]
    count = np.unique(groups[rows]).size
    taken = int(np.clip(round(fraction * count), 1, count - leave))
    splitter = GroupShuffleSplit(1, test_size=taken, random_state=seed)
    stay, take = next(splitter.split(rows, groups=groups[rows]))
    return rows[stay], rows[take]
