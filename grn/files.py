"""Writing so that nothing is ever half-written: beside its place, flushed to the disk, then moved in. And reading."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from grn.errors import DataError, RunFolderError, one_line

if TYPE_CHECKING:
    from anndata import AnnData


def refuse_used_folder(output: Path | None) -> None:
    """Raises RunFolderError where `output` is there and holds something: asked before anything is read."""
    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RunFolderError(f"{output} already exists and is not an empty folder; give --output another name.")


def refuse_file_above(path: Path) -> None:
    """Raises RunFolderError where `path` lies below a file: asked before anything is computed."""
    for above in path.absolute().parents:
        if above.exists():
            if not above.is_dir():
                raise RunFolderError(f"{path} cannot be made, as {above} is a file; give --output another name.")
            return


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yields a path beside `path` to write to; moved over `path` at the end, removed after an exception."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last: writers choose their format by it.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    beside = Path(name)
    try:
        yield beside
        beside.chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner reads
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder beside `path`; at the end it takes the place of `path`, whose old content goes last."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    old = beside.with_name(beside.name + "-old")
    try:
        yield beside
        beside.chmod(0o777 & ~_umask())
        if path.exists():
            os.replace(path, old)
        try:
            os.replace(beside, path)
        except BaseException:
            if old.exists():
                os.replace(old, path)
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def remove_leftovers(folder: Path, names: Collection[str]) -> None:
    """What the two above had beside files and folders of these names when the process was killed, at any depth."""
    left = re.compile(rf"\.({'|'.join(map(re.escape, names))})-\w{{8}}(-old|\.\w+)?")
    for path in [path for path in folder.rglob(".*") if left.fullmatch(path.name)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """`path` opened for reading, unpacked where its name ends in .gz. Damage shows where it is read to the end.

    Raises DataError for a .gz that is damaged, and for a folder.
    """
    try:
        with gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb") as file:
            yield cast(IO[bytes], file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise DataError(f"{path} is damaged or truncated ({one_line(problem)}); write it again.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder; give a file.") from None


def read_anndata(path: Path, *, backed: bool = False) -> AnnData:
    """An .h5ad file; backed: its X stays in the file. Raises DataError for one that is damaged."""
    import anndata

    try:
        path.open("rb").close()  # where that is refused Python names the file, HDF5 does not
        adata = anndata.read_h5ad(path, backed="r" if backed else None)
        adata.X  # noqa: B018  (backed files open it late; damage is to show here)
        return adata
    except (MemoryError, PermissionError):  # the machine's, not the file's: the boundary has sentences for them
        raise
    except Exception as problem:
        raise damaged_h5ad(path, problem) from problem


def damaged_h5ad(path: Path, problem: Exception) -> DataError:
    """Of a damaged file: it fails anywhere between HDF5, NumPy, pandas and AnnData, with exceptions of their own."""
    return DataError(
        f"{path} cannot be read as .h5ad ({one_line(problem)}); it is damaged, truncated or another format: copy or "
        "write it again."
    )


def write_anndata(path: Path, adata: AnnData) -> None:
    """`adata` as h5ad."""
    import anndata

    # pandas 3 keeps text in string arrays, which anndata 0.12 writes only when asked to (0.11 and newer read them).
    option = "allow_write_nullable_strings"
    known = {option: True} if hasattr(anndata.settings, option) else {}
    with replacing_file(path) as beside, anndata.settings.override(**known):
        adata.write_h5ad(beside)


def write_text(path: Path, text: str) -> None:
    with replacing_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
