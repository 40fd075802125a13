"""Networks as tables, ours and those of other tools, as decoupler takes them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from grn.features.arguments.checked import Whole, checked
from grn.features.arguments.given_cells import cells_of_caller
from grn.features.given_networks import known_regulons, only_certain, predicted_network
from grn.features.run import Run, folder_of
from grn.runtime.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData


@checked()
def read_network(
    network: Run | AnnData | pd.DataFrame | str | os.PathLike[str],
    *,
    cell_type: str | None = None,
    certain: bool = True,
    layer: Whole | None = None,
    head: Whole | None = None,
    value: Literal["effect", "score", "weight"] | None = None,
    data: AnnData | None = None,
    cells: Sequence[str] | None = None,
    regulons: pd.DataFrame | str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """A network as a table, one row per edge: what decoupler takes as `net`.

    Args:
        network: a Run, its folder, its edges.parquet or network.h5ad, the AnnData of one
            (`run.network`), or a table (csv, tsv, parquet, also .gz) of GRNBoost2, GENIE3,
            pySCENIC, BEELINE or decoupler, known by its columns. edges_by_type.parquet is one, too.
        cell_type: the label of a cell type, for the network of differences between its cells.
        certain: of a network with q-values, only the edges with one of at most .05, by association
            or by intervention; False: all edges of its file. Networks without q-values, and blocks,
            are given whole.
        layer: of a run: this block of the model in place of the network: 0, whose targets are the
            regulators, or 1, whose targets are all other genes. It is read again from the model and
            its cells.
        head: with `layer`: of this head. None: the sum of effects, or the mean of scores and
            weights, over heads.
        value: with `layer`: `effect` (default), what the block's messages do to the prediction, in
            sds of the target per sd of the regulator as the block reads it; `score`, q.k for a
            multiplicity of 1, of the parameters alone; `weight`, the mean over cells of the score
            over its norm. Positive is up in each.
        data: with `layer`: the cells in memory, where the run was trained on an AnnData.
        cells: with `layer`, of a run whose cells are read by the transformer: obs names. The table
            has what genes read of genes in this layer of the transformer (0 is the first; of the
            last, only the identity token reads), the mean attention weight over these cells. After
            the first layer, queries and keys are functions of the cell. Nothing fixes the sign of
            these weights, and types shape them, not regulation.
        regulons: known pairs with signs, as `grn.activity` takes them, for a column `known` that
            says of each edge `confirmed` (listed with the same sign), `contradicted` (with the
            other) or `new`.

    Returns:
        Columns `source` (the regulator), `target`, `weight` (float64, signed where the tool gives
        signs; unit: as the tool has it), and `sd`, `effect`, `effect_se`, `q_value`, `confidence`
        (0 to 1), `programme` (of the target, "" for none), `between`, `indirect`, `cells`, `caused`
        with its interval and q-value, and `cell_type` where the table has them. Rows in the order
        of the file; those of ours by q-value and then by falling |weight|. `attrs["sign"]` says
        what the signs mean, "" where that is not known; `grn.export` writes by it.

    Raises:
        DataError: no such file, no such columns, a weight that is no finite number, an unknown cell
            type.
        ConfigError: no such layer or head, or a value that it cannot be read for.

    Examples:
        >>> import grn, pandas, tempfile
        >>> edge = {"TF": ["SPI1"], "target": ["CST3"], "importance": [2.5]}
        >>> adjacencies = pandas.DataFrame(edge)
        >>> with tempfile.TemporaryDirectory() as home:
        ...     adjacencies.to_csv(f"{home}/adjacencies.tsv", sep="\\t", index=False)
        ...     grn.read_network(f"{home}/adjacencies.tsv")
          source target  weight
        0   SPI1   CST3     2.5
        >>> net = pandas.DataFrame({"source": ["A", "B"], "target": "x", "weight": [1.0, 2.0]})
        >>> net["q_value"] = [0.01, 0.4]
        >>> [len(grn.read_network(net, certain=certain)) for certain in (True, False)]
        [1, 2]
        >>> pairs = pandas.DataFrame({"source": "A", "target": ["x", "y"], "weight": [1.0, -1.0]})
        >>> grn.read_network(pairs.assign(weight=0.5), regulons=pairs)["known"].tolist()
        ['confirmed', 'contradicted']
    """
    given = [
        name
        for name, option in {"head": head, "value": value, "data": data, "cells": cells}.items()
        if option is not None
    ]
    if layer is None and given:
        raise ConfigError(
            "A block of a run is read with layer=, which {field} needs", field=given[0]
        )
    if layer is None:
        found = predicted_network(network).of_type(cell_type)
        table = only_certain(found.edges) if certain else found.edges
        table, sign = table.reset_index(drop=True), found.sign
    else:
        from grn.networks.build import read_layer_again
        from grn.networks.one_layer import LayerChoice

        folder = folder_of(network) if isinstance(network, Run) else network
        if not isinstance(folder, (str, os.PathLike)) or not Path(folder).is_dir():
            raise DataError(
                "{field} reads the model of a run; give the run or its folder", field="layer"
            )
        choice, own = LayerChoice(layer, head, value or "effect"), cells_of_caller(data)
        table, sign = read_layer_again(
            Path(folder), choice, cell_type=cell_type, adata=own, cells=cells
        )
        table = table.astype({"weight": "float64"})
    table.attrs["sign"] = sign
    if regulons is not None:
        from grn.features.findings.known import said_of

        table["known"] = said_of(table, known_regulons(regulons))
    return table
