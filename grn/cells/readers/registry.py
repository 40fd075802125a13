"""Which reader opens `data.path`: READERS by the ending of a file or folder, SCHEMES by the word before a colon.

To add a file format:
1. write grn/cells/readers/NAME.py with `read_NAME(path, config) -> AnnData`, which raises DataError for damaged files;
2. add its ending to READERS below;
3. add a writer of it to tests/data/readers/test_formats.py, which compares its cells with those of an .h5ad file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from anndata import AnnData

from grn.cells.readers.h5ad import h5ad_in_file, read_h5ad
from grn.cells.readers.memory import refuse_memory
from grn.cells.readers.mtx_folder import is_mtx_folder, read_mtx_folder
from grn.cells.readers.scanpy_datasets import DATASETS, open_scanpy_dataset
from grn.cells.readers.tenx import read_tenx_h5
from grn.cells.readers.text_matrix import ENDINGS as TEXT_ENDINGS
from grn.cells.readers.text_matrix import read_text, refuse_columns_of_edges
from grn.cells.readers.zarr_folder import read_zarr_folder
from grn.cells.simulated import open_simulated
from grn.config.schema import DataConfig
from grn.errors import ConfigError, DataError
from grn.io.tables import does_not_exist

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
