"""How large the cells behind `data.path` are, found out without reading them: what an estimate of memory needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anndata import AnnData

from grn.config.schema import DataConfig
from grn.io.tables import unpacked

DENSE_SHARE = 0.1  # of the entries of a dense matrix on disk that are taken to be other than 0, as nobody has counted


@dataclass(frozen=True)
class Size:
    """stored: values other than 0 (of a dense matrix a guess).   whole: bytes of the matrix where it is read as one
    dense table, else 0.   labels: cell types, where they can be counted."""

    cells: int
    genes: int
    stored: int
    whole: int = 0
    labels: int | None = None


def size_of_source(config: DataConfig, adata: AnnData | None = None) -> Size | None:
    """The size of the cells, or None where only reading them would tell. Whatever is wrong with them is said later.

    adata: cells in memory, which take no more of it.
    """
    try:
        if adata is not None:
            return Size(adata.n_obs, adata.n_vars, _stored(adata.X), labels=_types(adata.obs, config.label_key))
        path = Path(config.path)
        name = path.name.lower()
        if name.endswith(".zarr") and path.is_dir():
            import zarr

            return _of_anndata(zarr.open_group(path, mode="r"), config)
        if path.is_file() and name.endswith((".h5ad", ".h5")):
            import h5py

            with h5py.File(path, "r") as file:
                return _of_anndata(file, config) if name.endswith(".h5ad") else _of_tenx(file)
        if path.is_dir():
            return _of_mtx(path)
    except Exception:  # damaged, or another format: the reader has the sentence for it
        return None
    return None


def _of_anndata(store: Any, config: DataConfig) -> Size:
    """Of an .h5ad file or a .zarr folder."""
    kind, _, layer = (config.counts if config.values == "counts" else "X").partition(":")
    matrix = store["raw/X" if kind == "raw" else f"layers/{layer}" if kind == "layer" else "X"]
    labels = _categories(store, config.label_key)
    if hasattr(matrix, "dtype"):
        cells, genes = matrix.shape
        whole = 0 if config.backed else cells * genes * matrix.dtype.itemsize
        return Size(cells, genes, int(DENSE_SHARE * cells * genes), whole, labels)
    cells, genes = (int(number) for number in matrix.attrs["shape"])
    return Size(cells, genes, int(matrix["data"].shape[0]), 0, labels)


def _of_tenx(file: Any) -> Size:
    group = next(group for group in file.values() if "indptr" in group)
    features, cells = (int(number) for number in group["shape"][:])
    return Size(cells, features, int(group["data"].shape[0]))


def _of_mtx(folder: Path) -> Size:
    """From the first line of matrix.mtx that is no comment: features, barcodes, values."""
    path = next(path for path in (folder / "matrix.mtx", folder / "matrix.mtx.gz") if path.is_file())
    with unpacked(path) as file:
        line = next(line for line in file if not line.startswith(b"%"))
    features, cells, stored = map(int, line.split())
    return Size(cells, features, stored)


def _categories(store: Any, key: str | None) -> int | None:
    """How many cell types a column of obs has, where it is stored as categories."""
    column = None if key is None else store["obs"].get(key)
    if column is None or "categories" not in column:
        return None
    return int(column["categories"].shape[0])


def _types(obs: Any, key: str | None) -> int | None:
    return int(obs[key].nunique()) if key is not None and key in obs else None


def _stored(matrix: Any) -> int:
    return int(matrix.nnz) if hasattr(matrix, "nnz") else int((matrix != 0).sum())
