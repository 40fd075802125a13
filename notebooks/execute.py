"""Runs every notebook from top to bottom, as a reader would. `--save` keeps the outputs of this run
in the files.
"""

from __future__ import annotations

import argparse
import base64
import io
import re
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from PIL import Image

LONGEST = 420  # seconds that one cell may take
LARGEST = 400_000  # bytes of a notebook with its pictures
WIDEST, COLOURS = 1000, 256  # of a saved picture
PRIVATE = re.compile(
    r"^[ \t]*(from[ \t]+(grn\b|flashsign\.)|import[ \t]+(grn|flashsign)\.)", re.MULTILINE
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="keep the outputs in the notebooks")
    parser.add_argument(
        "--workers", type=int, default=1, help="notebooks that run at the same time"
    )
    arguments = parser.parse_args()
    notebooks = sorted(Path(__file__).parent.glob("*.ipynb"))
    if not notebooks:
        print("there are no notebooks to run", file=sys.stderr)
        return 1
    with ProcessPoolExecutor(arguments.workers) as pool:
        done = list(pool.map(partial(runs, save=arguments.save), notebooks))
    failed = [path.name for path, well in zip(notebooks, done, strict=True) if not well]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def runs(path: Path, save: bool = False) -> bool:
    """Executes the notebook in an empty folder: what it needs, it makes, and what it writes is not
    left behind.
    """
    started = time.monotonic()
    notebook = nbformat.read(path, as_version=4)
    if problem := imports_of_internals(notebook):
        print(
            f"{path.name} imports more than users do: {problem}; use `import grn` or `import "
            "flashsign` alone.",
            file=sys.stderr,
        )
        return False
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=LONGEST, resources={"metadata": {"path": folder}})
        try:
            client.execute()
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            print(
                f"{path.name} failed after {time.monotonic() - started:.0f} s:\n{error}",
                file=sys.stderr,
            )
            return False
    print(f"{path.name} ran in {time.monotonic() - started:.0f} s", flush=True)
    return save_outputs(notebook, path) if save else True


def imports_of_internals(notebook: nbformat.NotebookNode) -> str | None:
    """The first line of code that imports from inside our packages."""
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    found = PRIVATE.search(code)
    return found and code[found.start() :].strip().splitlines()[0]


def save_outputs(notebook: nbformat.NotebookNode, path: Path) -> bool:
    """Writes the notebook with its outputs, unless they hold warnings or are too large."""
    for cell in notebook.cells:
        cell.metadata = nbformat.NotebookNode()  # when each cell began and ended
        warnings = [
            output.text for output in cell.get("outputs", []) if output.get("name") == "stderr"
        ]
        if warnings:
            print(
                f"{path.name} is not saved, as it printed warnings: {warnings[0]}", file=sys.stderr
            )
            return False
        merge_printed(cell)
        for output in cell.get("outputs", []):
            if picture := output.get("data", {}).get("image/png"):
                output["data"]["image/png"] = smaller(picture)
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec", "language_info")}
    # without the version of the machine that ran it
    notebook.metadata["language_info"] = {"name": "python"}
    text = nbformat.writes(notebook)
    if len(text.encode()) > LARGEST:
        print(
            f"{path.name} is not saved, as it has {len(text.encode())} bytes, above {LARGEST}",
            file=sys.stderr,
        )
        return False
    path.write_text(text + "\n", encoding="utf-8")
    return True


def merge_printed(cell: nbformat.NotebookNode) -> None:
    """Lines that came one by one become one text."""
    merged: list[nbformat.NotebookNode] = []
    for output in cell.get("outputs", []):
        if merged and output.get("name") == merged[-1].get("name") == "stdout":
            merged[-1]["text"] += output["text"]
        else:
            merged.append(output)
    if merged:
        cell["outputs"] = merged


def smaller(picture: str) -> str:
    """A PNG in base64, at most WIDEST pixels wide and in COLOURS colours."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    if image.width > WIDEST:
        image = image.resize(
            (WIDEST, round(image.height * WIDEST / image.width)), Image.Resampling.LANCZOS
        )
    buffer = io.BytesIO()
    # By number of pixels, as Pillow chooses where nothing is said, the dark reds of a colour bar
    # would become brown.
    reduced = image.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    reduced.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


if __name__ == "__main__":
    sys.exit(main())
