"""AnnData files (.h5ad): read with errors that name the file, written completely or not at all.

After a write that failed, HDF5 tries again when the process ends, and ends it with a segmentation
fault. So it is given a file that takes whatever it writes, and remembers the first error for us.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grn.runtime.atomic import replacing_file
from grn.runtime.errors import DataError, one_line

if TYPE_CHECKING:
    from anndata import AnnData

TRIED = 1000  # cells whose table is written on trial
COPIED = 1 << 25  # bytes that are copied at a time
SPARSE = ("data", "indices", "indptr")


def read_anndata(path: Path) -> AnnData:
    """The AnnData in an .h5ad file. Raises DataError for a damaged file."""
    import anndata

    try:
        # where reading is forbidden, this error names the file; HDF5's own does not
        path.open("rb").close()
        with warnings.catch_warnings():
            # data.duplicates decides
            warnings.filterwarnings("ignore", message=".* names are not unique")
            return anndata.read_h5ad(path)
    except (MemoryError, PermissionError):  # faults of the machine: cli/exit_codes.py
        raise
    except Exception as problem:
        raise damaged_h5ad(path, problem) from problem


def damaged_h5ad(path: Path, problem: Exception) -> DataError:
    import h5py

    with suppress(OSError, RuntimeError), h5py.File(path, "r") as file:
        if "obs" not in file and "matrix" in file:
            return DataError(
                f"{path} is a 10x file, not an AnnData", advice="rename it so that it ends in .h5"
            )
    return DataError(
        f"{path} cannot be read as .h5ad ({one_line(problem)})",
        advice="it is damaged, truncated or of another format: copy or write it again",
    )


def write_anndata(path: Path, adata: AnnData, compression: str | None = None) -> None:
    """Write `adata` as the .h5ad file `path`, completely or not at all.

    Raises RunFolderError on a full disk.
    """
    from anndata.experimental import write_dispatched

    adata.strings_to_categoricals()
    if adata.raw is not None:
        adata.strings_to_categoricals(adata.raw.var)
    with new_h5ad(path) as store:
        write_dispatched(
            store, "/", adata, _write_part, dataset_kwargs={"compression": compression}
        )


def refuse_unwritable_parts(adata: AnnData, name: str) -> None:
    """Raise DataError where a table, or a part of uns, cannot be written: called before the work,
    whose result would be lost. Of obs, the first cells are tried.

    name: of the AnnData, in messages.
    """
    import h5py
    from anndata.io import write_elem

    parts: dict[str, Any] = {"obs": adata.obs.head(TRIED), "var": adata.var}
    parts |= {} if adata.raw is None else {"raw.var": adata.raw.var}
    parts |= {f"uns[{key!r}]": value for key, value in adata.uns.items()}
    with of_any_pandas(), h5py.File(io.BytesIO(), "w") as store:
        for place, (part, value) in enumerate(parts.items()):
            try:
                write_elem(store, str(place), value)
            except Exception as problem:
                raise DataError(
                    f"{part} of {name} cannot be written as .h5ad ({one_line(problem)})",
                    advice="rename or remove that part",
                ) from problem


@contextmanager
def new_h5ad(path: Path) -> Iterator[Any]:
    """A new HDF5 file, which replaces `path` at the end if all was written.

    Raises RunFolderError on a full disk.
    """
    import h5py

    with replacing_file(path) as beside, RememberingFile(beside) as file, of_any_pandas():
        try:
            with h5py.File(file, "w") as store:
                yield store
        except Exception:  # once a write has failed, HDF5 reads back what it did not write
            if file.problem is None:
                raise
        file.raise_problem()


@contextmanager
def of_any_pandas() -> Iterator[None]:
    """pandas 3 stores text in string arrays; anndata 0.12 writes them only within this (0.11 and
    newer read them).

    A column of obs with a "/" in its name, which anndata 0.13 no longer writes by itself, stays as
    it was read.
    """
    import anndata

    options = {"allow_write_nullable_strings": True, "disallow_forward_slash_in_h5ad": False}
    known = {
        option: value for option, value in options.items() if hasattr(anndata.settings, option)
    }
    with anndata.settings.override(**known), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Forward slashes will be")
        yield


def _write_part(
    write: Any, store: Any, key: str, part: Any, dataset_kwargs: Any, iospec: Any
) -> None:
    """Write a part of an AnnData; matrices in another file, which AnnData would read whole, are
    copied in pieces.
    """
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
    copy = store.create_dataset(key, source.shape, source.dtype)
    copy.attrs.update(source.attrs)
    step = max(1, COPIED * len(source) // max(source.nbytes, 1)) if len(source) else 1
    for first in range(0, len(source), step):
        copy[first : first + step] = source[first : first + step]


class RememberingFile(io.FileIO):
    """A new file whose writes never fail: the first error is kept in `problem`, and later writes
    are dropped.
    """

    def __init__(self, path: Path):
        super().__init__(path, "w+b")
        self.problem: OSError | None = None

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while len(rest) and self.problem is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.problem = error
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            if self.problem is None:
                return super().truncate(size)
        except OSError as error:
            self.problem = error
        return size or 0

    def raise_problem(self) -> None:
        if self.problem is not None:
            raise self.problem
