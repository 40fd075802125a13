"""`grn report`: writes the report of a finished run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from grn.cli.options import Debug, Quiet


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of grn train.", show_default=False)],
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write report.html of a finished run again, as this version writes it."""
    from grn.cli.console import console, plain
    from grn.errors import reworded
    from grn.verbs.run import load

    with reworded({"load the folder of the run": "give the folder of the run"}):
        opened = load(run)
        path = opened._write_report(opened.folder)
    plain(console())(f"Report: {path}")
