"""10x Cell Ranger: its .h5 files, and how the features of its files and folders become genes.

Letters: C cells, F features (genes, and in some experiments antibodies, guides, ...).
"""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from grn.cells.readers.matrix import refuse_no_positions
from grn.config.schema import DataConfig
from grn.errors import DataError, one_line

GENES = "Gene Expression"
LEFT_OUT = "grn_left_out"  # key in uns: a sentence about the features that are not genes


def read_tenx_h5(path: Path, config: DataConfig) -> AnnData:
    """A feature-barcode matrix of Cell Ranger, any version; see `tenx_cells`. Raises DataError."""
    try:
        path.open("rb").close()  # where reading is forbidden, this error names the file; HDF5's own does not
        with h5py.File(path, "r") as file:
            group = _matrix_group(path, file)
            features = _features(group)
            barcodes = _texts(group["barcodes"])
            parts = tuple(group[name][:] for name in ("data", "indices", "indptr"))
            shape = tuple(int(size) for size in group["shape"][:])
        refuse_no_positions(*parts[1:])
        if shape != (len(features), len(barcodes)):
            raise ValueError(
                f"its shape is {shape}, but it lists {len(features)} features and {len(barcodes)} barcodes"
            )
        counts = sparse.csr_matrix(parts, shape=shape[::-1])
        counts.check_format(full_check=True)  # before columns are chosen by these indices
    except (MemoryError, PermissionError, DataError):  # the first two are faults of the machine: cli/exit_codes.py
        raise
    except Exception as problem:  # a damaged file fails anywhere between HDF5, NumPy and SciPy
        raise DataError(
            f"{path} cannot be read as a 10x .h5 file ({one_line(problem)}); it is damaged, truncated or another "
            "format: copy or write it again."
        ) from problem
    return tenx_cells(path, counts, barcodes, features)


def tenx_cells(path: Path, counts: sparse.csr_matrix, barcodes: np.ndarray, features: pd.DataFrame) -> AnnData:
    """The features that are genes, by symbol (by id where there is none), as AnnData.

    counts [C, F].   features: columns name, gene_ids, and where known feature_types, ...; all but the name go to var.
    uns["grn_left_out"] has a sentence about the features that were left out. Raises DataError where none is a gene.
    """
    names = np.where(features["name"] == "", features["gene_ids"], features["name"])
    var = features.drop(columns="name").set_axis(pd.Index(names, dtype=object), axis=0)
    left_out = None
    if "feature_types" in var:
        kept = (var["feature_types"] == GENES).to_numpy()
        others = ", ".join(f"{kind}: {count}" for kind, count in Counter(var["feature_types"][~kept]).items())
        if not kept.any():
            raise DataError(f"{path} holds no features of type {GENES} ({others}); give a matrix of gene counts.")
        if not kept.all():
            left_out = f"{(~kept).sum()} of {len(kept)} features of {path} are not genes and are left out ({others})."
            counts, var = counts[:, np.flatnonzero(kept)], var[kept]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* names are not unique")  # data.duplicates decides
        adata = AnnData(counts, obs=pd.DataFrame(index=pd.Index(barcodes, dtype=object)), var=var)
    if left_out:
        adata.uns[LEFT_OUT] = left_out
    return adata


def _matrix_group(path: Path, file: h5py.File) -> h5py.Group:
    """The one group with a matrix: `matrix` since Cell Ranger 3; before, one group for each genome, named after it."""
    if "X" in file and "obs" in file:
        raise DataError(f"{path} is an AnnData file, not a 10x file; rename it so that it ends in .h5ad.")
    found = [
        name for name, group in file.items() if isinstance(group, h5py.Group) and {"barcodes", "indptr"} <= set(group)
    ]
    if not found:
        held = ", ".join(map(repr, file)) or "nothing"
        if isinstance(file.get("matrix"), h5py.Group):
            lost = " and ".join(sorted({"barcodes", "indptr"} - set(file["matrix"])))
            raise DataError(f"{path} is a 10x file whose matrix has no {lost}; it is damaged: copy or write it again.")
        raise DataError(
            f"{path} holds no 10x matrix (it holds {held}); give a file such as filtered_feature_bc_matrix.h5, or "
            "another format."
        )
    if len(found) > 1:
        raise DataError(
            f"{path} holds the matrices of {len(found)} genomes ({', '.join(found)}); write the cells of one of them "
            "to an .h5ad file (scanpy.read_10x_h5 has an option for it)."
        )
    return file[found[0]]


def _features(group: h5py.Group) -> pd.DataFrame:
    if "features" not in group and "gene_names" not in group:
        raise ValueError("its matrix has no features")
    if "features" not in group:  # before Cell Ranger 3
        return pd.DataFrame({"name": _texts(group["gene_names"]), "gene_ids": _texts(group["genes"])}, dtype=object)
    features = group["features"]
    ids = features["gene_id" if "gene_id" in features else "id"]  # features may be probes; gene_id is then the gene
    columns = {"name": features["name"], "gene_ids": ids, "feature_types": features["feature_type"]}
    if "genome" in features:
        columns["genome"] = features["genome"]
    return pd.DataFrame({name: _texts(column) for name, column in columns.items()}, dtype=object)


def _texts(values: h5py.Dataset) -> np.ndarray:
    return values.asstr()[:].astype(object)
