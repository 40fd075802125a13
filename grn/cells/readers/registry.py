"""The choice of the reader that opens `data.path`: SOURCES by name, READERS by the ending of a file
or folder, BY_KIND by its contents.

To add a file format:
1. write grn/cells/readers/NAME.py with `read_NAME(path, config) -> AnnData`, which raises DataError
   for damaged files;
2. add its ending to READERS below;
3. add a writer of it to tests/cells/readers/test_formats.py, which compares its cells with those of
   an .h5ad file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd
from anndata import AnnData

from grn.cells.readers import add_note, reading
from grn.cells.readers.anndata_files import (
    Columns,
    h5ad_in_file,
    matrix_in_file,
    read_h5ad,
    read_zarr_folder,
)
from grn.cells.readers.hdf5 import kind_of
from grn.cells.readers.loom import read_loom
from grn.cells.readers.multimodal import is_zarr, read_h5mu, table_within
from grn.cells.readers.other_formats import advice_about
from grn.cells.readers.tenx import read_tenx_h5
from grn.cells.readers.tenx_folder import holds_matrix, place_within, read_mtx
from grn.cells.readers.text_matrix import ENDINGS as TEXT_ENDINGS
from grn.cells.readers.text_matrix import read_text
from grn.cells.simulated.cells import simulate
from grn.config.schema import DataConfig
from grn.runtime.errors import CellsNotStored, DataError
from grn.runtime.tables import does_not_exist

MEMORY = "memory:"
"""The data.path of cells that were given as an AnnData in memory: it leads to no file."""

Reader = Callable[[Path, DataConfig], AnnData]


def open_source(config: DataConfig) -> AnnData:
    """Read all of `data.path` into memory. Its contents are checked later.

    Raises DataError.
    """
    read = _find(config)
    adata = read()
    if config.path not in SOURCES and (place := read.args[0]) != Path(config.path):
        add_note(adata, f"Cells are read from {place}.")
    return adata


@contextmanager
def source_in_file(
    config: DataConfig, *, everything: bool = True, columns: Columns | None = None
) -> Iterator[AnnData]:
    """Open `data.path`. The matrices of an .h5ad file, and of a .zarr folder of which not
    everything is read, stay on disk and can be read within the context; all else is read into
    memory.

    everything, columns: of .h5ad files and .zarr folders, see h5ad_in_file.
    Raises DataError.
    """
    read = _find(config)
    if read.func is read_h5ad:
        with h5ad_in_file(*read.args, everything=everything, columns=columns) as adata:
            yield adata
    elif read.func is read_zarr_folder:
        yield read(everything=everything, columns=columns)
    else:
        yield open_source(config)


def counts_in_file(config: DataConfig) -> AbstractContextManager[tuple[Any, pd.DataFrame]]:
    """Open the matrix of data.counts in its file, with the table of its genes; nothing about the
    cells is read. `counts.in_file` tells whether the matrix is in a file.
    """
    path = Path(config.path)
    return matrix_in_file(table_within(path) if path.is_dir() else path, config.counts)


def name_of(config: DataConfig) -> str:
    """Return the name of the source in messages."""
    return "The AnnData" if config.path == MEMORY else config.path


def is_data_file(name: str) -> bool:
    """Return whether a name can lead to cells: it is a source, ends as files of a known format do,
    or is a folder with a matrix.
    """
    path = Path(name)
    reader = _reader(path)
    if path.is_dir() and reader is read_mtx:
        return holds_matrix(path) or place_within(path) != path
    return reader is not None or name in SOURCES


def is_text(path: Path) -> bool:
    """Return whether a file is a text file, which needs `data.orientation`."""
    return _reader(path) is read_text


def _find(config: DataConfig) -> partial[AnnData]:
    """Return the reader of `data.path` with its arguments.

    Raises DataError.
    """
    if config.path in SOURCES:
        read: partial[AnnData] = partial(SOURCES[config.path], config)
    else:
        path = Path(config.path)
        if path.is_dir() and _reader(path) is read_mtx:
            path = place_within(path)
        elif path.is_dir() and _reader(path) is read_zarr_folder:
            path = table_within(path)
        reader = _reader(path)
        if (known := advice_about(config.path)) is not None:
            raise DataError(
                f"{config.path} {known.problem}", field="data.path", advice=known.advice
            )
        if reader is None or not path.exists():
            sources = " or ".join(each for each in SOURCES if each != MEMORY)
            problem = does_not_exist(path, f"set {{field}} to a file or to {sources}")
            if path.exists():
                problem = (
                    f"{path} has another format than {', '.join(READERS)}, a 10x folder, "
                    f"{sources}; convert it"
                )
            raise DataError(problem, field="data.path")
        read = partial(reader, path, config)
    if (config.orientation is None) == (read.func is read_text):
        what, advice = "is not a text file and needs none", "set {field} to null"
        if read.func is read_text:
            what = "is a text file, which does not say what its rows are"
            advice = (
                "set {field} to cells_by_genes (a row per cell) or genes_by_cells (a row per gene)"
            )
        raise DataError(
            f"{config.path} {what} ({{field}})", field="data.orientation", advice=advice
        )
    return read


def _reader(path: Path) -> Reader | None:
    """Return the reader of a file or folder; None where its format is not known."""
    found = next(
        (read for ending, read in READERS.items() if path.name.lower().endswith(ending)), None
    )
    if path.is_dir():
        return read_zarr_folder if found is read_zarr_folder or is_zarr(path) else read_mtx
    return BY_KIND.get(kind_of(path), found)


def _refuse_memory(config: DataConfig) -> NoReturn:
    """Raise CellsNotStored: the source MEMORY has no file to read."""
    raise CellsNotStored(
        f"{{field}} is {MEMORY!r}: the cells of this run were an AnnData in memory, which is not "
        f"stored",
        field="data.path",
        advice="give the cells again, in Python as data=, or write them with "
        "adata.write_h5ad(FILE) and set data.path to FILE in the run's config.yaml",
    )


def _pbmc68k_reduced(config: DataConfig) -> AnnData:
    import scanpy

    return scanpy.datasets.pbmc68k_reduced()


def _pbmc3k(config: DataConfig) -> AnnData:
    """Return the counts of the 2638 cells that have a label in scanpy's processed set, with this
    label in obs["louvain"].
    """
    import scanpy

    advice = "connect to the network, or use scanpy:pbmc68k_reduced, which needs no download"
    with reading(
        "scanpy:pbmc3k is downloaded when it is first used, and the download failed", advice
    ):
        counts = scanpy.datasets.pbmc3k()
        labelled = scanpy.datasets.pbmc3k_processed()
    kept = counts.obs_names[counts.obs_names.isin(labelled.obs_names)]
    cells = counts[kept].copy()
    cells.obs["louvain"] = labelled.obs["louvain"].loc[kept].to_numpy()
    return cells


# By the ending of the name, packed endings (.csv.gz) included. A folder with any other ending is
# read as a 10x folder.
READERS: dict[str, Reader] = {
    ".h5ad": read_h5ad,
    ".h5": read_tenx_h5,
    ".zarr": read_zarr_folder,
    ".loom": read_loom,
    ".h5mu": read_h5mu,
    **dict.fromkeys((".mtx", ".mtx.gz"), read_mtx),
    **dict.fromkeys(TEXT_ENDINGS, read_text),
}
# By the contents of an HDF5 file, whatever its name is.
BY_KIND: dict[str | None, Reader] = {
    "h5ad": read_h5ad,
    "10x": read_tenx_h5,
    "loom": read_loom,
    "h5mu": read_h5mu,
}
# Sources without a file of the user's.
SOURCES: dict[str, Callable[[DataConfig], AnnData]] = {
    "scanpy:pbmc68k_reduced": _pbmc68k_reduced,
    "scanpy:pbmc3k": _pbmc3k,
    "simulated:": lambda config: simulate(config.simulated),
    MEMORY: _refuse_memory,
}
