"""Which reader opens `data.path`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn
from urllib.error import URLError

from anndata import AnnData

from grn.cells.readers.anndata_files import h5ad_in_file, read_h5ad, read_zarr_folder
from grn.cells.readers.tenx import is_mtx_folder, read_mtx_folder, read_tenx_h5
from grn.cells.readers.text_matrix import ENDINGS as TEXT_ENDINGS
from grn.cells.readers.text_matrix import read_text, refuse_columns_of_edges
from grn.cells.simulated import open_simulated
from grn.config.schema import DataConfig
from grn.errors import CellsNotStored, ConfigError, DataError, one_line
from grn.io.atomic import does_not_exist, refuse_pipe

MEMORY = "memory:"


def refuse_memory(name: str, config: DataConfig) -> NoReturn:
    """Raises CellsNotStored: the cells of such a configuration are in no file that could be read again."""
    raise CellsNotStored(
        f"data.path is {MEMORY!r}: the cells of this run were an AnnData in memory, which is not stored; write it with "
        "adata.write_h5ad(FILE) and set data.path to FILE in config.yaml."
    )


def open_scanpy_dataset(name: str, config: DataConfig) -> AnnData:
    """The data set `name`. Raises DataError where DATASETS has none of that name, or where a download fails."""
    if name not in DATASETS:
        raise DataError(f"scanpy:{name} is not known; choose one of {', '.join(f'scanpy:{s}' for s in DATASETS)}.")
    return DATASETS[name]()


def _pbmc68k_reduced() -> AnnData:
    import scanpy

    return scanpy.datasets.pbmc68k_reduced()


def _pbmc3k() -> AnnData:
    """Counts of the 2638 cells that scanpy's processed set labels, with those labels in obs["louvain"]."""
    import scanpy

    downloads = Path(scanpy.settings.datasetdir)
    verbosity = scanpy.settings.verbosity
    scanpy.settings.verbosity = "error"  # it warns of certificates, where there is no network at all
    try:
        counts = scanpy.datasets.pbmc3k()
        labelled = scanpy.datasets.pbmc3k_processed()
    except (URLError, OSError, ImportError) as problem:  # no network, no certificates, or a download that was cut short
        with suppress(OSError):
            downloads.rmdir()  # only if scanpy has made it and left it empty
        raise DataError(
            f"scanpy:pbmc3k is downloaded when it is first used, and the download failed ({one_line(problem)}); "
            "connect to the network, or use scanpy:pbmc68k_reduced, which needs no download."
        ) from problem
    finally:
        scanpy.settings.verbosity = verbosity
    kept = counts.obs_names[counts.obs_names.isin(labelled.obs_names)]
    cells = counts[kept].copy()
    cells.obs["louvain"] = labelled.obs["louvain"].loc[kept].to_numpy()
    return cells


DATASETS: dict[str, Callable[[], AnnData]] = {"pbmc68k_reduced": _pbmc68k_reduced, "pbmc3k": _pbmc3k}


Reader = Callable[[Path, DataConfig], AnnData]

# By the ending of the name, packed endings (.csv.gz) included. A folder with any other ending is read as a 10x folder.
READERS: dict[str, Reader] = {
    ".h5ad": read_h5ad,
    ".h5": read_tenx_h5,
    ".zarr": read_zarr_folder,
    **dict.fromkeys(TEXT_ENDINGS, read_text),
}
# Sources without a file of the user's, `scheme:name`; the function takes the name.
SCHEMES: dict[str, Callable[[str, DataConfig], AnnData]] = {
    "memory": refuse_memory,
    "scanpy": open_scanpy_dataset,
    "simulated": open_simulated,
}

# Endings of other formats, and how to get from them to one that is read.
UNPACKED = (".gz", ".zip", ".bz2", ".xz", ".zst", ".tar", ".tgz", ".7z", ".rar")
FROM_R = "write it from R as .h5ad or as a 10x folder"
CONVERTED = {
    ".rds": FROM_R,
    ".rdata": FROM_R,
    ".rda": FROM_R,
    ".h5seurat": FROM_R,
    ".loom": "read it with anndata.io.read_loom, and write it as .h5ad",
    ".xlsx": "save its sheet as .csv",
    ".xls": "save its sheet as .csv",
    ".h5mu": "write its modality of gene expression as .h5ad",
    ".parquet": "write its table as .csv, or as .h5ad",
    ".pq": "write its table as .csv, or as .h5ad",
    **dict.fromkeys((".json", ".toml"), "write a configuration as .yaml, and a table as .csv"),
    ".yaml": "it looks like a configuration, where cells are expected",
    ".yml": "it looks like a configuration, where cells are expected",
}


