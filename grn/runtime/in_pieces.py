"""An AnnData whose counts are written a piece at a time: an .h5ad file or a .zarr folder,
completely or not at all.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grn.runtime.atomic import replacing_folder
from grn.runtime.h5ad import new_h5ad, of_any_pandas

if TYPE_CHECKING:
    from anndata import AnnData
    from scipy import sparse

CHUNK, SHARD = (
    2**16,
    2**22,
)  # numbers that are read at once; of a file of a .zarr folder, and that are written at once


def write_in_pieces(path: Path, adata: AnnData, pieces: Iterator[sparse.csr_matrix]) -> None:
    """Write `adata`, which has no X, with the pieces as its X, CSR.

    Raises RunFolderError on a full disk.
    """
    import anndata
    import zarr

    adata.strings_to_categoricals()
    if path.suffix == ".h5ad":
        with new_h5ad(path) as store:
            _write(store, adata, pieces, chunks=(CHUNK,))
        return
    ours = {
        "zarr_write_format": 3,
        "auto_shard_zarr_v3": False,
    }  # the shards are those of CHUNK and SHARD
    with replacing_folder(path) as beside, of_any_pandas():  # which keeps this filter, too, inside
        # anndata 0.13 follows the folder's format, and announces that it will drop the setting
        warnings.filterwarnings("ignore", "This setting will be removed", DeprecationWarning)
        known = {name: value for name, value in ours.items() if hasattr(anndata.settings, name)}
        with anndata.settings.override(**known):
            _write(
                zarr.open_group(beside, mode="w", zarr_format=3),
                adata,
                pieces,
                chunks=(CHUNK,),
                shards=(SHARD,),
            )


def _write(
    store: Any, adata: AnnData, pieces: Iterator[sparse.csr_matrix], **arrays: tuple[int]
) -> None:
    import numpy as np
    from anndata.io import sparse_dataset, write_elem
    from scipy import sparse

    write_elem(store, "/", adata)
    none = sparse.csr_matrix((0, adata.n_vars), dtype=np.float32)
    write_elem(store, "X", none, dataset_kwargs={"indptr_dtype": np.int64, **arrays})
    stored = sparse_dataset(store["X"])
    held: list[sparse.csr_matrix] = []
    for piece in pieces:
        held.append(piece)
        # Zarr writes a shard again for whatever is added to it
        if sum(part.nnz for part in held) >= SHARD:
            stored.append(sparse.vstack(held, format="csr"))
            held.clear()
    if held:
        stored.append(sparse.vstack(held, format="csr"))
    cells = stored.shape[0]
    assert cells == adata.n_obs, (
        f"{cells} cells were read and {adata.n_obs} named: a file changed meanwhile"
    )
