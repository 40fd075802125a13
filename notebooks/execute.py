"""Runs every notebook from top to bottom, as a reader would. The notebooks themselves stay as they are."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError


def main() -> int:
    notebooks = sorted(Path(__file__).parent.glob("*.ipynb"))
    if not notebooks:
        print("there are no notebooks to run")
    for path in notebooks:
        started = time.monotonic()
        notebook = nbformat.read(path, as_version=4)
        # An empty folder: what a notebook needs, it makes or downloads, and what it writes is not left behind.
        with tempfile.TemporaryDirectory() as folder:
            client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}})
            try:
                client.execute()
            except CellExecutionError as error:
                print(f"{path.name} failed:\n{error}", file=sys.stderr)
                return 1
        print(f"{path.name} ran in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
