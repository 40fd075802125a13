"""The run folder: `runs/<config>-<date>-<n>` unless the user names one; never a folder with files in it."""

from __future__ import annotations

import datetime
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grn.errors import CellsNotStored, ConfigError, DataError, RunFolderError
from grn.io.atomic import does_not_exist, nearest_file, refuse_endless, refuse_unwritable, refuse_used_folder

RUNS = Path("runs")
CELLS = re.compile(r"  (\d+) cells x \d+ genes \(")  # how a run's log begins
LOG, CONFIG, COMPLETE = "log.txt", "config.yaml", "report.html"  # in the order in which a run writes them
# Names, without their endings, of what a run writes: a killed run may leave temporary files beside these.
WRITTEN = ("config", "truth", "metrics", "last", "best", "model", "network", "edges", "confusion", "report")


def config_of(run: Path, needed: tuple[str, ...] = (LOG, CONFIG)) -> Path:
    """The configuration file in a run folder. Raises RunFolderError where a `needed` file is missing, and for a folder
    with parts of different runs."""
    if not run.exists():
        raise RunFolderError(no_such_run(run, "give a run folder."))
    if (run / "card.json").is_file():
        raise RunFolderError(f"{run} is the model folder of a run; give the folder of the run.")
    if run.is_file():
        raise RunFolderError(f"{run} is a file; give the folder of a run{run_near(run)}.")
    missing = [name for name in needed if not (run / name).is_file()]
    if missing:
        raise RunFolderError(
            f"{run} is not a run folder: it has no {missing[0]}; give a folder that grn train made{run_near(run)}."
        )
    refuse_mixed_parts(run)
    return run / CONFIG


def no_such_run(run: Path, otherwise: str) -> str:
    """The sentence about the folder of a run that does not exist, and what to do: a run of that name among the runs of
    this folder, the nearest folder, or `otherwise`."""
    inside = RUNS / run
    near = inside if inside.is_dir() else nearest_file(run, folders=True)
    return does_not_exist(run, otherwise, near or nearest_file(inside, folders=True), folders=True)


def run_near(path: Path, parts: Iterable[str] = (LOG, CONFIG)) -> str:
    """The run that a wrong path may stand for, as the end of a sentence: the folder that a file is in, or the first of
    the folders in a folder; `parts` are the files that make it one."""
    with suppress(OSError):
        folders = [path.parent] if path.is_file() else sorted(each for each in path.iterdir() if each.is_dir())
        near = next((each for each in folders if all((each / name).is_file() for name in parts)), None)
        if near is not None:
            return f", {near}" if path.is_file() else f", as {near}"
    return ""


def refuse_cut_off(run: Path, needed: Iterable[str]) -> None:
    """Raises RunFolderError where a run has not written a `needed` file or folder yet, or where that is lost.

    A folder that is no run says nothing here: its reader has the sentence for it.
    """
    missing = [name for name in needed if not (run / name).exists()]
    is_model = (run / "model.safetensors").is_file()  # a model folder has a config.yaml, too
    if not missing or is_model or not all((run / name).is_file() for name in (CONFIG, LOG)):
        return
    if (run / COMPLETE).is_file():
        raise RunFolderError(f"The run in {run} was complete, and {missing[0]} is lost; restore it, or train again.")
    raise RunFolderError(
        f"The run in {run} was cut off, as {missing[0]} is missing; grn train --resume {run} goes on with it."
    )


def refuse_lost(run: Path) -> None:
    """Raises RunFolderError where a complete run has lost what every run writes, which resuming cannot bring back."""
    if (run / COMPLETE).is_file():
        refuse_cut_off(run, ("model", "network.h5ad", "edges.parquet"))


