"""Which cells each member of the regulation layer holds out: one fold of several, and no group is in two of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def held_out_cells(
    rows: np.ndarray, groups: np.ndarray | None, held_out: Sequence[int], folds: int, generator: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """Rows to train on and rows held out, a pair per member: the fold `held_out[p]` of `folds` (counted round).

    groups: of each row, at least two different ones; None: cells are dealt one by one. With fewer groups (or cells)
    than `folds` there are as many folds as groups.
    """
    order = torch.randperm(len(rows), generator=generator)
    shuffled = torch.as_tensor(rows)[order]
    if groups is None:
        folds = min(folds, len(rows))
        fold = torch.arange(len(rows)) % folds
        # All members learn from the same number of cells.
        most, least = max(len(rows) - len(rows) // folds - 1, 1), len(rows) // folds
    else:
        folds = min(folds, len(np.unique(groups)))
        fold = torch.as_tensor(group_folds(groups, folds))[order]
        most = least = len(rows)
    training = [shuffled[fold != k % folds][:most] for k in held_out]
    return training, [shuffled[fold == k % folds][:least] for k in held_out]


def group_folds(groups: np.ndarray, folds: int) -> np.ndarray:
    """The fold of each cell [C], 0 to folds - 1, the same for all of a group [C]; no fold is empty.

    The largest group first, each into the fold that holds the fewest cells. The fold nearest to an equal share of the
    cells is number 0: the one that penalties are chosen on, where a huge donor would leave little to train on and a
    tiny one little to judge by.
    """
    _, place, size = np.unique(groups, return_inverse=True, return_counts=True)
    filled = np.zeros(folds, dtype=np.int64)
    fold = np.empty(len(size), dtype=np.int64)
    for group in np.argsort(-size, kind="stable"):
        fold[group] = filled.argmin()
        filled[fold[group]] += size[group]
    number = np.empty(folds, dtype=np.int64)
    number[np.argsort(np.abs(filled - filled.mean()), kind="stable")] = np.arange(folds)
    return number[fold[place]]


def padded(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows of different numbers as one table [P, V], and which of its entries count, bool [P, V].

    What fills a shorter part up is its own last row: no other cell is read, whatever it holds.
    """
    place = torch.arange(max(map(len, parts)))
    rows = torch.stack([part[place.clamp(max=len(part) - 1)] for part in parts])
    return rows, torch.stack([place < len(part) for part in parts])
