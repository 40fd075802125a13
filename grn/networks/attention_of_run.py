"""The attention between genes of a run's transformer, as the files of a network and as the table of
one layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from anndata import AnnData

import grn
from grn.cells.cells import Cells
from grn.config.schema import Config, NetworkConfig, TrainerConfig
from grn.model.saved import TrainedModel
from grn.model.transformer import Transformer
from grn.networks.attention import (
    CERTAIN,
    DEFINITION,
    SIGN,
    edges_of_attention,
    layer_matrices,
    read_attention,
    some_of,
)
from grn.networks.cells_of_run import cells_of_run
from grn.networks.one_layer import LayerChoice
from grn.networks.run_files import edges_of, slugs
from grn.runtime.devices import own_device
from grn.runtime.errors import ConfigError, DataError, check_known


def attention_of_model(
    network: NetworkConfig, trainer: TrainerConfig, trained: TrainedModel, cells: Cells
) -> tuple[AnnData, pd.DataFrame, pd.DataFrame]:
    """Return the network of a transformer that has learned types alone: as AnnData, its edges over
    all cells, and those of each type.

    Its weights are what genes read of genes, layer by layer, over all cells and in those of each
    label.
    """
    reader, seed = trained.model.identity.to(own_device(trainer)), trainer.seed
    assert isinstance(reader, Transformer), "the linear reader has no attention between genes"
    how = network.top_k, network.least_cells
    whole = read_attention(reader, cells, some_of(np.arange(len(cells)), seed))
    labelled = {
        name: np.flatnonzero(cells.labels == number) for number, name in enumerate(cells.classes)
    }
    labelled = {name: rows for name, rows in labelled.items() if len(rows)}
    slug_of, of_types = slugs(list(labelled)), []
    names = pd.Index(list(cells.vocabulary), dtype=object)
    means = [np.asarray(cells.multiplicity[rows].mean(0)).ravel() for rows in labelled.values()]
    adata = AnnData(
        np.asarray(means, np.float32).reshape(len(labelled), len(names)),
        obs=pd.DataFrame(
            {"cells": [len(rows) for rows in labelled.values()]},
            index=pd.Index(labelled, dtype=object),
        ),
        var=pd.DataFrame({"is_regulator": True, "grn_identity": whole.identity}, index=names),
    )
    adata.varp.update(layer_matrices(whole, *how))
    for name, rows in labelled.items():
        found = read_attention(reader, cells, some_of(rows, seed))
        adata.varp.update(
            {f"{key}_{slug_of[name]}": of for key, of in layer_matrices(found, *how).items()}
        )
        of_types.append(edges_of_attention(found, cells.vocabulary, *how).assign(cell_type=name))
    adata.uns["grn"] = {
        "orientation": "row = target, column = regulator",
        "sign": SIGN,
        "certain": CERTAIN,
        "definition": DEFINITION,
        "effects": "attention weights, the mean over cells, heads and members; in grn, over layers",
        "states": "together",
        "cell_types": pd.DataFrame(
            {"slug": list(slug_of.values()), "label": list(slug_of)}
        ).set_index(pd.Index(map(str, range(len(slug_of))), dtype=object)),
        "model_hash": trained.hash,
        "version": grn.__version__,
        "parameters": {
            "members": reader.shape.members,
            "cells": len(cells),
            "top_k": how[0] or 0,
            "seed": seed,
        },
    }
    edges = edges_of_attention(whole, cells.vocabulary, *how)
    by_type = (
        pd.concat(of_types, ignore_index=True) if of_types else edges.head(0).assign(cell_type="")
    )
    return adata, edges, by_type.astype({"cell_type": "category"})


def attention_again(
    run: Path,
    config: Config,
    trained: TrainedModel,
    choice: LayerChoice,
    cell_type: str | None,
    adata: AnnData | None,
    names: Sequence[str] | None,
) -> pd.DataFrame:
    """Return the edges of one layer of a run's transformer: in the cells `names`, in those of a
    label, or in all.
    """
    reader = trained.model.identity.to(own_device(config.trainer))
    if not isinstance(reader, Transformer):
        raise ConfigError(
            "This run's cells are read by the linear reader ({field}), which has no layers",
            field="reader",
        )
    choice.check_attention(reader)
    cells = cells_of_run(run, config, trained, adata)
    rows = np.arange(len(cells))
    if names is not None:
        place = pd.Index(cells.obs_names).get_indexer(pd.Index(names))
        if (place < 0).any():
            unknown, first = names[int(np.argmax(place < 0))], str(cells.obs_names[0])
            raise DataError(
                f"The run has no cell {unknown!r}; the first is {first!r}.", field="cells"
            )
        rows = np.sort(place)
    if cell_type is not None:
        check_known(cell_type, cells.classes, "The run", "cell type", "cell_type")
        rows = rows[cells.labels[rows] == cells.classes.index(cell_type)]
    if not len(rows):
        raise DataError("None of the chosen cells is of this type", field="cell_type")
    found = read_attention(reader, cells, some_of(rows, config.trainer.seed))
    return edges_of(found.layers[choice.layer], cells.vocabulary, np.arange(len(cells.vocabulary)))
