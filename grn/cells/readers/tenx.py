"""10x Cell Ranger: .h5 files, and folders with matrix.mtx beside its barcodes and features, each plain or .gz.

Names are plain strings: "NA" and "nan" are genes.

Letters: C cells, F features (genes, and in some experiments antibodies, guides, ...).
"""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.io import mmread

from grn.cells.readers import reading
from grn.cells.readers.matrix import check_format, check_kind
from grn.config.schema import DataConfig
from grn.io.tables import unpacked

NUMBERS = b"0123456789+-.eE \t\r\n"
GENES = "Gene Expression"
LEFT_OUT = "grn_left_out"  # key in uns: a sentence about the features that are not genes
MATRIX, BARCODES, FEATURES = ("matrix.mtx",), ("barcodes.tsv",), ("features.tsv", "genes.tsv")


def read_tenx_h5(path: Path, config: DataConfig) -> AnnData:
    """The genes of a feature-barcode matrix of Cell Ranger, any version. Raises DataError."""
    with reading(f"{path} cannot be read as a 10x .h5 file"), h5py.File(path, "r") as file:
        # `matrix` since Cell Ranger 3; before, one group for each genome, named after it.
        groups = [name for name, group in file.items() if {"barcodes", "indptr"} <= set(group)]
        if len(groups) != 1:
            raise ValueError(f"it holds {', '.join(file)}, and not one matrix with barcodes and indptr")
        group = file[groups[0]]
        data, indices, indptr = (group[name][:] for name in ("data", "indices", "indptr"))
        check_kind(indices, indptr)
        counts = sparse.csr_matrix((data, indices, indptr), shape=tuple(int(size) for size in group["shape"][:][::-1]))
        check_format(counts)  # before columns are chosen by these indices
        return _of_features(path, counts, _texts(group["barcodes"]), _features(group))


def is_mtx_folder(folder: Path) -> bool:
    """Whether a file in it has the name of a 10x matrix."""
    return any(folder.glob("*matrix.mtx*"))


def read_mtx_folder(folder: Path, config: DataConfig) -> AnnData:
    """The genes of a 10x folder. Raises DataError."""
    with reading(f"{folder} cannot be read as a 10x folder"):
        barcodes, features = _table(_only(folder, BARCODES)), _table(_only(folder, FEATURES))
        with unpacked(_only(folder, MATRIX)) as file:
            banner, _, rest = file.read().partition(b"\n")
        entries = b"\n".join(line for line in rest.split(b"\n") if not line.startswith(b"%"))
        strange = entries.translate(None, NUMBERS)  # SciPy would read 5x as 5
        if strange or not re.fullmatch(
            rb"%%matrixmarket\s+matrix\s+coordinate\s+(integer|real)\s+general\s*", banner.lower()
        ):
            found = strange[:20] or banner[:60]
            raise ValueError(f"its matrix has {found!r} where a coordinate matrix of numbers has none")
        # Always read as real numbers: under the banner `integer`, SciPy would cut fractions off.
        matrix = sparse.coo_matrix(mmread(io.BytesIO(b"%%MatrixMarket matrix coordinate real general\n" + rest)))
        # genes.tsv has no types, a bare list only names.
        named = pd.DataFrame({"name": features[min(1, features.shape[1] - 1)], "gene_ids": features[0]})
        if 2 in features:
            named["feature_types"] = features[2]
        return _of_features(folder, matrix.T.tocsr(), barcodes[0].to_numpy(), named)


def _of_features(path: Path, counts: sparse.csr_matrix, barcodes: np.ndarray, features: pd.DataFrame) -> AnnData:
    """The features that are genes, by symbol (by id where there is none), as AnnData.

    counts [C, F].   features: columns name, gene_ids, and where known feature_types, ...; all but the name go to var.
    uns["grn_left_out"] has a sentence about the features that were left out. Raises ValueError where files do not fit.
    """
    names = np.where(features["name"] == "", features["gene_ids"], features["name"])
    var = features.drop(columns="name").set_axis(pd.Index(names, dtype=object), axis=0)
    adata = AnnData(counts, obs=pd.DataFrame(index=pd.Index(barcodes, dtype=object)), var=var)
    kept = (var["feature_types"] == GENES).to_numpy() if "feature_types" in var else np.ones(len(var), dtype=bool)
    if kept.all():
        return adata
    others = ", ".join(f"{kind}: {count}" for kind, count in Counter(var["feature_types"][~kept]).items())
    if not kept.any():
        raise ValueError(f"it holds no features of type {GENES} ({others})")
    adata = adata[:, kept].copy()
    adata.uns[LEFT_OUT] = (
        f"{(~kept).sum()} of {len(kept)} features of {path} are not genes and are left out ({others})."
    )
    return adata


def _only(folder: Path, names: tuple[str, ...]) -> Path:
    """The one file with one of these names, plain or .gz; of two, either could belong to the other files."""
    found = [path for name in names for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} files of the name {' or '.join(names)} (or .gz), not one")
    return found[0]


def _table(path: Path) -> pd.DataFrame:
    """The columns of a file without a header, as texts. Quotes are part of the text."""
    with unpacked(path) as file:
        lines = [line.rstrip("\r").split("\t") for line in file.read().decode("utf-8").rstrip("\r\n").split("\n")]
    if any(len(fields) != len(lines[0]) or not fields[0] for fields in lines):
        raise ValueError(f"{path.name} is empty, or has lines of different length or without a name")
    return pd.DataFrame(lines, dtype=object)


def _features(group: h5py.Group) -> pd.DataFrame:
    if "features" not in group:  # before Cell Ranger 3
        return pd.DataFrame({"name": _texts(group["gene_names"]), "gene_ids": _texts(group["genes"])}, dtype=object)
    features = group["features"]
    ids = features["gene_id" if "gene_id" in features else "id"]  # features may be probes; gene_id is then the gene
    columns = {"name": features["name"], "gene_ids": ids, "feature_types": features["feature_type"]}
    columns |= {"genome": features["genome"]} if "genome" in features else {}
    return pd.DataFrame({name: _texts(column) for name, column in columns.items()}, dtype=object)


def _texts(values: h5py.Dataset) -> np.ndarray:
    return values.asstr()[:].astype(object)
