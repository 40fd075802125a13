"""One module for each family of file formats, which makes an AnnData of a file; registry.py chooses the reader."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grn.errors import DataError, UserError, one_line


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Within it, what a library raises about `path` becomes a DataError with the library's message.

    A damaged file fails anywhere between HDF5, Zarr, NumPy, SciPy, pandas and AnnData, with errors of any type.
    kind: what the file should be.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* names are not unique")  # data.duplicates decides
            yield
    except Exception as problem:
        if isinstance(problem, (MemoryError, PermissionError, UserError)):  # the machine's fault, or a sentence already
            raise
        advice = "copy or write it again"
        raise DataError(
            f"{path} cannot be read as {kind} ({one_line(problem)})", field="data.path", advice=advice
        ) from problem
