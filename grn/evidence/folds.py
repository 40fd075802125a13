"""Folds of cells, for ensemble members and for penalties: no donor or batch is in two."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def cell_folds(
    count: int, groups: np.ndarray | None, folds: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, int]:
    """Return a random order of the cells, the fold of each cell in this order, both int64 [count],
    and the number of folds.

    groups: of each cell, at least two, which stay together and of which no fold is empty; None:
        each cell by itself.
    """
    order = torch.randperm(count, generator=generator)
    if groups is None:
        folds = min(folds, count)
        return order, torch.arange(count) % folds, folds
    folds = min(folds, len(np.unique(groups)))
    return order, torch.as_tensor(group_folds(groups, folds))[order], folds


def group_folds(groups: np.ndarray, folds: int) -> np.ndarray:
    """Return the fold of each cell [C], 0 to folds - 1, the same for all of a group [C]; no fold is
    empty.

    Groups are placed from the largest to the smallest, each in the fold that has the fewest cells
    so far. Fold 0, on which penalties may be chosen alone, is the one whose size is nearest to the
    mean.
    """
    _, group_of, size = np.unique(groups, return_inverse=True, return_counts=True)
    cells = np.zeros(folds, dtype=np.int64)
    fold = np.empty(len(size), dtype=np.int64)
    for group in np.argsort(-size, kind="stable"):
        fold[group] = cells.argmin()
        cells[fold[group]] += size[group]
    number = np.empty(folds, dtype=np.int64)
    number[np.argsort(np.abs(cells - cells.mean()), kind="stable")] = np.arange(folds)
    return number[fold[group_of]]
