"""The format of an HDF5 file by the groups that it has: its name may say something else."""

from __future__ import annotations

from pathlib import Path

import h5py

ENDINGS = (".h5ad", ".h5", ".hdf5", ".loom", ".h5mu", ".h5seurat")
KINDS = {
    "h5mu": {"mod"},
    "molecules": {"barcode_idx", "feature_idx"},
    "h5seurat": {"assays", "cell.names"},
    "loom": {"matrix", "row_attrs", "col_attrs"},
    "h5ad": {"obs", "var"},
}


def kind_of(path: Path) -> str | None:
    """Return the format of an HDF5 file: a key of KINDS, or `10x`.

    None: another format, or a file that cannot be opened, about which its reader will complain.
    """
    if not (path.is_file() and path.name.lower().endswith(ENDINGS)):
        return None
    try:
        with h5py.File(path, "r") as file:
            groups = set(file)
            of_tenx = any(
                isinstance(group, h5py.Group) and {"barcodes", "indptr"} <= set(group)
                for group in file.values()
            )
    except OSError:
        return None
    return next((kind for kind, own in KINDS.items() if own <= groups), "10x" if of_tenx else None)
