"""A table as text, every column; numbers are written so that they read back the same."""

from __future__ import annotations

from pathlib import Path

from grn.networks.formats.chosen import ChosenEdges


def write(chosen: ChosenEdges, path: Path) -> None:
    chosen.edges.to_csv(path, index=False)
