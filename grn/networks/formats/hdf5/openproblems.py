"""The prediction of OpenProblems' GRN inference task (geneRNIB): an .h5ad with uns["prediction"].

The task's schema wants uns["dataset_id"], uns["method_id"] and a table with source, target and weight; its own methods
write the weights as text, and so does this. dataset_id is the stem of the name of the run's cells: give these the name
that the task has for them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from grn.io.h5ad import write_anndata
from grn.networks.formats.chosen import ChosenEdges


def write(chosen: ChosenEdges, path: Path) -> None:
    import anndata

    table = chosen.edges[["source", "target", "weight"]].astype(str).astype(object)
    table.index = table.index.astype(str)
    adata = anndata.AnnData(np.zeros((0, 0), np.float32))
    adata.uns = {"dataset_id": str(chosen.about.get("dataset_id", "")), "method_id": "grn", "prediction": table}
    write_anndata(path, adata)
