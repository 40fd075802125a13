"""Files and folders that are written completely or not at all, and reading of files that may be damaged.

Writing goes to a temporary name in the same folder, is flushed to the disk, and then takes its final name.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from grn.errors import DataError, RunFolderError, UserError, nearest, one_line
from grn.io.h5ad import FULL, cannot_be_written, refuse_too_little_room, size_of, write_h5ad_file

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData


# Endings of names that nobody gives to a folder: it would pass for a file of that format.
OF_FILES = {
    *(".h5ad", ".h5", ".loom", ".csv", ".tsv", ".txt", ".gz", ".xlsx", ".parquet", ".json", ".yaml", ".yml"),
    *(".html", ".png", ".pdf", ".svg", ".zip"),
}


def refuse_used_folder(output: Path | None) -> None:
    """Raises RunFolderError where `output` exists and is not an empty folder. Called before anything is read."""
    if output is None:
        return
    output = Path(os.path.normpath(output))  # a folder that `..` leads back out of need not exist
    refuse_unwritable_name(output)
    if os.path.lexists(output) and (not output.is_dir() or any(output.iterdir())):
        raise RunFolderError(f"{output} already exists and is not an empty folder; choose another output folder.")
    if not output.is_dir():
        refuse_name_of_file(output)
    refuse_unwritable(output)


def refuse_name_of_file(folder: Path) -> None:
    """Raises RunFolderError where a folder that is to be made is named like a file."""
    if folder.suffix.lower() in OF_FILES:
        raise RunFolderError(
            f"{folder} is named like a file, but a folder is made; choose another output, as {folder.with_suffix('')}."
        )


def refuse_inside(output: Path | None, data: str) -> None:
    """Raises RunFolderError where `output` lies in the folder that holds the cells, as a .zarr folder."""
    cells = Path(data)
    if output is not None and cells.is_dir() and output.resolve().is_relative_to(cells.resolve()):
        raise RunFolderError(f"{output} lies inside {cells}, which holds the cells; choose another output.")


def refuse_unwritable_name(path: Path) -> None:
    """Raises RunFolderError for a name that no text in UTF-8 can hold, and for one that some library reads otherwise.

    Logs and reports say where they lie. Lightning reads ~ and addresses in names of files; nobody else here does.
    """
    if str(path).startswith("~") and (whole := os.path.expanduser(path)) != str(path):
        raise RunFolderError(f"{path} begins with ~, which only a shell reads; give the whole path, {whole}.")
    if address := address_in(path):
        raise RunFolderError(f"{address} is an address, and grn writes files; choose another output.")
    try:
        str(path).encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path).decode("utf-8", "replace")
        raise RunFolderError(f"The name {shown} is not text in UTF-8; choose another output.") from None


def address_in(path: str | os.PathLike[str]) -> str | None:
    """The address (https://..., s3://...) that a path is, of which `Path` has made one / of two; None for others."""
    found = re.match(r"(\w[\w+.-]+:)/+", os.fspath(path))  # C:/folder is a path
    return None if found is None else f"{found[1]}//{os.fspath(path)[found.end() :]}"


def refuse_unwritable(path: Path) -> None:
    """Raises RunFolderError where nothing can be made at `path`: a folder above it is a file, or cannot be written to.

    Called before anything is computed.
    """
    refuse_unwritable_name(path)
    for above in path.absolute().parents:
        if above.is_symlink() and not above.exists():
            raise RunFolderError(
                f"{path} cannot be made, because {above} is a link that leads nowhere; remove it, or choose another "
                "output."
            )
        if above.exists():
            if not above.is_dir():
                raise RunFolderError(f"{path} cannot be made, because {above} is a file; choose another output.")
            try:
                handle, name = tempfile.mkstemp(dir=above, prefix=".grn-")
            except OSError as error:
                raise RunFolderError(
                    f"{path} cannot be made, because {above} cannot be written to ({error.strerror}); choose another "
                    "output."
                ) from None
            os.close(handle)
            os.unlink(name)
            return


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """Yields a temporary file beside `path`; at the end it replaces `path`, after an exception it is removed.

    Raises RunFolderError where the disk is full, or `path` is a folder.
    """
    if path.is_dir():
        raise RunFolderError(f"{path} is a folder, where a file is to be written; rename or remove it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # The suffix is kept, because writers choose the format by it.
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    except OSError as error:
        error.filename = str(path)  # the temporary name would tell nobody anything
        raise
    os.close(handle)
    beside = Path(name)
    try:
        yield beside
        beside.chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(beside, path)
    except OSError as error:
        if error.errno in FULL:
            raise cannot_be_written(path, error) from error
        raise
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder beside `path`; at the end it replaces `path`, whose old content is removed last.

    Raises RunFolderError where the disk is full.
    """
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
    except OSError as error:
        if error.errno in FULL:
            raise cannot_be_written(path, error) from error
        raise
    except RunFolderError as error:  # of a file in it, which replacing_file could not write
        error.problem = error.problem.replace(str(beside), str(path))
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def remove_leftovers(folder: Path, names: Collection[str]) -> None:
    """Removes temporary files and folders, at any depth, that a killed process left beside files of these names."""
    left = re.compile(rf"\.({'|'.join(map(re.escape, names))})-\w{{8}}(-old|\.\w+)?")
    for path in [path for path in folder.rglob(".*") if left.fullmatch(path.name)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def nearest_file(path: Path, folders: bool = False) -> Path | None:
    """The file or folder beside `path` whose name is most like that of `path`, for messages; None where none is.

    folders: of folders alone.
    """
    names: list[str] = []
    with suppress(OSError):
        shown = [entry for entry in path.parent.iterdir() if not entry.name.startswith(".")]
        names = [entry.name for entry in shown if entry.is_dir() or not folders]
    # An ending that many files have makes no two names alike.
    alike = [name for name in names if Path(name).suffix != path.suffix or nearest(path.stem, [Path(name).stem])]
    near = nearest(path.name, alike)
    return path.parent / near if near else None


def as_a_shell_reads(path: str | os.PathLike[str]) -> str | None:
    """The path with the user's folder for ~ and values for $NAME, if it is another one that exists, else None."""
    whole = os.path.expandvars(os.path.expanduser(path))
    return whole if whole != os.fspath(path) and os.path.exists(whole) else None


def folder_with(path: Path, start: Path) -> Path | None:
    """The folder, `start` or one above it, in which a relative path exists, for messages; None where none has it."""
    if path.is_absolute() or os.path.exists(path):
        return None
    return next((above for above in (start, *start.parents) if os.path.exists(above / path)), None)


def does_not_exist(path: Path, otherwise: str, near: Path | None = None, folders: bool = False) -> str:
    """The sentence about a path that does not exist, and what to do: the path that a shell would have read, the nearest
    name (or `near`, where the caller knows better; with `folders`, of folders alone), or `otherwise`."""
    if address := address_in(path):
        return f"{address} is an address, and grn reads files; download it first."
    if whole := as_a_shell_reads(path):
        return f"{path} does not exist: only a shell reads ~ and $ in it; give the whole path, {whole}."
    if path.is_symlink():
        return f"{path} is a link that leads nowhere; {otherwise}"
    near = near or nearest_file(path, folders)
    return f"{path} does not exist; " + (f"did you mean {near}?" if near else otherwise)


# How files begin that often have the name of another kind, what they are, and what to do.
DISGUISED = {
    b"\x1f\x8b": "is packed by gzip, which its name does not say; unpack it first (gunzip)",
    b"PK\x03\x04": "is an Excel file or a zip archive; save its sheet as .csv, or unpack it first",
    b"\xd0\xcf\x11\xe0": "is an Excel file; save its sheet as .csv",
    b"\x89HDF": "is an HDF5 file, where a text is expected; give a text file, or write the table as one",
    b"PAR1": "is a parquet file; give it the ending .parquet",
    b"version https://git-lfs": "is a pointer of Git LFS and not the file itself; get that with git lfs pull",
    **dict.fromkeys((b'{"', b'[{"', b'["'), "is JSON; write it as a text file, with a line for each of its entries"),
}


def disguised(path: Path) -> str | None:
    """What a file is, by how it begins, and what to do, where that is not what its name says; None for any other."""
    with suppress(OSError), path.open("rb") as file:
        begins = file.read(32)
        return next((what for magic, what in DISGUISED.items() if begins.startswith(magic)), None)
    return None


def is_web_page(begins: bytes) -> bool:
    """Whether a file that begins so is HTML."""
    return begins.lstrip()[:9].lower().startswith((b"<!doctype", b"<html"))


def instead_of_hdf5(path: Path) -> str | None:
    """What a file is that should be HDF5 (.h5ad, .h5) and is not, and what to do; None where it may be damaged HDF5."""
    if found := disguised(path):
        return None if found == DISGUISED[b"\x89HDF"] else found
    if not path.is_file():
        return None
    with path.open("rb") as file:
        begins = file.read(1000)
    if not begins:
        return "is empty; copy or write it again"
    if is_web_page(begins):
        return "is a web page, as of a sign-in or an error; download the file again"
    try:
        text = begins.decode() if len(begins) < 1000 else begins.rpartition(b"\n")[0].decode()
    except UnicodeDecodeError:
        return None
    if not text or not all(letter.isprintable() or letter in "\t\r\n\ufeff" for letter in text):
        return None
    ending = ".tsv" if "\t" in text else ".csv"
    return f"is a text, where its name says HDF5; if it is a table, let its name end in {ending}"


def refuse_pipe(path: Path) -> None:
    """Raises DataError for what is neither a file nor a folder: reading it may wait for ever, and works only once."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(f"{path} is neither a file nor a folder but a pipe or device; write it to a file first.")


@contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """`path` opened for reading, decompressed where its name ends in .gz.

    Raises DataError for a folder, a pipe, a file of another kind and a damaged .gz file; some damage is found only at
    the end of the file.
    """
    refuse_pipe(path)
    packed = path.name.lower().endswith(".gz")
    found = disguised(path)
    if found and not packed:
        raise DataError(f"{path} {found}.")
    if packed and found != DISGUISED[b"\x1f\x8b"] and path.is_file() and path.stat().st_size:
        if found:
            raise DataError(f"{path} {found}.")
        raise DataError(f"{path} is not packed by gzip, though its name ends in .gz; remove that ending from its name.")
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            yield cast(IO[bytes], file)
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise DataError(f"{path} is damaged or truncated ({one_line(problem)}); copy or write it again.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder; give the path of a file.") from None


def read_anndata(path: Path, *, backed: bool = False) -> AnnData:
    """The AnnData in an .h5ad file; backed: its X stays in the file. Raises DataError for a damaged file."""
    import anndata

    try:
        path.open("rb").close()  # where reading is forbidden, this error names the file; HDF5's own does not
        refuse_endless(path)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* names are not unique")  # data.duplicates decides
            adata = anndata.read_h5ad(path, backed="r" if backed else None)
        if not backed or "X" in adata.file:
            adata.X  # noqa: B018  (backed files read X late; damage must be found here)
        return adata
    except (PermissionError, DataError):  # the first is a fault of the machine: cli/exit_codes.py
        raise
    except MemoryError as problem:
        if _shapes_are_damaged(path):
            raise damaged_h5ad(path, problem) from problem
        raise
    except Exception as problem:
        raise damaged_h5ad(path, problem) from problem


def _shapes_are_damaged(path: Path) -> bool:
    """Whether a sparse matrix of the file claims another number of rows or columns than it has pointers for."""
    import h5py

    wrong: list[str] = []

    def look(name: str, found: Any) -> None:
        sparse = isinstance(found, h5py.Group) and "indptr" in found and "shape" in found.attrs
        if sparse and len(found["indptr"]) - 1 not in list(found.attrs["shape"]):
            wrong.append(name)

    with suppress(Exception), h5py.File(path, "r") as file:
        file.visititems(look)
    return bool(wrong)


def refuse_endless(path: Path) -> None:
    """Raises DataError where HDF5 would read the texts of a damaged file for ever, or crash.

    Damage can lead HDF5's lists of texts (attributes, names) in a circle, which nothing in this process could stop. So
    a process of its own reads them first, within a limit of processor time. Where there is no such process (only Linux
    has one that is cheap and safe), or it is held up by something else, nothing is said.
    """
    if sys.platform != "linux":
        return
    status = path.stat()
    known = (str(path.absolute()), status.st_size, status.st_mtime_ns)
    if known not in _ENDS:
        _ENDS[known] = _read_apart(path, int(SECONDS_OF_TEXTS + status.st_size / BYTES_A_SECOND))
    if not _ENDS[known]:
        raise DataError(f"{path} cannot be read: HDF5 does not get to the end of its texts; copy or write it again.")


SECONDS_OF_TEXTS, BYTES_A_SECOND = 2, 2e7  # far more than a sound file needs
HELD_UP = 60  # seconds, at least, after which the process that reads texts is left alone
_ENDS: dict[tuple[str, int, int], bool] = {}


def _read_apart(path: Path, seconds: int) -> bool:
    """Whether another process gets to the end of the file's texts in so many seconds of processor time."""
    import resource

    import h5py

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads: the new process needs none of them
        child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            with h5py.File(path, "r") as file:
                _read_texts(file)
                file.visititems(lambda name, found: _read_texts(found))
        finally:  # whatever is wrong: the reader has the sentence for it
            os._exit(0)
    until, pause = time.monotonic() + max(HELD_UP, 20 * seconds), 0.0005
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return not os.WIFSIGNALED(ended[1])


def _read_texts(found: Any) -> None:
    """The attributes of an HDF5 object, and its values where they are texts of any length."""
    import h5py

    with suppress(Exception):
        for name in found.attrs:
            found.attrs[name]
        if isinstance(found, h5py.Dataset) and h5py.check_vlen_dtype(found.dtype) is not None and found.ndim:
            for first in range(0, len(found), 1 << 16):
                found[first : first + (1 << 16)]


def number_advice(text: str) -> str | None:
    """What to do about a number that only people of some countries can read, as 0,5 and 1,000; None for other texts."""
    if re.fullmatch(r"[-+]?\d*(,\d+)+(\.\d*)?([eE][-+]?\d+)?", text.strip()):
        return "write numbers with a decimal point, and no comma in them"
    return None


@contextmanager
def table_of_run(path: Path) -> Iterator[None]:
    """Within it, what pandas and pyarrow raise for a damaged table of a run becomes a DataError about `path`."""
    try:
        yield
    except (MemoryError, PermissionError, UserError):
        raise
    except FileNotFoundError:
        raise DataError(f"{path} does not exist any more; restore it, or train again.") from None
    except Exception as problem:
        raise DataError(f"{path} is damaged ({one_line(problem)}); restore it, or train again.") from problem


def read_edge_table(path: Path, **options: Any) -> pd.DataFrame:
    """An edges.parquet or edges_by_type.parquet. options: of pandas.read_parquet. Raises DataError where damaged."""
    import pandas as pd

    with table_of_run(path):
        table = pd.read_parquet(path, **options)
        for name in options.get("columns", EDGE):
            if name not in table:
                raise ValueError(f"it has no column {name}")
            if name in NUMBERS and not pd.api.types.is_float_dtype(table[name]):
                raise ValueError(f"its column {name} holds no numbers")
        if "weight" in table and table["weight"].isna().any():
            raise ValueError("a weight is missing")
    return table


NUMBERS = ("weight", "confidence")
EDGE = ("source", "target", *NUMBERS)


def damaged_h5ad(path: Path, problem: Exception) -> DataError:
    """The error for a damaged file, on which HDF5, NumPy, pandas or AnnData fail with exceptions of their own."""
    import h5py

    if found := instead_of_hdf5(path):
        return DataError(f"{path} {found}.")
    with suppress(OSError, RuntimeError), h5py.File(path, "r") as file:
        if "obs" not in file and "row_attrs" in file:
            return DataError(f"{path} is a loom file; read it with anndata.io.read_loom, and write it as .h5ad.")
        if file.attrs.get("encoding-type") == "MuData":
            return DataError(f"{path} is a MuData file; write its modality of gene expression as .h5ad.")
        if "obs" not in file and "var" not in file and "matrix" in file:
            return DataError(f"{path} is a 10x file, not an AnnData; rename it so that it ends in .h5.")
        if "obs" not in file and "var" not in file:
            held = ", ".join(map(repr, list(file)[:5])) or "nothing"
            return DataError(f"{path} is no AnnData: it holds {held}, and neither obs nor var; give another file.")
        if isinstance(x := file.get("X"), h5py.Dataset) and x.ndim != 2:  # AnnData's words for it change
            problem = ValueError("X is no matrix")
    if "already open for" in str(problem):
        return DataError(
            f"{path} is open in another program that writes it, or was when that stopped; close it there, or write it "
            "again."
        )
    if unknown := re.search(r"encoding_type='([\w-]+)', encoding_version='([\d.]+)'", str(problem)):
        return DataError(
            f"{path} cannot be read as .h5ad: a part of it is a {unknown[1]} in version {unknown[2]}, which the "
            "installed anndata does not know; update anndata, or write the file with this one."
        )
    reason = one_line(problem)
    if re.search(r"<class|object has no attribute|dtype|IOSpec|not subscriptable|unsupported operand", reason):
        reason = "its parts are not those of an AnnData"  # Python's words would tell nobody anything
    return DataError(
        f"{path} cannot be read as .h5ad ({reason}); it is damaged, truncated or of another format: copy or write it "
        "again."
    )


def write_anndata(path: Path, adata: AnnData) -> None:
    """Writes `adata` as the .h5ad file `path`, completely or not at all. Raises RunFolderError on a full disk."""
    import anndata

    refuse_too_little_room(path, size_of(adata))

    # pandas 3 stores text in string arrays; anndata 0.12 writes them only with this option (0.11 and newer read them).
    option = "allow_write_nullable_strings"
    known = {option: True} if hasattr(anndata.settings, option) else {}
    with replacing_file(path) as beside, anndata.settings.override(**known):
        write_h5ad_file(beside, adata)


def write_text(path: Path, text: str) -> None:
    """Writes `text` as the file `path` in UTF-8, completely or not at all."""
    with replacing_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
