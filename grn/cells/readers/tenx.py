"""Cell Ranger's .h5 files, and the table of features that its folders (tenx_folder.py) have, too.

Names are plain strings: "NA" and "nan" are genes.

Letters: C cells, F features (genes, and in some experiments antibodies, guides, ...).
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.cells.genes.feature_types import are_genes, left_out
from grn.cells.readers import add_note, reading
from grn.cells.readers.matrix import check_kind, checked
from grn.config.schema import DataConfig
from grn.runtime.errors import DataError


def read_tenx_h5(path: Path, config: DataConfig) -> AnnData:
    """Read the genes of a feature-barcode matrix of any version of Cell Ranger.

    Raises DataError.
    """
    with reading(f"{path} cannot be read as a 10x .h5 file"), h5py.File(path, "r") as file:
        # `matrix` since Cell Ranger 3; before, one group for each genome, named after it.
        groups = [
            name
            for name, group in file.items()
            if isinstance(group, h5py.Group) and {"barcodes", "indptr"} <= set(group)
        ]
        if len(groups) > 1:
            raise DataError(
                f"{path} holds a matrix for each of {len(groups)} genomes ({', '.join(groups)})",
                field="data.path",
                advice=f"write one of them: scanpy.read_10x_h5({str(path)!r}, "
                f"genome={groups[0]!r}).write_h5ad(FILE)",
            )
        if not groups:
            raise ValueError(f"it holds {', '.join(file)}, and no matrix with barcodes and indptr")
        group = file[groups[0]]
        data, indices, indptr = (group[name][:] for name in ("data", "indices", "indptr"))
        check_kind(indices, indptr)
        shape = tuple(int(size) for size in group["shape"][:][::-1])
        # checked before columns are chosen by these indices
        counts = checked(sparse.csr_matrix((data, indices, indptr), shape=shape))
        return of_features(path, counts, _texts(group["barcodes"]), _features(group))


def of_features(
    path: Path, counts: sparse.csr_matrix, barcodes: np.ndarray, features: pd.DataFrame
) -> AnnData:
    """Return the genes among the features as AnnData, named by symbol (by id where there is none).
    A note says which features were left out.

    counts: CSR [C, F].
    barcodes [C]: names of the cells.
    features: a table of F rows: name, gene_ids and, where they are known, feature_types and others;
        all columns but the name go to var.
    Raises ValueError where sizes differ.
    """
    names = np.where(features["name"] == "", features["gene_ids"], features["name"])
    var = features.drop(columns="name").set_axis(pd.Index(names, dtype=object), axis=0)
    adata = AnnData(counts, obs=pd.DataFrame(index=pd.Index(barcodes, dtype=object)), var=var)
    kept = are_genes(var, str(path))
    if kept.all():
        return adata
    adata = adata[:, kept].copy()
    add_note(adata, left_out(var, kept, str(path)))
    return adata


def _features(group: h5py.Group) -> pd.DataFrame:
    """Read the table of features, see of_features."""
    if "features" not in group:  # before Cell Ranger 3
        return pd.DataFrame(
            {"name": _texts(group["gene_names"]), "gene_ids": _texts(group["genes"])}, dtype=object
        )
    features = group["features"]
    # features may be probes; gene_id is then the gene
    ids = features["gene_id" if "gene_id" in features else "id"]
    columns = {"name": features["name"], "gene_ids": ids, "feature_types": features["feature_type"]}
    columns |= {"genome": features["genome"]} if "genome" in features else {}
    return pd.DataFrame({name: _texts(column) for name, column in columns.items()}, dtype=object)


def _texts(values: h5py.Dataset) -> np.ndarray:
    """Read texts as an array of str objects."""
    return values.asstr()[:].astype(object)
