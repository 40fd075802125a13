"""Cells as a caller has them in memory: what an AnnData must be before anything is done with it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

from grn.runtime.errors import DataError

if TYPE_CHECKING:
    from anndata import AnnData


@contextmanager
def writing_into_views() -> Iterator[None]:
    """Without anndata's warnings about writing into a view of other cells: it turns into a copy, as
    is meant.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Trying to modify attribute|.*initializing view as actual"
        )
        yield


def into_memory_where_view_of_file(adata: AnnData) -> None:
    """Read a part of a backed AnnData into memory, so that it can be written into.

    AnnData does so by itself where the whole is in memory; of a backed one it would write a file,
    and asks for a name.
    """
    if adata.isbacked and adata.is_view:
        adata._init_as_actual(adata.to_memory())


def is_anndata(value: object) -> TypeGuard[AnnData]:
    import anndata

    return isinstance(value, anndata.AnnData)


def cells_of_caller(data: AnnData | None) -> AnnData | None:
    """`data=`: the cells of a run that was trained on an AnnData; None where they are not given.

    Raises DataError.
    """
    return None if data is None else checked_anndata(data)


def checked_anndata(adata: AnnData) -> AnnData:
    """`adata`, if it has cells and genes, and every cell has one name of its own.

    Raises DataError.
    """
    if adata.n_obs == 0 or adata.n_vars == 0:
        raise DataError(
            f"The AnnData has {adata.n_obs} cells x {adata.n_vars} genes; give one that has both."
        )
    if not adata.obs_names.is_unique:
        repeated = adata.obs_names[adata.obs_names.duplicated()]
        raise DataError(
            f"Cell names occur more than once, {len(repeated.unique())} in all (as "
            f"{str(repeated[0])!r}); call adata.obs_names_make_unique() first."
        )
    return adata
