"""Why cells are called what they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from grn.verbs.checked import Positive, checked
from grn.verbs.given_cells import checked_anndata, is_anndata
from grn.verbs.predict import model_for
from grn.verbs.run import Run

if TYPE_CHECKING:
    import pandas as pd
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
    """Which genes speak for the cell type that a cell is called, and which against it.

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
    from grn.analysis.explain import explain_types
    from grn.analysis.labels import refuse_unused
    from grn.analysis.predict import pieces_of, without_counts
    from grn.cells.readers.registry import open_source

    trained, config = model_for(
        run, cells, counts=counts, gene_key=gene_key, orientation=orientation
    )
    names = dict(map or {})
    refuse_unused(names, trained.classes)
    source = checked_anndata(cells if is_anndata(cells) else open_source(config))
    (read,) = pieces_of(source, trained, config, None).pieces()
    empty = int(without_counts(read).sum())
    for line in () if quiet else (read.counts_from, *read.notes):
        print(line, flush=True)
    if empty and not quiet:
        print(
            f"{empty} of {len(read)} cells have none of the model's genes: there is nothing to "
            "explain.",
            flush=True,
        )
    return explain_types(trained, read, names=names, cell_type=cell_type, cell=cell, most=sample)
