"""Data sets that come with scanpy: the source `scanpy:NAME` of data.path."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError

from anndata import AnnData

from grn.config.schema import DataConfig
from grn.errors import DataError, one_line


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
