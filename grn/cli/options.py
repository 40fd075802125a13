"""Options that several commands share."""

from __future__ import annotations

from enum import StrEnum


class Orientation(StrEnum):
    cells_by_genes = "cells_by_genes"
    genes_by_cells = "genes_by_cells"


EVERYWHERE = "Everywhere: [bold]--quiet[/] prints nothing but errors, [bold]--debug[/] the traceback of an error."
