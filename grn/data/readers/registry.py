"""Where the data come from: a file, a set that scanpy knows, or our own generator.

A new format is one entry in READERS, a new source one entry in SCHEMES.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

from anndata import AnnData

from grn.config.schema import DataConfig
from grn.data.preprocessing.genes import read_gene_list
from grn.data.readers.mtx_folder import is_mtx_folder, read_mtx_folder
from grn.data.readers.tenx import read_tenx_h5
from grn.data.readers.text_matrix import read_text_matrix
from grn.data.readers.zarr_folder import read_zarr_folder
from grn.data.simulated import simulate
from grn.errors import ConfigError, DataError, one_line
from grn.files import read_anndata


def open_source(config: DataConfig) -> AnnData:
    """The AnnData behind `data.path`; nothing in it is checked yet. Raises DataError."""
    scheme, colon, name = config.path.partition(":")
    if colon and scheme in SCHEMES:
        if config.orientation is not None:
            raise _no_text(config)
        return SCHEMES[scheme](name, config)
    path = Path(config.path)
    if not path.exists():
        raise DataError(f"{path} does not exist{_similar(path)}; set data.path to a file or to {_known_sources()}.")
    reader = _reader(path)
    if reader is None:
        raise DataError(
            f"{path} is not a format that is read; use {', '.join(READERS)}, a 10x folder or {_known_sources()}."
        )
    if config.backed and reader is not _read_h5ad:
        raise ConfigError(f"data.backed reads .h5ad files piece by piece, but not {path}; set data.backed: false.")
    if config.orientation is not None and reader is not _read_text:
        raise _no_text(config)
    return reader(path, config)


def is_data_file(name: str) -> bool:
    """Whether a name can be that of cells: a source, the ending of a format, or a folder with a matrix."""
    scheme, colon, _ = name.partition(":")
    if colon and scheme in SCHEMES:
        return True
    reader = _reader(Path(name))
    return is_mtx_folder(Path(name)) if reader is _read_folder else reader is not None


def is_text(path: Path) -> bool:
    """Whether it needs `data.orientation`."""
    return _reader(path) is _read_text


def _reader(path: Path) -> Reader | None:
    found = next((read for suffix, read in READERS.items() if path.name.lower().endswith(suffix)), None)
    return _read_folder if path.is_dir() and found is not _read_zarr else found


def _read_h5ad(path: Path, config: DataConfig) -> AnnData:
    return read_anndata(path, backed=config.backed)


def _read_tenx(path: Path, config: DataConfig) -> AnnData:
    return read_tenx_h5(path)


def _read_folder(path: Path, config: DataConfig) -> AnnData:
    return read_mtx_folder(path)


def _read_zarr(path: Path, config: DataConfig) -> AnnData:
    return read_zarr_folder(path)


def _read_text(path: Path, config: DataConfig) -> AnnData:
    if config.orientation is None:
        raise DataError(
            f"{path} is text, which does not say what its rows are; set data.orientation to cells_by_genes (a row per "
            "cell) or genes_by_cells (a row per gene)."
        )
    known = [] if config.regulators == "all" else _named_genes(config.regulators, "data.regulators")
    if isinstance(config.genes, str) and config.genes != "all":
        known = [*known, *_named_genes(config.genes, "data.genes")]
    return read_text_matrix(path, config.orientation, known)


def _named_genes(choice: str | list[str], field: str) -> list[str]:
    return read_gene_list(choice, field) if isinstance(choice, str) else choice


def _open_scanpy(name: str, config: DataConfig) -> AnnData:
    if name not in SCANPY_SETS:
        raise DataError(f"scanpy:{name} is not known; choose one of {', '.join(f'scanpy:{s}' for s in SCANPY_SETS)}.")
    return SCANPY_SETS[name]()


def _pbmc68k_reduced() -> AnnData:
    import scanpy

    return scanpy.datasets.pbmc68k_reduced()


def _pbmc3k() -> AnnData:
    """Counts of the 2638 cells that scanpy's processed set labels, with those labels in obs["louvain"]."""
    import scanpy

    try:
        counts = scanpy.datasets.pbmc3k()
        labelled = scanpy.datasets.pbmc3k_processed()
    except (URLError, OSError) as problem:  # no network, or a download that was cut short
        raise DataError(
            f"scanpy:pbmc3k is downloaded at its first use, which failed ({one_line(problem)}); connect to the "
            "network or use scanpy:pbmc68k_reduced, which needs no download."
        ) from problem
    kept = counts.obs_names[counts.obs_names.isin(labelled.obs_names)]
    cells = counts[kept].copy()
    cells.obs["louvain"] = labelled.obs["louvain"].loc[kept].to_numpy()
    return cells


def _open_simulated(name: str, config: DataConfig) -> AnnData:
    if name:
        raise DataError(f"simulated:{name} is not known; write `simulated:` and set data.simulated.* instead.")
    return simulate(config.simulated)


Reader = Callable[[Path, DataConfig], AnnData]
READERS: dict[str, Reader] = {".h5ad": _read_h5ad, ".h5": _read_tenx, ".zarr": _read_zarr}
READERS |= {f"{kind}{packed}": _read_text for kind in (".csv", ".tsv", ".txt") for packed in ("", ".gz")}
SCANPY_SETS: dict[str, Callable[[], AnnData]] = {"pbmc68k_reduced": _pbmc68k_reduced, "pbmc3k": _pbmc3k}
SCHEMES: dict[str, Callable[[str, DataConfig], AnnData]] = {"scanpy": _open_scanpy, "simulated": _open_simulated}


def _no_text(config: DataConfig) -> ConfigError:
    return ConfigError(
        f"data.orientation is {config.orientation}, but {config.path} is not text and needs none; set "
        "data.orientation: null."
    )


def _known_sources() -> str:
    return ", ".join([f"scanpy:{name}" for name in SCANPY_SETS] + ["simulated:"])


def _similar(path: Path) -> str:
    """` (did you mean ...)` when a file of the same folder has nearly that name."""
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside, n=1)
    return f" (did you mean {path.parent / near[0]}?)" if near else ""
