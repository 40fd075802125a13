"""Every cell in exactly one of three parts: training, validation, test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import GroupShuffleSplit

from grn.errors import ConfigError, DataError


@dataclass(frozen=True)
class Split:
    """Rows of the cells of each part, sorted; disjoint, and together all cells."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def split_cells(
    labels: np.ndarray, groups: np.ndarray | None, validation_fraction: float, test_fraction: float, seed: int
) -> Split:
    """Stratified by `labels` (-1, missing, is a stratum too), or with each group whole in one part."""
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
            kinds = np.unique(labels).size
            raise DataError(
                f"No cell is left for {name}: {labels.size} cells are too few to split; use more."
                if kinds == 1
                else f"No cell is left for {name}: {labels.size} cells with {kinds} labels are too few to split, as a "
                "label of one or two cells only trains; use more cells, or data.label_key: null."
            )
    return split


def _stratified(labels: np.ndarray, validation_fraction: float, test_fraction: float, seed: int) -> Split:
    """Each part gets its share of every stratum, and at least one cell of a stratum of three or more.

    scikit-learn's StratifiedShuffleSplit refuses strata this small and may leave a part without a rare type.
    """
    generator = np.random.default_rng(seed)
    if labels.size == 0:
        raise DataError("The data hold no cells; choose another file (data.path).")
    parts: tuple[list, list, list] = ([], [], [])
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        spare = members.size - 1  # one cell always trains
        test = min(_share(test_fraction, members.size), max(spare - (validation_fraction > 0), 0))
        validation = min(_share(validation_fraction, members.size), spare - test)
        ends = [members.size - test - validation, members.size - test]
        for part, rows in zip(parts, np.split(members, ends), strict=True):
            part.append(rows)
    return Split(*(np.sort(np.concatenate(part)) for part in parts))


def _share(fraction: float, size: int) -> int:
    """Whole cells for a fraction of a stratum; strata under three cells are not divided."""
    return max(round(fraction * size), 1) if fraction > 0 and size >= 3 else 0


def _grouped(groups: np.ndarray, validation_fraction: float, test_fraction: float, seed: int) -> Split:
    """The fractions are of groups, not of cells."""
    wanted = 1 + (validation_fraction > 0) + (test_fraction > 0)
    count = np.unique(groups).size
    if count < wanted:
        raise DataError(
            f"data.group_key has {count} group(s) and the split needs {wanted}; set data.group_key: null, or "
            "data.validation_fraction or data.test_fraction to 0."
        )
    rest, test = _divide(np.arange(groups.size), groups, test_fraction, seed, leave=wanted - (test_fraction > 0))
    validation_fraction /= 1 - test_fraction
    train, validation = _divide(rest, groups, validation_fraction, seed + 1, leave=1)
    return Split(train, validation, test)


def _divide(
    rows: np.ndarray, groups: np.ndarray, fraction: float, seed: int, leave: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the groups that stay and of those that are taken: a fraction, at least one, `leave` stay."""
    if fraction == 0:
        return rows, rows[:0]
    count = np.unique(groups[rows]).size
    taken = int(np.clip(round(fraction * count), 1, count - leave))
    splitter = GroupShuffleSplit(1, test_size=taken, random_state=seed)
    stay, take = next(splitter.split(rows, groups=groups[rows]))
    return rows[stay], rows[take]
