"""Networks as tables, ours and those of other tools, as decoupler takes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from grn.errors import ConfigError, DataError
from grn.verbs.checked import Positive, Whole, checked
from grn.verbs.given_cells import cells_of_caller, is_anndata
from grn.verbs.run import Run

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

    from grn.analysis.network_files import PredictedNetwork


@checked()
def read_network(
    network: Run | AnnData | pd.DataFrame | str | os.PathLike[str],
    *,
    cell_type: str | None = None,
    readout: Literal["effect", "attention", "knockout", "jacobian"] | None = None,
    layer: Whole | None = None,
    head: Whole | None = None,
    value: Literal["absolute", "weight", "score", "effect"] | None = None,
    cells: Positive | Literal["all"] | None = None,
    data: AnnData | None = None,
) -> pd.DataFrame:
    """A network as a table, one row per edge: what decoupler takes as `net`.

    Args:
        network: a Run, its folder, its edges.parquet or network.h5ad, the AnnData of one (`run.network`), or a table
            (csv, tsv, parquet, also .gz) of GRNBoost2, GENIE3, pySCENIC, BEELINE or decoupler, known by its columns.
            edges_by_type.parquet is one, too.
        cell_type: the label of a cell type, for the network of differences between its cells. With `layer`, over the
            cells of this type.
        readout: of a run: the network of this read-out, read again from the model and its cells.
        layer: of a run: the attention of this layer of the transformer, from 0, in place of the network.
        head: with `layer`: of this head. None: the mean over heads.
        value: with `layer`: `absolute` (default), the mean of |w| over cells; `weight`, the mean of w of one head,
            whose signs are known up to turning all of them; `score`, q.k of one head of layer 0, without cells;
            `effect`, what the messages of the layer or of one head do to predictions, positive: up.
        cells: with `readout` or `layer`: about how many cells are read, evenly by type, or `all`. None: the run's
            `network.cells`.
        data: with `readout` or `layer`: the cells in memory, where the run was trained on an AnnData.

    Returns:
        Columns `source` (the regulator), `target`, `weight` (float64, signed where the tool gives signs; unit: as the
        tool has it), and `within`, `between`, `indirect`, `confidence` (0 to 1), `q_value` and `cell_type` where the
        table has them. Rows in the order of the file; those of ours by falling |weight|. `attrs["sign"]` says what the
        signs mean, "" where that is not known; `grn.export` writes by it.

    Raises:
        DataError: no such file, no such columns, a weight that is no finite number, an unknown cell type.
        ConfigError: no such layer or head, or a value that it cannot be read for.

    Examples:
        >>> import grn, pandas, tempfile
        >>> adjacencies = pandas.DataFrame({"TF": ["SPI1"], "target": ["CST3"], "importance": [2.5]})
        >>> with tempfile.TemporaryDirectory() as home:
        ...     adjacencies.to_csv(f"{home}/adjacencies.tsv", sep="\\t", index=False)
        ...     grn.read_network(f"{home}/adjacencies.tsv")
          source target  weight
        0   SPI1   CST3     2.5
    """
    options = {"head": head, "value": value, "cells": cells, "data": data}
    given = [name for name, option in options.items() if option is not None and readout is None and layer is None]
    given += [] if readout is None or layer is None else ["readout"]
    if given:
        raise ConfigError("A run is read again with one of layer= and readout=, which {field} needs", field=given[0])
    if readout is None and layer is None:
        found = predicted_network(network)
        found = found if cell_type is None else found.of_type(cell_type)
        table, sign = found.edges.reset_index(drop=True), found.sign
    else:
        from grn.networks.build import read_again, read_layer_again
        from grn.networks.readouts.one_layer import LayerChoice
        from grn.networks.run_files import refuse_unknown_type

        folder = network._there() if isinstance(network, Run) else network
        if not isinstance(folder, (str, os.PathLike)) or not Path(folder).is_dir():
            raise DataError("{field} reads the model of a run; give the run or its folder", field="readout")
        changes = {} if cells is None else {"cells": cells}
        adata = cells_of_caller(data)
        if layer is not None:
            choice = LayerChoice(layer, head, value or "absolute")
            table, sign = read_layer_again(Path(folder), choice, changes, cell_type=cell_type, adata=adata)
        else:
            of_run, table, by_type = read_again(Path(folder), {**changes, "readout": readout}, adata=adata)
            sign = str(of_run.uns["grn"]["sign"])
            if cell_type is not None:
                refuse_unknown_type(cell_type, by_type["cell_type"].unique())
                table = by_type[by_type["cell_type"] == cell_type].drop(columns="cell_type").reset_index(drop=True)
        table = table.astype({"weight": "float64"})
    table.attrs["sign"] = sign
    return table


def predicted_network(
    network: pd.DataFrame | Run | AnnData | str | os.PathLike[str], key: str = "grn"
) -> PredictedNetwork:
    """Any form of a network as the evaluation takes it. key: of varp, which of its networks. Raises DataError."""
    import pandas as pd

    from grn.analysis.network_files import network_of_anndata, network_of_table, open_network_file

    if isinstance(network, Run):
        return open_network_file(network._there(), key)
    if isinstance(network, pd.DataFrame):
        return network_of_table(network, "The network")
    if is_anndata(network):
        return network_of_anndata(network, "The AnnData", key)
    return open_network_file(Path(network), key)
