"""A table of cells as ridge regressions read it: some of its cells, their folds, and the penalty
that these choose.

Knock-offs are fitted beside their regulators by such regressions.

Letters: C cells, N genes, R regulators.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grn.evidence.cell_table import CellTable
from grn.evidence.folds import cell_folds
from grn.evidence.linear import Columns, choose_penalty

FOLDS = 5
LEAST = 4096  # cells that are always read
DENSE = 2**28  # numbers that a regression may read of its targets
WORK = 2**37  # products that a fit with knock-offs may sum


def held_out_penalty(table: CellTable, x: Tensor, y: Columns, rows: Tensor) -> float:
    """`choose_penalty` (linear.py) for the cells `rows` of a table, in the same folds whatever the
    seed of a run.
    """
    own = torch.as_tensor(table.regulators, device=x.device)
    return choose_penalty(x, y, own, folds_of(table, rows, 0).to(x.device))


def folds_of(table: CellTable, rows: Tensor, seed: int) -> Tensor:
    """Return the fold of each of the cells `rows`; no group is in two. Without groups, surplus
    cells are in the last one.
    """
    groups = None if table.groups is None else table.groups[rows.cpu().numpy()]
    groups = groups if groups is not None and (groups != groups[0]).any() else None
    order, fold, folds = cell_folds(len(rows), groups, FOLDS, torch.Generator().manual_seed(seed))
    if groups is None:
        fold[len(rows) - len(rows) % folds :] = folds - 1
    return torch.empty_like(fold).scatter_(0, order, fold)


def sampled(table: CellTable, seed: int) -> Tensor:
    """At most so many of the cells that a linear fit has room for their targets, and time for its
    products.
    """
    genes, features = table.multiplicity.shape[1], 2 * len(table.regulators)
    most = max(min(DENSE // genes, WORK // (features * (features + genes))), LEAST)
    rows = torch.arange(len(table))
    if len(rows) > most:
        rows = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[
            :most
        ].sort()[0]
    return rows.to(table.device)


def columns_of(table: CellTable, rows: Tensor, like: Tensor) -> Columns:
    """Return the genes of the cells `rows`, in the dtype of `like`."""
    whole = table.columns(like)
    return Columns((len(rows), whole.shape[1]), lambda some: whole.read(some)[rows])
