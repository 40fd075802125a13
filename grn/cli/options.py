"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Orientation(StrEnum):
    cells_by_genes = "cells_by_genes"
    genes_by_cells = "genes_by_cells"


Debug = Annotated[bool, typer.Option("--debug", help="Print the traceback of an error.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
