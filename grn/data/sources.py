"""Where the data come from: a file, a set that scanpy knows, or our own generator.

A new format is one entry in READERS, a new source one entry in SCHEMES.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path
from urllib.error import URLError

from anndata import AnnData

from grn.config import DataConfig
from grn.data.simulated import simulate
from grn.errors import DataError, one_line
from grn.files import read_anndata


def open_source(config: DataConfig) -> AnnData:
    """The AnnData behind `data.path`; nothing in it is checked yet. Raises DataError."""
    scheme, colon, name = config.path.partition(":")
    if colon and scheme in SCHEMES:
        return SCHEMES[scheme](name, config)
    path = Path(config.path)
    if not path.exists():
        raise DataError(f"{path} does not exist{_similar(path)}; set data.path to a file or to {_known_sources()}.")
    reader = next((read for suffix, read in READERS.items() if path.name.lower().endswith(suffix)), None)
    if reader is None:
        raise DataError(f"{path} is not a format that is read; use {', '.join(READERS)} or {_known_sources()}.")
    return reader(path, config)


def _read_h5ad(path: Path, config: DataConfig) -> AnnData:
    return read_anndata(path, backed=config.backed)


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


READERS: dict[str, Callable[[Path, DataConfig], AnnData]] = {".h5ad": _read_h5ad}
SCANPY_SETS: dict[str, Callable[[], AnnData]] = {"pbmc68k_reduced": _pbmc68k_reduced, "pbmc3k": _pbmc3k}
SCHEMES: dict[str, Callable[[str, DataConfig], AnnData]] = {"scanpy": _open_scanpy, "simulated": _open_simulated}


def _known_sources() -> str:
    return ", ".join([f"scanpy:{name}" for name in SCANPY_SETS] + ["simulated:"])


def _similar(path: Path) -> str:
    """` (did you mean ...)` when a file of the same folder has nearly that name."""
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside, n=1)
    return f" (did you mean {path.parent / near[0]}?)" if near else ""
