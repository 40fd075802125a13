"""The run folder: `runs/<config>-<date>-<n>` unless the user names one; never a folder with files
in it.
"""

from __future__ import annotations

import datetime
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grn.runtime.atomic import refuse_unwritable, refuse_used_folder, remove
from grn.runtime.errors import RunFolderError
from grn.runtime.tables import does_not_exist

RUNS = Path("runs")
LOG, CONFIG, COMPLETE = (
    "log.txt",
    "config.yaml",
    "report.html",
)  # in the order in which a run writes them
CHECKPOINTS = "checkpoints"  # a folder
# Names, without their endings, of what a run writes: a killed run may leave temporary files beside
# these.
WRITTEN = (
    *(
        "config",
        "truth",
        "metrics",
        "last",
        "best",
        "model",
        "network",
        "edges",
        "edges_by_type",
        "confusion",
    ),
    *("activity", "known", "certain", "report"),
)


def config_of(run: Path, needed: tuple[str, ...] = (LOG, CONFIG)) -> Path:
    """The configuration file in a run folder.

    Raises RunFolderError where a `needed` file is missing or of another run.
    """
    if missing := [name for name in needed if not (run / name).is_file()]:
        raise RunFolderError(
            f"{run} is not a run folder: it has no {missing[0]}; give a folder that grn train made."
            if run.exists()
            else no_such_run(run, "give a run folder.")
        )
    refuse_mixed_parts(run)
    return run / CONFIG


def no_such_run(run: Path, otherwise: str) -> str:
    """The sentence about a run folder that does not exist, with a run of that name in `runs`, the
    nearest or `otherwise`.
    """
    inside = RUNS / run
    return does_not_exist(run, f"did you mean {inside}?" if inside.is_dir() else otherwise)


def refuse_cut_off(run: Path, needed: Iterable[str]) -> None:
    """Raise RunFolderError where a run has not written a `needed` file or folder yet, or has lost
    it.
    """
    missing = [name for name in needed if not (run / name).exists()]
    is_model = (run / "model.safetensors").is_file()  # a model folder has a config.yaml, too
    if not missing or is_model or not all((run / name).is_file() for name in (CONFIG, LOG)):
        return
    problem = f"was cut off, as {missing[0]} is missing"
    advice = f"grn train --resume {run} goes on with it"
    if (run / COMPLETE).is_file():
        problem, advice = f"was complete, and {missing[0]} is lost", "restore it, or train again"
    raise RunFolderError(f"The run in {run} {problem}", advice=advice)


def refuse_lost(run: Path) -> None:
    """Raise RunFolderError where a complete run has lost what resuming cannot bring back."""
    if (run / COMPLETE).is_file():
        refuse_cut_off(run, ("model", "network.h5ad", "edges.parquet"))


def refuse_mixed_parts(run: Path) -> None:
    """Raise RunFolderError where files of a run's folder hold different hashes of the model.

    Files that cannot be read are left to their readers.
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
            f"{run / odd} is of another run than {run / other}, by the hash of the model in each",
            advice="restore the run's own file, or train again",
        )


def _hash_in_network(path: Path) -> str:
    import h5py

    with h5py.File(path, "r") as file:
        return file["uns/grn/model_hash"].asstr()[()]


def _hash_in_table(path: Path) -> str:
    import pyarrow.parquet as pq

    return (pq.read_schema(path).metadata or {}).get(MODEL_HASH, b"").decode()


MODEL_HASH = b"grn_model_hash"  # a key in the metadata of a run's parquet files
HASHES: dict[str, Callable[[Path], str]] = {
    "model/card.json": lambda path: str(json.loads(path.read_bytes())["hash"]),
    "network.h5ad": _hash_in_network,
    "edges.parquet": _hash_in_table,
    "edges_by_type.parquet": _hash_in_table,
}


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Lock a run folder until the end, also a kill, of this process.

    Raises RunFolderError where it is locked.
    """
    with (run / LOG).open("a") as log:
        with suppress(ImportError):  # Windows has no such locks
            import fcntl

            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunFolderError(
                    f"Another process is working on the run in {run}",
                    advice="wait for it, or stop it",
                ) from None
        yield


def make_run_folder(output: Path | None, config_name: str, root: Path = RUNS) -> Path:
    """Make and return the folder `output`, or the next free `root/<config_name>-<date>-<n>`."""
    if output is not None:
        refuse_used_folder(output)
        output.mkdir(parents=True, exist_ok=True)
        return output
    today = datetime.date.today().isoformat()
    refuse_unwritable(root / today)
    for number in itertools.count(1):
        folder = root / f"{config_name}-{today}-{number}"
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            break
    return folder


def remove_run(folder: Path, *, keep_folder: bool) -> None:
    """Remove what a run has written into its folder, and the folder unless it was there before the
    run.
    """
    for path in folder.iterdir():
        remove(path)
    if not keep_folder:
        with suppress(OSError):
            folder.rmdir()
            if folder.parent == RUNS:
                RUNS.rmdir()  # where this was its only run
