"""Readers, which make an AnnData of a file: one module for each family of formats. registry.py
chooses among them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grn.runtime.errors import DataError, UserError, one_line

if TYPE_CHECKING:
    from anndata import AnnData

NOTES = "grn_notes"  # key in uns: sentences about how a file was read
NOT_DAMAGED = {
    "unable to lock file": "another program writes to it, which has to close it first; on a disk "
    "that cannot lock files, set the environment variable HDF5_USE_FILE_LOCKING to FALSE",
    "No read method registered": "a newer anndata has written it: install that (pip install "
    "--upgrade anndata), or write the file without that part",
}
"""Words of a library's message, and advice in place of the usual one."""


@contextmanager
def reading(
    what: str, advice: str = "copy or write it again", field: str | None = "data.path"
) -> Iterator[None]:
    """Turn whatever a library raises within the context into a DataError.

    A damaged file fails anywhere between HDF5, Zarr, NumPy, SciPy, pandas and AnnData, with errors
    of any type. A few of their messages are about files that are not damaged (NOT_DAMAGED).

    what: the problem, which the library's message follows in brackets.
    advice, field: of the DataError.
    """
    try:
        with warnings.catch_warnings():
            # data.duplicates decides
            warnings.filterwarnings("ignore", message=".* names are not unique")
            yield
    except Exception as problem:
        # the machine's fault, or a sentence already
        if isinstance(problem, (MemoryError, PermissionError, UserError)):
            raise
        advice = next(
            (better for words, better in NOT_DAMAGED.items() if words in str(problem)), advice
        )
        raise DataError(f"{what} ({one_line(problem)})", field=field, advice=advice) from problem


def add_note(adata: AnnData, sentence: str) -> None:
    """Note how a file was read, for the user, in a sentence that stays with its AnnData."""
    adata.uns[NOTES] = [*adata.uns.get(NOTES, ()), sentence]


def take_notes(adata: AnnData) -> tuple[str, ...]:
    """Return the sentences about how a file was read, and remove them from its AnnData."""
    return tuple(map(str, adata.uns.pop(NOTES))) if NOTES in adata.uns else ()
