"""The activity of regulators in cells, and how it differs between cell types and conditions."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np

from grn.features.arguments.checked import Positive, checked
from grn.features.arguments.given_cells import (
    checked_anndata,
    into_memory_where_view_of_file,
    is_anndata,
    writing_into_views,
)
from grn.features.given_networks import known_regulons
from grn.features.run import Run
from grn.runtime.messages import kept_in

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData


@checked({"data.path": "cells"})
def activity(
    cells: AnnData | str | os.PathLike[str],
    regulons: Run | pd.DataFrame | AnnData | str | os.PathLike[str],
    *,
    by: str | None = None,
    compare: str | None = None,
    conditions: tuple[str, str] | None = None,
    group: str | None = None,
    min_targets: Positive = 5,
    layer: str | None = None,
    key_added: str = "regulon",
    quiet: bool = False,
) -> pd.DataFrame:
    """Return how active each regulator is in each cell, as the levels of its targets say, and in
    which cells it is more so.

    The activity is a t-value: of the cell's values of all genes on the regulator's weights on them.
    It is positive where genes that the regulator raises are high and those that it lowers are low.
    Cells in memory get it as `obsm["X_regulon"]`, a table float32 [cells, regulators].

    Args:
        cells: an AnnData, cells x genes, or a file or source of cells, as `grn.train` takes them;
            the values of an .h5ad file are read in pieces. Counts are turned into log1p at the
            median total; other values are used as they are.
        regulons: what regulates what: `collectri` or `dorothea`, once `grn data get` has got them;
            a table of edges with weights or signs, or its file, as CollecTRI's, DoRothEA's and
            TRRUST's; or a Run or its folder. Of a network with q-values, as a run's, the edges with
            a q-value of at most 0.05 count.
        by: the column of obs with the cell types; None: all cells are one.
        compare: the column of obs with conditions, which are compared within each type.
        conditions: its two values, the first one subtracted from the second; None: the column's
            only two.
        group: the column of obs with the donors, which then are the units: their mean activities
            are compared, in pairs where at least two donors are on both sides. None: cells are the
            units, though they are no replicates.
        min_targets: regulators with fewer targets among the genes are left out.
        layer: the values to use; None: X.
        key_added: what follows `X_` in obsm.
        quiet: print nothing; otherwise what was used. `attrs["notes"]` of the table has these
            lines, too.

    Returns:
        A row for each cell type and regulator: `cell_type` (`all` without `by`), `regulator`,
        `targets` (among the genes), `cells` (of the type; in the second condition), `activity` and
        `activity_others` (means over the cells of the type, and over all others) or
        `activity_<condition>`, and, with `by` or `compare`, `effect` (the difference), its 95 %
        interval from `low` to `high`, `p_value` and `q_value` (Benjamini-Hochberg over the
        regulators of a type). Of a type, differences with a q-value of at most 0.05 come first, by
        their size.

    Raises:
        ConfigError: an argument that cannot be used.
        DataError: no such column or layer, no two conditions, too few cells or donors, values that
            are not finite, regulons that are not there, or a network of which no edge is certain or
            whose signs mean nothing.
        VocabularyMismatch: no regulator has enough targets among the genes.

    Source: Badia-i-Mompel et al. 2022 (decoupler's ulm); Welch 1947; Benjamini and Hochberg 1995.

    Examples:
        >>> import anndata, numpy, pandas, grn
        >>> counts = numpy.random.default_rng(0).poisson(5.0, (20, 12)).astype("float32")
        >>> counts[:10, :4] += 20  # the genes that A raises are high in the first ten cells
        >>> names = pandas.DataFrame(index=[f"g{i}" for i in range(12)])
        >>> adata = anndata.AnnData(counts, var=names, obs={"type": ["x"] * 10 + ["y"] * 10})
        >>> net = pandas.DataFrame({"source": "A", "target": adata.var_names[:8]})
        >>> net["weight"] = [1.0] * 4 + [-1.0] * 4
        >>> found = grn.activity(adata, net, by="type", quiet=True)
        >>> bool(found["low"][0] > 0), bool(found["q_value"][0] < 0.05)
        (True, True)
        >>> adata.obsm["X_regulon"].shape
        (20, 1)
    """
    from grn.cells.preprocessing.counts import genes_of
    from grn.cells.readers.registry import source_in_file
    from grn.config.schema import DataConfig
    from grn.features.activity.of_cells import (
        activity_between,
        activity_of_cells,
        activity_of_types,
        log_pieces,
    )
    from grn.features.arguments.conditions import two_of

    notes: list[str] = []
    say = kept_in(notes, quiet)
    known = known_regulons(regulons)
    if in_memory := is_anndata(cells):
        source: AbstractContextManager[AnnData] = nullcontext(cells)
    else:
        source = source_in_file(DataConfig(path=os.fspath(cells)), everything=False)
    with source as opened:
        adata = checked_anndata(opened)
        into_memory_where_view_of_file(adata)
        types, condition = _labels(adata, by, "by"), _labels(adata, compare, "compare")
        donors = _labels(adata, group, "group")
        chosen = None if condition is None else two_of(sorted({*condition} - {""}), conditions)
        if not (known["weight"] < 0).any():
            say(
                "No weight of the network is negative, as in networks without signs: a regulator "
                "counts as active where its targets are high, whether it raises or lowers them."
            )
        genes = genes_of(adata, "X").index.astype(str)
        scores, targets = activity_of_cells(
            log_pieces(adata, layer, say), genes, known, min_targets
        )
    say(
        f"Activity of {scores.shape[1]} regulators in {len(adata)} cells, from "
        f"{targets.median():.0f} targets each (median)."
    )
    if condition is not None and chosen is not None:
        types = np.full(len(adata), "all", object) if types is None else types
        table = activity_between(scores, types, donors, condition, chosen, say)
    elif types is not None:
        table = activity_of_types(scores, types, donors, say)
    else:
        means = scores.mean().rename_axis("regulator").rename("activity").reset_index()
        table = means.assign(cell_type="all", cells=len(adata))[
            ["cell_type", "regulator", "cells", "activity"]
        ]
    table.insert(2, "targets", targets.loc[table["regulator"]].to_numpy())
    table.attrs["notes"] = notes
    if in_memory:
        with writing_into_views():
            adata.obsm[f"X_{key_added}"] = scores.set_index(adata.obs_names)
    return table


def _labels(adata: AnnData, key: str | None, field: str) -> np.ndarray | None:
    """The texts of a column of obs, "" where one is missing; None without a key."""
    from grn.cells.obs import column_of

    if key is None:
        return None
    column = column_of(adata.obs, key, field, "obs")
    return column.astype(object).where(column.notna(), "").astype(str).str.strip().to_numpy(object)
