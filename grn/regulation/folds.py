"""Which cells each ensemble member of the regulation layer holds out: one fold; no group is in two."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def held_out_cells(
    rows: np.ndarray, groups: np.ndarray | None, held_out: Sequence[int], folds: int, generator: torch.Generator
) -> tuple[list[Tensor], list[Tensor]]:
    """The rows that each member trains on, and the rows that it holds out: member p holds out fold `held_out[p]`.

    groups: of each row, at least two different ones; None: every cell is a group of its own. With fewer groups than
    `folds` there are as many folds as groups, and fold numbers past the last begin again with the first.
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

    Groups are placed from the largest to the smallest, each in the fold that has the fewest cells so far. Fold 0 is the
    one whose size is nearest to the mean. Penalties are chosen on it, where a very large donor would leave few cells to
    train on and a very small one few cells to validate on.
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


def padded(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Lists of rows of different lengths as one table [P, V], and which of its entries count, bool [P, V].

    A shorter list is padded with its own last row, so that no cell of another member is read, whatever it holds.
    """
    position = torch.arange(max(map(len, parts)))
    rows = torch.stack([part[position.clamp(max=len(part) - 1)] for part in parts])
    return rows, torch.stack([position < len(part) for part in parts])
