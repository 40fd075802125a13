"""A disk that is full: refused before writing where that can be known, one sentence and no half file where it cannot.

HDF5 keeps what it could not write, tries again when the process ends, and ends it with a segmentation fault. So it is
given a file that takes whatever it writes, and remembers the first error for us.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grn.errors import DataError, RunFolderError, one_line

if TYPE_CHECKING:
    from anndata import AnnData

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # what writing fails with on a disk that is full or broken
SPARE = 1 << 16  # bytes for names and headers
COPIED = 1 << 25  # bytes that are copied at a time
SPARSE = ("data", "indices", "indptr")


def refuse_too_little_room(path: Path, wanted: int) -> None:
    """Raises RunFolderError where the disk that `path` is on has less than `wanted` bytes free."""
    above = next(folder for folder in path.absolute().parents if folder.is_dir())
    free = shutil.disk_usage(above).free
    if free < wanted + SPARE:
        raise RunFolderError(
            f"{path} needs about {in_units(wanted + SPARE)} and the disk has {in_units(free)} left; free some space, "
            "or choose another output."
        )


def cannot_be_written(path: Path, error: OSError) -> RunFolderError:
    """The sentence for an error of FULL."""
    return RunFolderError(f"{path} cannot be written ({error.strerror}); free some space, or choose another output.")


def in_units(size: float) -> str:
    """A number of bytes as text: 512 bytes, 1.5 MB."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def size_of(values: Any) -> int:
    """About how many bytes the arrays in an AnnData, a table or a mapping of them take on the disk."""
    if values is None:
        return 0
    if hasattr(values, "obsm") and hasattr(values, "varp"):
        parts = [
            values.obs,
            values.var,
            *(getattr(values, name) for name in ("layers", "obsm", "varm", "obsp", "varp")),
        ]
        raw = 0 if values.raw is None else size_of(values.raw.X)
        return sum(map(size_of, [values.X, *parts, dict(values.uns)])) + raw
    if hasattr(values, "group"):  # sparse, in a file
        return sum(values.group[part].nbytes for part in SPARSE)
    if hasattr(values, "indptr"):
        return sum(part.nbytes for part in (values.data, values.indices, values.indptr))
    if hasattr(values, "memory_usage"):
        return int(values.memory_usage(deep=True).sum())
    if hasattr(values, "items"):
        return sum(size_of(value) for _, value in values.items())
    return int(getattr(values, "nbytes", 0))


def write_h5ad_file(path: Path, adata: AnnData) -> None:
    """Writes `adata` into the new file `path`, as AnnData's own write_h5ad does. Raises OSError.

    Matrices that are in another file are copied a piece at a time (DataError, where they cannot be read).
    """
    import h5py
    from anndata.experimental import write_dispatched

    adata.strings_to_categoricals()
    if adata.raw is not None:
        adata.strings_to_categoricals(adata.raw.var)
    with path.open("w+b", buffering=0) as plain:
        remembering = RememberingFile(plain)
        try:
            with h5py.File(remembering, "w") as file:
                write_dispatched(file, "/", adata, _write_part)
        except Exception:  # once a write has failed, whatever HDF5 reads back is none of its own
            if remembering.problem is None:
                raise
        if remembering.problem is not None:
            raise remembering.problem


def _write_part(write: Any, store: Any, key: str, part: Any, dataset_kwargs: Any, iospec: Any) -> None:
    """Called by AnnData for every part: those in another file would be read whole."""
    import h5py
    from anndata.abc import CSCDataset, CSRDataset

    if isinstance(part, h5py.Dataset):
        _copy(store, key, part)
    elif isinstance(part, (CSRDataset, CSCDataset)):
        copy = store.create_group(key)
        copy.attrs.update(part.group.attrs)
        for name in SPARSE:
            _copy(copy, name, part.group[name])
    else:
        write(store, key, part, dataset_kwargs=dataset_kwargs)


def _copy(store: Any, key: str, source: Any) -> None:
    """A dataset of HDF5 in a piece of COPIED bytes at a time, all of which are read: damage does not travel."""
    copy = store.create_dataset(key, source.shape, source.dtype)
    copy.attrs.update(source.attrs)
    step = max(1, COPIED * len(source) // max(source.nbytes, 1)) if len(source) else 1
    for first in range(0, len(source), step):
        try:
            piece = source[first : first + step]
        except (OSError, RuntimeError) as problem:
            raise DataError(
                f"{source.name} of {source.file.filename} cannot be read ({one_line(problem)}); the file is damaged: "
                "write it again."
            ) from problem
        copy[first : first + step] = piece


class RememberingFile(io.RawIOBase):
    """A file whose writes never fail: the first error is kept in `problem`, and what follows is dropped."""

    def __init__(self, file: io.FileIO):
        self.file, self.problem = file, None

    file: io.FileIO
    problem: OSError | None

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while len(rest) and self.problem is None:
                rest = rest[os.write(self.file.fileno(), rest) :]
        except OSError as error:
            self.problem = error
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            if self.problem is None:
                return self.file.truncate(size)
        except OSError as error:
            self.problem = error
        return size or 0

    def readinto(self, buffer: Any) -> int | None:
        return self.file.readinto(buffer)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
