"""Networks as tables, ours and those of other tools, as decoupler takes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from grn.errors import ConfigError, DataError, nearest, reworded
from grn.messages import silent
from grn.verbs.cells import cells_of_caller, is_anndata
from grn.verbs.checked import Positive, Whole, checked
from grn.verbs.run import Run

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

    from grn.analysis.network_files import PredictedNetwork


WORDS = {
    "--layer is": "layer is",
    "--layer 0": "layer=0",
    "leave out --layer and --value": "leave out layer= and value=",
    "--head is": "head is",
    "give --head 0": "give head=0",
    "--value is": "value is",
    "--value score": "value='score'",
    "--value weight": "value='weight'",
    "give --value": "give value=",
    "--value absolute": "value='absolute'",
    "--value effect": "value='effect'",
    "--cell-type": "cell_type=",
    "write it with adata.write_h5ad(FILE) and set data.path to FILE in config.yaml": "give it again as data=",
}
"""What messages say of options -> what they say to a caller who reads a layer."""


@checked()
def read_network(
    network: Run | AnnData | pd.DataFrame | str | os.PathLike[str],
    *,
    cell_type: str | None = None,
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
        cell_type: the label of a cell type, for the network of differences between its cells; of our runs only. With
            `layer`, over the cells of this type.
        layer: of a run: the attention of this layer of the transformer, from 0, in place of the network.
        head: with `layer`: of this head. None: the mean over heads.
        value: with `layer`: `absolute` (default), the mean of |w| over cells; `weight`, the mean of w of one head,
            whose signs are known up to turning all of them; `score`, q.k of one head of layer 0, without cells;
            `effect`, what the messages of the layer or of one head do to predictions, positive: up.
        cells: with `layer`: about how many cells are read, evenly by type, or `all`. None: the run's `network.cells`.
        data: with `layer`: the cells in memory, where the run was trained on an AnnData.

    Returns:
        Columns `source` (the regulator), `target`, `weight` (float64, signed where the tool gives signs; unit: as the
        tool has it), and `within`, `between`, `indirect`, `confidence` (0 to 1), `q_value` and `cell_type` where the
        table has them. Rows in the order of the file; those of ours by falling |weight|.

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
    if layer is not None:
        return layer_of_run(network, layer, head, value, cells, cell_type, data)[0]
    refuse_without_layer(head=head, value=value, cells=cells, data=data)
    if cell_type is None:
        return predicted_network(network).edges.reset_index(drop=True)
    from grn.networks.signed_network import edge_list, signed_network

    signed = signed_network(_anndata_of(network))
    if cell_type not in signed.by_type:
        known = list(signed.by_type)
        near = nearest(cell_type, known)
        listed = ", ".join(map(repr, known)) or "none, so leave cell_type= out"
        hint = f"did you mean {near!r}?" if near else f"it has {listed}."
        raise DataError(f"The network has no cell type {cell_type!r}; {hint}")
    return edge_list(signed.by_type[cell_type], signed.genes).astype({"weight": "float64"})


def predicted_network(
    network: pd.DataFrame | Run | AnnData | str | os.PathLike[str], key: str = "grn"
) -> PredictedNetwork:
    """Any form of a network as the evaluation takes it. key: of varp, which of its networks. Raises DataError."""
    import pandas as pd

    from grn.analysis.network_files import network_of_anndata, network_of_table, open_network_file

    if isinstance(network, Run):
        return open_network_file(network._there(), key)
    if isinstance(network, pd.DataFrame):
        if key != "grn":
            raise DataError(f"key is {key!r}, a key of varp, and a table has none; give a run or its network.h5ad.")
        return network_of_table(network, "The network")
    if is_anndata(network):
        return network_of_anndata(network, "The AnnData", key)
    if isinstance(network, (str, os.PathLike)):
        return open_network_file(Path(network), key)
    raise DataError(f"A network must be a table, a Run, an AnnData or a path, not {type(network).__name__}.")


def layer_of_run(
    network: object,
    layer: int,
    head: Whole | None,
    value: str | None,
    cells: Positive | str | None,
    cell_type: str | None,
    data: AnnData | None,
) -> tuple[pd.DataFrame, list[str], dict]:
    """The edges (source, target, weight) of one layer of a run's transformer, all genes, and what the weights mean."""
    from grn.networks.formats.write import layer_edges
    from grn.networks.readouts.blocks.one_layer import LayerChoice

    folder = network._there() if isinstance(network, Run) else network
    if not isinstance(folder, (str, os.PathLike)) or not Path(folder).is_dir():
        raise DataError("layer= reads the model of a run; give the run or its folder.")
    with reworded(WORDS):
        adata = cells_of_caller(data)
        changes = {} if cells is None else {"cells": cells}
        choice = LayerChoice(layer, head, "absolute" if value is None else value)
        edges, genes, about = layer_edges(Path(folder), choice, cell_type, changes, silent, adata)
    return edges[["source", "target", "weight"]].astype({"weight": "float64"}), genes, about


def refuse_without_layer(**given: object) -> None:
    """Raises ConfigError where something is given that says how a layer is read."""
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} is of one layer of the transformer; give layer=, too.")


def _anndata_of(network: Run | AnnData | pd.DataFrame | str | os.PathLike[str]) -> AnnData:
    """The AnnData of a run's network, which has those of its cell types."""
    import pandas as pd

    from grn.io.h5ad import read_anndata
    from grn.io.run_folder import refuse_cut_off

    if isinstance(network, Run):
        return network.network
    if is_anndata(network):
        return network
    if isinstance(network, pd.DataFrame):
        if "cell_type" in network:
            raise DataError("cell_type= chooses a network of a run; of a table, choose rows by its column cell_type.")
        raise DataError("cell_type= chooses a network of a run, and this table has one network; give the run instead.")
    path = Path(network)
    if path.is_dir():
        path = path / "network.h5ad"
        if not path.is_file():
            refuse_cut_off(path.parent, [path.name])
    elif path.name in ("edges.parquet", "edges_by_type.parquet"):
        path = path.with_name("network.h5ad")
    if not path.is_file() or path.suffix != ".h5ad":
        raise DataError(f"{path} has no networks of cell types; give a run, its folder or its network.h5ad.")
    return read_anndata(path)
