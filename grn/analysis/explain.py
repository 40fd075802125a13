"""Which genes speak for the cell type that a cell is called, and which against it.

A gene's effect is the log odds of the type, against all other types, minus the same with the gene
hidden: above 0 the gene speaks for the type. A constant in all logits changes no odds.

Letters: N genes, K cell types.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from grn.analysis.labels import merged
from grn.analysis.predict import predict_cells, without_counts
from grn.bags import Bags
from grn.cells.cells import Cells
from grn.errors import ConfigError, DataError, check_known
from grn.model.regulation import Model
from grn.model.saved import TrainedModel


def explain_types(
    trained: TrainedModel,
    cells: Cells,
    *,
    names: dict[str, str],
    cell_type: str | None = None,
    cell: str | None = None,
    most: int = 50,
) -> pd.DataFrame:
    """A row for each type and gene, those that speak for the type most first; grn.explain describes
    the columns.

    names: other names for types (see grn.analysis.labels.merged).
    cell: of this cell alone, for the type that it is called, or for `cell_type`.
    Raises ConfigError, DataError.
    """
    if not trained.classes:
        raise ConfigError(
            "This model calls no cell types; train it again with labels (data.label_key)."
        )
    wanted = tuple(sorted({names.get(name, name) for name in trained.classes}))
    if cell_type is not None:
        check_known(cell_type, wanted, "The model", "cell type", "cell_type")
    empty = without_counts(cells)
    rows = np.flatnonzero(~empty)
    if cell is not None:
        rows = np.flatnonzero((cells.obs_names == cell) & ~empty)[:1]
        if not len(rows):
            first = str(cells.obs_names[0])
            raise DataError(
                f"No cell {cell!r} has any of the model's genes; the first is {first!r}.",
                field="cell",
            )
    if cell is not None and cell_type is not None:
        called = np.array([wanted.index(cell_type)])
    else:
        probabilities = predict_cells(trained, cells.multiplicity, cells.basal).probabilities
        assert probabilities is not None, "the model has cell types"
        called = merged(probabilities, trained.classes, names)[0].argmax(1)[rows]
    generator = np.random.default_rng(0)
    tables = []
    for number, name in enumerate(wanted):
        own = rows[called == number]
        if (cell_type is not None and name != cell_type) or not len(own):
            continue
        own = np.sort(generator.permutation(own)[:most])
        of_type = torch.tensor([names.get(each, each) == name for each in trained.classes])
        tables.append(_table(trained.model, cells, own, of_type, name, trained.vocabulary))
    if not tables:
        raise DataError(
            f"No cell is called {cell_type or 'anything'!r}, so there is no call to explain."
        )
    return pd.concat(tables, ignore_index=True)


@torch.no_grad()
def _table(
    model: Model, cells: Cells, rows: np.ndarray, of_type: Tensor, name: str, genes: Sequence[str]
) -> pd.DataFrame:
    """The rows of one type. of_type: bool [K]."""
    effects, device = [], model.mean.device
    for row in rows:
        x = torch.from_numpy(cells.multiplicity[row].toarray()).to(device)
        basal = torch.tensor(cells.basal[[row]], device=device)
        z = model.identity.standardised(x)
        if model.reads_the_blocks:  # the identity token reads the genes after the blocks
            m = model.inputs(x[:, model.is_regulator], basal)
            z = z + model.expected(m, model.states_of(Bags(x, basal), m)).mean(0)
        whole = model.identity(x, z)[1]
        hidden = model.identity.without_each(x[0], z[0])
        effects.append(log_odds(whole, of_type) - log_odds(hidden, of_type))
    found = torch.stack(effects).cpu()
    mean = found.mean(0)
    columns = {
        "cell_type": name,
        "gene": list(genes),
        "effect": mean.numpy(),
        "agreement": (found.sign() == mean.sign()).float().mean(0).numpy(),
        "expressed": np.asarray((cells.multiplicity[rows] > 0).mean(0)).ravel(),
        "cells": len(rows),
    }
    table = pd.DataFrame(columns)
    return table.sort_values("effect", ascending=False, kind="stable", ignore_index=True)


def log_odds(logits: Tensor, of_type: Tensor) -> Tensor:
    """Log odds of some types together, bool [K], against all others. logits [..., K] -> [...]."""
    return logits[..., of_type].logsumexp(-1) - logits[..., ~of_type].logsumexp(-1)