def open_source(config: DataConfig) -> AnnData:
    """The AnnData behind `data.path`; its values, genes and labels are checked later. Raises DataError, ConfigError."""
    return find_source(config)()


@contextmanager
def source_in_file(config: DataConfig) -> Iterator[AnnData]:
    """The same; the matrices of an .h5ad file stay in it (see h5ad_in_file) and can be read within the context."""
    read = find_source(config)
    if isinstance(read, partial) and read.func is read_h5ad:
        with h5ad_in_file(*read.args) as adata:
            yield adata
    else:
        yield read()


def find_source(config: DataConfig) -> Callable[[], AnnData]:
    """What reads `data.path`, which exists and has a known format. Raises DataError, ConfigError."""
    scheme, colon, name = config.path.partition(":")
    if colon and scheme in SCHEMES:
        if config.orientation is not None:
            raise _needs_no_orientation(config)
        if config.backed:
            raise _not_in_pieces(config)
        return partial(SCHEMES[scheme], name, config)
    if not config.path.strip():
        raise DataError(f"data.path is empty; set data.path to a file or to {_known_sources()}.")
    if "://" in config.path:
        if scheme == "file":
            raise DataError(f"{config.path} is an address; give the path alone, as {name.removeprefix('//')}.")
        raise DataError(f"{config.path} is an address, and grn reads files; download it first.")
    path = Path(config.path)
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path} is a symbolic link that leads nowhere or to itself; set data.path to a file.")
    refuse_pipe(path)
    if not path.exists():
        raise DataError(does_not_exist(path, f"set data.path to a file or to {_known_sources()}."))
    reader = _reader(path)
    if reader is None:
        if is_mtx_folder(path.parent) and path.name.lower().endswith((".mtx", ".mtx.gz")):
            raise DataError(f"{path} is one of the three files of a 10x folder; give the folder, {path.parent}.")
        inside = path.with_suffix("") if path.suffix.lower() == ".gz" else path  # of cells.rds.gz: cells.rds
        if path.suffix.lower() in UNPACKED and (inside == path or _reader(inside) or inside.suffix.lower() in UNPACKED):
            raise DataError(f"{path} is packed; unpack it first.")
        if path.suffix.lower() in (".parquet", ".pq"):
            refuse_columns_of_edges(path, _parquet_columns(path))
        if advice := CONVERTED.get(inside.suffix.lower()):
            raise DataError(f"{path} has a format that grn does not read; {advice}.")
        raise DataError(
            f"{path} has no format that grn reads; use {', '.join(READERS)}, a 10x folder, {_known_sources()}."
        )
    if config.backed and reader is not read_h5ad:
        raise _not_in_pieces(config)
    if config.orientation is not None and reader is not read_text:
        raise _needs_no_orientation(config)
    return partial(reader, path, config)


def is_data_file(name: str) -> bool:
    """Whether a name can be that of cells: a source, the ending of a format, or a folder with a matrix."""
    scheme, colon, _ = name.partition(":")
    if colon and scheme in SCHEMES:
        return True
    reader = _reader(Path(name))
    return is_mtx_folder(Path(name)) if reader is read_mtx_folder else reader is not None


def is_text(path: Path) -> bool:
    """Whether it needs `data.orientation`."""
    return _reader(path) is read_text


def _parquet_columns(path: Path) -> list[str]:
    """The names of its columns, without its rows; none of a folder or a file that is damaged."""
    from pyarrow import ArrowException, parquet

    try:
        return list(parquet.read_schema(path).names)
    except (ArrowException, OSError):
        return []


def _reader(path: Path) -> Reader | None:
    found = next((read for ending, read in READERS.items() if path.name.lower().endswith(ending)), None)
    return read_mtx_folder if path.is_dir() and found is not read_zarr_folder else found


def _not_in_pieces(config: DataConfig) -> ConfigError:
    return ConfigError(
        f"data.backed is true, but only .h5ad files are read piece by piece, not {config.path}; set data.backed: false."
    )


def _needs_no_orientation(config: DataConfig) -> ConfigError:
    return ConfigError(
        f"data.orientation is {config.orientation}, but {config.path} is not a text file and needs none; set "
        "data.orientation: null."
    )


def _known_sources() -> str:
    return ", ".join(f"scanpy:{name}" for name in DATASETS) + " or simulated:"
