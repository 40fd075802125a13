"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Orientation(StrEnum):
    cells_by_genes = "cells_by_genes"
    genes_by_cells = "genes_by_cells"


EVERYWHERE = "Everywhere: [bold]--quiet[/] prints nothing but errors, [bold]--debug[/] the traceback of an error."

# Going: main.py takes both out of the arguments before a command is parsed, and console() knows whether to be quiet.
Debug = Annotated[bool, typer.Option("--debug", hidden=True)]
Quiet = Annotated[bool, typer.Option("--quiet", hidden=True)]
