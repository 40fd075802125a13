"""AnnData of all genes with the chosen edges in varp["grn"]: row = target, column = regulator, as in network.h5ad."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp

from grn.io.h5ad import write_anndata
from grn.networks.formats.chosen import ChosenEdges


def write(chosen: ChosenEdges, path: Path) -> None:
    import anndata

    genes, edges = pd.Index(chosen.genes, dtype=object), chosen.edges
    rows, columns = genes.get_indexer(edges["target"]), genes.get_indexer(edges["source"])
    shape = (len(genes), len(genes))
    regulates = np.isin(np.arange(len(genes)), columns)
    adata = anndata.AnnData(
        np.zeros((0, len(genes)), np.float32),
        obs=pd.DataFrame({"cells": np.zeros(0, int)}, index=pd.Index([], dtype=object)),
        var=pd.DataFrame({"is_regulator": regulates}, index=genes),
    )
    adata.varp["grn"] = sp.csr_matrix((edges["weight"].to_numpy(np.float32), (rows, columns)), shape=shape)
    none = pd.DataFrame({"slug": [], "label": []}, dtype=object)
    adata.uns["grn"] = {**chosen.about, "cells": chosen.cells, "cell_types": none}
    write_anndata(path, adata)
