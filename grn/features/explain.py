"""Return the genes that speak for the cell type that a cell is called, and those against it.

A gene's effect is the log odds of the type, against all other types, minus the same with the gene
hidden: above 0 the gene speaks for the type. A constant in all logits changes no odds.

Letters: N genes, K cell types.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from grn.bags import Bags
from grn.cells.cells import Cells
from grn.features.arguments.checked import Positive, checked
from grn.features.arguments.given_cells import checked_anndata, is_anndata
from grn.features.predict.api import model_for
from grn.features.predict.labels import merged
from grn.features.predict.predictions import predict_cells, without_counts
from grn.features.run import Run
from grn.model.regulation import Model
from grn.model.saved import TrainedModel
from grn.runtime.errors import ConfigError, DataError, check_known
from grn.runtime.messages import show

if TYPE_CHECKING:
    from anndata import AnnData


@checked()
def explain(
    cells: AnnData | str | os.PathLike[str],
    run: Run | str | os.PathLike[str],
    *,
    cell_type: str | None = None,
    cell: str | None = None,
    map: Mapping[str, str] | None = None,
    sample: Positive = 50,
    counts: str | None = None,
    gene_key: str | None = None,
    orientation: Literal["cells_by_genes", "genes_by_cells"] | None = None,
    quiet: bool = False,
) -> pd.DataFrame:
    """Return the genes that speak for the cell type that a cell is called, and those against it.

    A gene's effect is the change of the type's log odds, against all other types, when the gene is
    hidden from the model. Genes that tell several types from the rest do little for each of these:
    give `map` one name for them. `grn.plots.cell_type_genes` draws the table.

    Args:
        cells: as for `grn.predict`.
        run: the run whose model calls them.
        cell_type: explain the calls of this type alone; None: of every type that some cell is
            called.
        cell: explain the call of this cell, by its name in obs, for the type that it is called, or
            for `cell_type`.
        map: other names for cell types, as for `grn.predict`.
        sample: how many cells of a type are read, drawn from those that are called so.
        counts: as for `grn.predict`.
        gene_key: as for `grn.predict`.
        orientation: as for `grn.predict`.
        quiet: print nothing; otherwise what was found of the model's genes, in a few lines.

    Returns:
        A row for each type and gene, those that speak for the type most first: `cell_type`, `gene`,
        `effect` (mean over the cells; above 0: for the type), `agreement` (share of the cells in
        which the effect has that sign), `expressed` (share of the cells with the gene), `cells`
        (how many were read).

    Raises:
        ConfigError: the model calls no cell types.
        DataError: no such cell or cell type, no counts, no cell that is called so, and what
            `grn.predict` raises.

    Source: arXiv 2505.09326; hiding a gene is the masking that the model was trained with.

    Examples:
        >>> import anndata, numpy, grn
        >>> counts = numpy.random.default_rng(0).poisson(2.0, (100, 20)).astype("float32")
        >>> counts[::2, 3] += 9  # the gene that tells a from b
        >>> adata = anndata.AnnData(counts, obs={"type": ["a", "b"] * 50})
        >>> run = grn.train(adata, label="type", max_steps=50, set={"model.members": 2}, quiet=True)
        >>> grn.explain(adata, run, cell_type="a", quiet=True)["gene"][0]
        '3'
    """
    from grn.cells.readers.registry import open_source
    from grn.features.predict.labels import refuse_unused
    from grn.features.predict.predictions import pieces_of, without_counts

    trained, config = model_for(
        run, cells, counts=counts, gene_key=gene_key, orientation=orientation
    )
    names = dict(map or {})
    refuse_unused(names, trained.classes)
    source = checked_anndata(cells if is_anndata(cells) else open_source(config))
    (read,) = pieces_of(source, trained, config, None).pieces()
    empty = int(without_counts(read).sum())
    for line in () if quiet else (read.counts_from, *read.notes):
        show(line)
    if empty and not quiet:
        show(
            f"{empty} of {len(read)} cells have none of the model's genes: there is nothing to "
            "explain."
        )
    return explain_types(trained, read, names=names, cell_type=cell_type, cell=cell, most=sample)


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

    names: other names for types (see grn.features.predict.labels.merged).
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
