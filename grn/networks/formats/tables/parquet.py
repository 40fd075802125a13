"""A table for pandas, polars, arrow and R, every column."""

from __future__ import annotations

from pathlib import Path

from grn.networks.formats.chosen import ChosenEdges


def write(chosen: ChosenEdges, path: Path) -> None:
    chosen.edges.to_parquet(path, index=False)
