"""The data.path of cells that were an AnnData in memory, as `grn.train` takes it: it leads to no file."""

from __future__ import annotations

from typing import NoReturn

from grn.config.schema import DataConfig
from grn.errors import CellsNotStored

MEMORY = "memory:"


def refuse_memory(name: str, config: DataConfig) -> NoReturn:
    """Raises CellsNotStored: the cells of such a configuration are in no file that could be read again."""
    raise CellsNotStored(
        f"data.path is {MEMORY!r}: the cells of this run were an AnnData in memory, which is not stored; write it with "
        "adata.write_h5ad(FILE) and set data.path to FILE in config.yaml."
    )
