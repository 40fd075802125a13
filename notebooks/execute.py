"""Runs every notebook from top to bottom, as a reader would. The notebooks themselves stay as they are."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

LONGEST = 420  # seconds that one cell may take


def main() -> int:
    notebooks = sorted(Path(__file__).parent.glob("*.ipynb"))
    if not notebooks:
        print("there are no notebooks to run", file=sys.stderr)
        return 1
    failed = [path.name for path in notebooks if not runs(path)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def runs(path: Path) -> bool:
    """Executes a copy in an empty folder: what a notebook needs, it makes, and what it writes is not left behind."""
    started = time.monotonic()
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=LONGEST, resources={"metadata": {"path": folder}})
        try:
            client.execute()
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            print(f"{path.name} failed after {time.monotonic() - started:.0f} s:\n{error}", file=sys.stderr)
            return False
    print(f"{path.name} ran in {time.monotonic() - started:.0f} s", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
