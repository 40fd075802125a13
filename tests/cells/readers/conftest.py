"""The cells of all formats, and folders and files as Cell Ranger writes them."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import h5py
import numpy as np
import pytest
from anndata import AnnData
from scipy import sparse
from scipy.io import mmwrite


@pytest.fixture
def cells(adata) -> AnnData:
    """Counts of cells that are named by barcodes; var has ids, too."""
    letters = [np.base_repr(place, 4).zfill(8) for place in range(adata.n_obs)]
    adata.obs_names = [f"{text.translate(str.maketrans('0123', 'ACGT'))}-1" for text in letters]
    adata.var["gene_ids"] = [f"ENSG{place:011d}" for place in range(adata.n_vars)]
    return adata


@pytest.fixture
def write_mtx():
    """Writes a folder of Cell Ranger: features by cells, and two lists of names."""

    def write(
        folder: Path, adata: AnnData, *, prefix="", packed=False, legacy=False, types=None
    ) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        matrix = io.BytesIO()
        mmwrite(matrix, sparse.coo_matrix(adata.X.T).astype(np.int64), comment="of a test")
        columns = [adata.var["gene_ids"], adata.var_names]
        if not legacy:
            columns.append(types or ["Gene Expression"] * adata.n_vars)
        features = ["\t".join(each) for each in zip(*columns, strict=True)]
        texts = {
            "matrix.mtx": matrix.getvalue(),
            "barcodes.tsv": "".join(f"{name}\n" for name in adata.obs_names).encode(),
            "genes.tsv" if legacy else "features.tsv": "\n".join([*features, ""]).encode(),
        }
        for name, text in texts.items():
            path = folder / f"{prefix}{name}{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(text) if packed else text)
        return folder

    return write


@pytest.fixture
def write_tenx():
    """Writes a file of Cell Ranger: the columns of features by cells, texts of a fixed length."""

    def write(path: Path, adata: AnnData, *, types=None, genomes=("matrix",), legacy=False) -> Path:
        counts = sparse.csr_matrix(adata.X)
        names = np.array(adata.var_names, dtype="S")
        ids = np.array(adata.var["gene_ids"], dtype="S")
        with h5py.File(path, "w") as file:
            for genome in genomes:
                group = file.create_group(genome)
                for part in ("data", "indices", "indptr"):
                    group[part] = getattr(counts, part).astype(np.int64)
                group["shape"] = np.array(counts.shape[::-1], np.int32)
                group["barcodes"] = np.array(adata.obs_names, dtype="S")
                if legacy:
                    group["genes"], group["gene_names"] = ids, names
                    continue
                features = group.create_group("features")
                features["id"], features["name"] = ids, names
                kinds = types or ["Gene Expression"] * len(names)
                features["feature_type"] = np.array(kinds, dtype="S")
        return path

    return write
