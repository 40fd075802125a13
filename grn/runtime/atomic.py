"""Files and folders that are written completely or not at all, and outputs that are refused before
work starts.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from grn.runtime.errors import RunFolderError

FULL = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
}  # errors of writing to a disk that is full or broken


def refuse_used_folder(output: Path | None) -> None:
    """Raise RunFolderError where `output` exists and is not an empty folder. Called before anything
    is read.
    """
    if output is None:
        return
    if os.path.lexists(output) and (not output.is_dir() or any(output.iterdir())):
        raise RunFolderError(
            f"{output} already exists and is not an empty folder", advice="choose another output"
        )
    refuse_unwritable(output)


def refuse_unwritable(path: Path) -> None:
    """Raise RunFolderError where nothing can be made at `path`. Called before anything is
    computed.
    """
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    try:
        tempfile.TemporaryFile(dir=above).close()
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be made in {above} ({error.strerror})", advice="choose another output"
        ) from None


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path`; at the end it replaces `path`, after an exception it is
    removed.

    Raises RunFolderError where the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix is kept, because writers choose the format by it.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    beside = Path(name)
    try:
        with _full_disk_is_one_sentence(path):
            yield beside
            beside.chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
            with beside.open("rb") as written:
                os.fsync(written.fileno())
            os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path`; at the end it replaces `path` (a symbolic link itself,
    not its target).

    Raises RunFolderError where the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}-"))
    old = beside.with_name(beside.name + "-old")
    try:
        with _full_disk_is_one_sentence(path):
            yield beside
            beside.chmod(0o777 & ~_umask())
            if os.path.lexists(path):
                os.replace(path, old)
            try:
                os.replace(beside, path)
            finally:
                if os.path.lexists(old) and not os.path.lexists(path):
                    os.replace(old, path)
    finally:
        remove(beside)
        remove(old)


def write_text(path: Path, text: str) -> None:
    """Write `text` as the file `path` in UTF-8, completely or not at all."""
    with replacing_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


def remove(path: Path) -> None:
    """Remove a file, a folder or a symbolic link (and not what it leads to); nothing where it does
    not exist.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path, names: Collection[str]) -> None:
    """Remove temporary files and folders, at any depth, that a killed process left beside files of
    these names.
    """
    left = re.compile(rf"\.({'|'.join(map(re.escape, names))})-\w{{8}}(-old|\.\w+)?")
    for above, folders, files in os.walk(folder):
        for name in filter(left.fullmatch, [*folders, *files]):
            remove(Path(above) / name)


@contextmanager
def _full_disk_is_one_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise RunFolderError(
            f"{path} cannot be written ({error.strerror})",
            advice="free some space, or choose another output",
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
