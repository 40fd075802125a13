"""One module for each family of file formats, which makes an AnnData of a file; registry.py chooses the reader."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from grn.errors import DataError, UserError, one_line


@contextmanager
def reading(what: str, advice: str = "copy or write it again", field: str | None = "data.path") -> Iterator[None]:
    """Within it, whatever a library raises becomes a DataError, `what` with the library's message.

    A damaged file fails anywhere between HDF5, Zarr, NumPy, SciPy, pandas and AnnData, with errors of any type.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* names are not unique")  # data.duplicates decides
            yield
    except Exception as problem:
        if isinstance(problem, (MemoryError, PermissionError, UserError)):  # the machine's fault, or a sentence already
            raise
        raise DataError(f"{what} ({one_line(problem)})", field=field, advice=advice) from problem