@contextmanager
def read_again(run: Path) -> Iterator[None]:
    """Within it, what is wrong with the cells, lists or settings that a run was started with is said to be so.

    They were right when the run was started, so that advice to give others would not help by itself. Cells that were
    never stored are neither lost nor changed: their sentence stays as it is.
    """
    try:
        yield
    except CellsNotStored:
        raise
    except (ConfigError, DataError) as error:
        error.problem, error.advice = (
            f"The files or settings that {run / CONFIG} names are not those that the run was started with; restore "
            f"them, or train again: {error}",
            None,
        )
        raise


def refuse_mixed_parts(run: Path) -> None:
    """Raises RunFolderError where files of a run's folder are of different runs, by the model's hash that each holds.

    A file that is missing, damaged or of an older version says nothing here: its reader has the sentence for it.
    """
    hashes = {}
    for name, hash_in in HASHES.items():
        with suppress(Exception):
            if (run / name).is_file() and (found := hash_in(run / name)):
                hashes[name] = found
    counted = Counter(hashes.values()).most_common()
    if len(counted) > 1:
        odd = next(name for name in reversed(hashes) if hashes[name] == counted[-1][0])
        other = next(name for name in hashes if hashes[name] == counted[0][0])
        raise RunFolderError(
            f"{run / odd} is of another run than {run / other}, by the hash of the model that they hold; restore the "
            "run's own file, or train again."
        )


def _hash_in_card(path: Path) -> str:
    return str(json.loads(path.read_bytes())["hash"])


def _hash_in_network(path: Path) -> str:
    import h5py

    refuse_endless(path)
    with h5py.File(path, "r") as file:
        return file["uns/grn/model_hash"].asstr()[()]


def _hash_in_table(path: Path) -> str:
    import pyarrow.parquet as pq

    return (pq.read_schema(path).metadata or {}).get(MODEL_HASH, b"").decode()


MODEL_HASH = b"grn_model_hash"  # a key in the metadata of a run's parquet files
HASHES: dict[str, Callable[[Path], str]] = {
    "model/card.json": _hash_in_card,
    "network.h5ad": _hash_in_network,
    "edges.parquet": _hash_in_table,
    "edges_by_type.parquet": _hash_in_table,
}


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Locks a run folder; the lock also ends with this process, however that ends.

    Raises RunFolderError where another process has locked it.
    """
    with (run / LOG).open("a") as log:
        try:
            import fcntl
        except ImportError:  # Windows has no such locks
            yield
            return
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(f"Another process is working on the run in {run}; wait for it, or stop it.") from None
        yield


def cells_in(log: Path) -> int | None:
    """How many cells a run had, as its log says; None where it does not."""
    found = CELLS.search(log.read_text("utf-8", "replace")) if log.is_file() else None
    return None if found is None else int(found[1])


def make_run_folder(output: Path | None, config_name: str, root: Path = RUNS) -> Path:
    """Makes the folder `output`, or the next free `root/<config_name>-<date>-<n>`, and returns it.

    A run calls this after reading its cells, so that a wrong path or field leaves nothing behind. Raises
    RunFolderError.
    """
    if output is not None:
        refuse_used_folder(output)
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(_refused(output, error)) from None
        return output
    today = datetime.date.today().isoformat()
    for number in range(1, 100_000):
        folder = root / f"{config_name}-{today}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            if not root.is_dir():
                refuse_unwritable(folder)
            continue
        except OSError as error:
            refuse_unwritable(folder)  # it names the folder or file above that is in the way
            raise RunFolderError(_refused(folder, error)) from None
        return folder
    raise RunFolderError(
        f"{root} has 100000 runs of {config_name} from today; choose an output folder with another name."
    )


def remove_run(folder: Path, *, keep_folder: bool) -> None:
    """Removes what a run has written into its folder, and the folder unless it was there before the run."""
    for path in folder.iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    if not keep_folder:
        with suppress(OSError):
            folder.rmdir()
            if folder.parent == RUNS:
                RUNS.rmdir()  # where this was its only run


def _refused(folder: Path, error: OSError) -> str:
    return f"{folder} cannot be made ({error.strerror}); choose an output folder that can be written to."
