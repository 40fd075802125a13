"""The folder of a run: `runs/<config>-<date>-<n>` unless the user names one; never a folder with files in it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grn.errors import RunFolderError
from grn.files import refuse_used_folder

LOG, CONFIG, COMPLETE = "log.txt", "config.yaml", "report.html"  # in the order in which a run writes them
WRITTEN = ("config", "truth", "metrics", "last", "best", "model", "network", "edges", "confusion", "report")


def config_of(run: Path) -> Path:
    """The configuration file in the folder of a run. Raises RunFolderError where no run has begun there."""
    if not all((run / name).is_file() for name in (LOG, CONFIG)):
        raise RunFolderError(f"{run} is not the folder of a run: it has no {LOG} or no {CONFIG}. Give that of a run.")
    return run / CONFIG


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Locks the folder of a run; the lock also ends with this process, however that ends.

    Raises RunFolderError where another process has locked it."""
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


def make_run_folder(output: Path | None, config_name: str, root: Path = Path("runs")) -> Path:
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
            continue
        except OSError as error:
            raise RunFolderError(_refused(folder, error)) from None
        return folder
    raise RunFolderError(f"{root} has 100000 runs of {config_name} from today; give --output the name of a folder.")


def _refused(folder: Path, error: OSError) -> str:
    return f"{folder} cannot be made ({error.strerror}); give --output a place to write."
