"""The folder of a run: `runs/<config>-<date>-<n>` unless the user names one; never one that holds something."""

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
    """The configuration in a run's folder. Raises RunFolderError where no run has begun."""
    if not all((run / name).is_file() for name in (LOG, CONFIG)):
        raise RunFolderError(f"{run} holds no run: it lacks {LOG} or {CONFIG}; give the folder of a run.")
    return run / CONFIG


@contextmanager
def held(run: Path) -> Iterator[None]:
    """Raises RunFolderError where another process is at work in the folder; ends with this process, however it ends."""
    with (run / LOG).open("a") as log:
        try:
            import fcntl
        except ImportError:  # Windows has no such locks
            yield
            return
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(f"The run in {run} is going on in another process; wait for it, or stop it.") from None
        yield


def make_run_folder(output: Path | None, config_name: str, root: Path = Path("runs")) -> Path:
    """Made once the cells are read, so that a wrong path or field leaves nothing behind."""
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
    raise RunFolderError(f"{root} is full of runs of {config_name} from today; give --output a name.")


def _refused(folder: Path, error: OSError) -> str:
    return f"{folder} cannot be made ({error.strerror}); give --output a place to write."
